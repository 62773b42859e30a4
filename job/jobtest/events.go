package jobtest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// Events returns the numbers in the single event file of a folder, in order, such as "7 loss=2.5".
// It relies only on the format.
func Events(t *testing.T, folder string) (all []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*tfevents*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("event files %v, %v", files, err)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for len(raw) > 0 {
		n := binary.LittleEndian.Uint64(raw)
		sum := func(b []byte) uint32 {
			x := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
			return (x>>15 | x<<17) + 0xa282ead8
		}
		if sum(raw[:8]) != binary.LittleEndian.Uint32(raw[8:]) || sum(raw[12:12+n]) != binary.LittleEndian.Uint32(raw[12+n:]) {
			t.Fatal("wrong checksum")
		}
		event := fieldsOf(t, raw[12:12+n])
		raw = raw[16+n:]
		for _, value := range fieldsOf(t, one(event[5]))[1] {
			v := fieldsOf(t, value)
			if bits := one(v[2]); bits != nil {
				step := binary.BigEndian.Uint64(one(event[2]))
				all = append(all, fmt.Sprint(step, " ", string(one(v[1])), "=", math.Float32frombits(binary.LittleEndian.Uint32(bits))))
			}
		}
	}
	return all
}

func one(list [][]byte) []byte {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// fieldsOf returns the fields of a protocol buffer by number; whole numbers become 8 bytes,
// big-endian.
func fieldsOf(t *testing.T, b []byte) map[int][][]byte {
	t.Helper()
	all := map[int][][]byte{}
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		b = b[n:]
		var of []byte
		switch key & 7 {
		case 0:
			x, n := binary.Uvarint(b)
			of, b = binary.BigEndian.AppendUint64(nil, x), b[n:]
		case 1:
			of, b = b[:8], b[8:]
		case 2:
			size, n := binary.Uvarint(b)
			of, b = b[n:n+int(size)], b[n+int(size):]
		case 5:
			of, b = b[:4], b[4:]
		default:
			t.Fatalf("wire type %d", key&7)
		}
		all[int(key>>3)] = append(all[int(key>>3)], of)
	}
	return all
}
