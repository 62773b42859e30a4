package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/internal/input/jsonread"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/vfs"
)

// gauss returns n numbers distributed like weights: normal with a given spread.
func gauss(n int, std float64, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 7))
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64() * std)
	}
	return out
}

func encoded(x []float32, t DType) []byte {
	b := make([]byte, len(x)*t.Size())
	safetensors.Encode(b, x, t)
	return b
}

func roundTrip(t *testing.T, c *coder, raw []byte, dt DType) []byte {
	t.Helper()
	enc := c.encode([]byte("before"), raw, dt)
	if !bytes.HasPrefix(enc, []byte("before")) {
		t.Fatal("encode changed its input")
	}
	enc = enc[6:]
	if len(enc) > len(raw)+1 {
		t.Fatalf("%d bytes of %s became %d", len(raw), dt, len(enc))
	}
	got := make([]byte, len(raw))
	if err := c.decode(got, enc, dt); err != nil {
		t.Fatalf("%d bytes of %s: %v", len(raw), dt, err)
	}
	if !bytes.Equal(got, raw) {
		t.Fatalf("%d bytes of %s changed", len(raw), dt)
	}
	return enc
}

func TestCodecRatios(t *testing.T) {
	c := newCoder()
	n := blockBytes / 4
	squares := gauss(n, 1e-3, 2)
	for i, x := range squares {
		squares[i] = x * x
	}
	rare := make([]float32, n) // of rows of 64, one in 50 is used
	copy(rare[12800:12864], gauss(64, 1, 3))
	for _, b := range []struct {
		what   string
		raw    []byte
		t      DType
		lo, hi float64 // bounds of stored/raw
	}{
		{"weights bf16", encoded(gauss(2*n, 0.02, 1), BF16), BF16, 0.60, 0.70}, // the notes have 0.662
		{"weights fp32", encoded(gauss(n, 0.02, 1), F32), F32, 0.80, 0.85},     // 0.831
		{"squares fp32", encoded(squares, F32), F32, 0.78, 0.85},               // 0.81: no sign either
		{"zeros", make([]byte, blockBytes), F32, 0, 0.0001},
		{"rows never used", encoded(rare, F32), F32, 0, 0.01},
		{"noise", noiseBytes(blockBytes, 4), "I64", 1, 1.00001},
		{"few bytes", encoded([]float32{1, 2, 3}, F32), F32, 1, 1.1},
	} {
		enc := roundTrip(t, c, b.raw, b.t)
		if r := float64(len(enc)) / float64(len(b.raw)); r < b.lo || r > b.hi {
			t.Errorf("%s: stored/raw %.4f, want %.4f to %.4f", b.what, r, b.lo, b.hi)
		}
	}
}

// TestNoise checks that planes are recognized as noise if they contain no information, and only
// then.
func TestNoise(t *testing.T) {
	planes := make([]byte, blockBytes)
	split(planes, encoded(gauss(blockBytes/4, 0.02, 1), F32), 4, true)
	n := blockBytes / 4
	for p, want := range []bool{true, true, true, false} {
		if got := noise(planes[p*n : (p+1)*n]); got != want {
			t.Errorf("plane %d of weights: noise is %v", p, got)
		}
	}
	for i := range n {
		planes[i] &= 0xfe // like squares, which have no sign
	}
	if noise(planes[:n]) {
		t.Error("a plane of 128 values is taken for noise")
	}
}

func noiseBytes(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	r.Read(b)
	return b
}

func TestCodecEveryDtypeAndEdge(t *testing.T) {
	c := newCoder()
	special := []uint32{0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00001, 0xffffffff, 1, 0x807fffff}
	raw := make([]byte, 0, blockBytes)
	for len(raw) < blockBytes {
		raw = binary.LittleEndian.AppendUint32(raw, special[len(raw)/4%len(special)])
	}
	for _, dt := range []DType{F32, BF16, F16, "F64", "I64", "U8", "I16", "I32"} {
		for _, n := range []int{0, 8, 4096, 8 * 1031, blockBytes - 8, blockBytes} {
			roundTrip(t, c, raw[:n], dt)
			roundTrip(t, c, noiseBytes(n, 9), dt)
		}
	}
}

func FuzzCodecRoundTrip(f *testing.F) {
	f.Add(encoded(gauss(3000, 1, 1), F32), uint8(0))
	f.Add(encoded(gauss(3000, 1, 1), BF16), uint8(1))
	f.Add(bytes.Repeat([]byte{1, 2, 3, 4}, 5000), uint8(3))
	c := newCoder()
	f.Fuzz(func(t *testing.T, b []byte, which uint8) {
		dt := []DType{F32, BF16, F16, "U8", "F64", "I32"}[which%6]
		b = b[:min(len(b), blockBytes)/dt.Size()*dt.Size()]
		roundTrip(t, c, b, dt)
	})
}

// FuzzDecodeBlock checks that decoding arbitrary bytes either fails or fills the block, without
// panicking or writing outside it.
func FuzzDecodeBlock(f *testing.F) {
	c := newCoder()
	f.Add(c.encode(nil, encoded(gauss(3000, 1, 1), F32), F32), uint16(3000))
	f.Add(c.encode(nil, make([]byte, 40000), F32), uint16(10000))
	f.Add(c.encode(nil, bytes.Repeat([]byte{1, 2, 3, 4, 0, 0, 0, 0}, 5000), F32), uint16(10000))
	f.Fuzz(func(t *testing.T, b []byte, n uint16) {
		buf := bytes.Repeat([]byte{0xa5}, int(n)*4+8)
		c.decode(buf[:int(n)*4:int(n)*4], b, F32)
		for _, x := range buf[int(n)*4:] {
			if x != 0xa5 {
				t.Fatal("decode wrote past the block")
			}
		}
	})
}

func TestDecodeRefuses(t *testing.T) {
	c := newCoder()
	good := c.encode(nil, encoded(gauss(3000, 1, 1), F32), F32)
	bad := func(what string, b []byte) {
		if err := c.decode(make([]byte, 12000), b, F32); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	bad("nothing", nil)
	bad("unknown method", []byte{9})
	bad("short raw", []byte{0, 1, 2})
	bad("cut short", good[:len(good)-1])
	bad("longer", append(good[:len(good):len(good)], 0))
	kind := append([]byte(nil), good...)
	kind[1] = 7
	bad("unknown piece", kind)
	bad("run of two", append([]byte{1, 1, 2, 0, 0}, make([]byte, 2)...))
}

func BenchmarkCodec(b *testing.B) {
	for _, x := range []struct {
		name string
		t    DType
	}{{"fp32", F32}, {"bf16", BF16}} {
		raw := encoded(gauss(blockBytes/x.t.Size(), 0.02, 1), x.t)
		c := newCoder()
		enc := c.encode(nil, raw, x.t)
		b.Run("encode/"+x.name, func(b *testing.B) {
			b.SetBytes(blockBytes)
			for b.Loop() {
				enc = c.encode(enc[:0], raw, x.t)
			}
			b.ReportMetric(float64(blockBytes)/float64(len(enc)), "ratio")
		})
		b.Run("decode/"+x.name, func(b *testing.B) {
			b.SetBytes(blockBytes)
			for b.Loop() {
				if err := c.decode(raw, enc, x.t); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestJoinCRC checks that the checksum of concatenated data follows from the checksums of its
// parts.
func TestJoinCRC(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	b := noiseBytes(1<<20, 5)
	for range 200 {
		n := r.IntN(1 << uint(r.IntN(21)))
		k := r.IntN(n + 1)
		if got, want := vfs.JoinCRC(crc(b[:k]), crc(b[k:n]), int64(n-k)), crc(b[:n]); got != want {
			t.Fatalf("%d+%d bytes: %08x, want %08x", k, n-k, got, want)
		}
	}
	if crc([]byte("123456789")) != 0xe3069283 { // the check value of CRC-32C
		t.Errorf("crc of the check string %08x", crc([]byte("123456789")))
	}
	for _, c := range []crcs{{}, {0}, {math.MaxUint32, 7}} {
		j, _ := json.Marshal(c)
		if back, err := parseCRCs(string(j)); err != nil || !slices.Equal(back, c) {
			t.Errorf("%s became %v, %v", j, back, err)
		}
	}
	for _, bad := range []string{`12`, `"1234567"`, `"0000000g"`, `"+1234567"`, `"`} {
		if _, err := parseCRCs(bad); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func parseCRCs(s string) (c crcs, err error) {
	err = jsonread.Strict([]byte(s), &c)
	return c, err
}
