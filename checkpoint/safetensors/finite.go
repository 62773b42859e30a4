package safetensors

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"zeroth/internal/parallel"
)

// NotFinite reports an element that is infinite or NaN.
type NotFinite struct {
	File, Tensor string
	Element      int
	Value        float32
}

func (e *NotFinite) Error() string {
	return fmt.Sprintf("%s: element %d of %.200q is %v", e.File, e.Element, e.Tensor, e.Value)
}

// exponents maps floats to the bits that are all set in an infinity or a NaN.
var exponents = map[DType]uint32{F32: 0x7f80_0000, BF16: 0x7f80, F16: 0x7c00}

// Finite reads tensors at the same time and returns the CRC-32C of each one's bytes, or a *NotFinite
// error if a float is infinite or NaN.
func (r *Reader) Finite(ctx context.Context, names []string) (sums []uint32, err error) {
	sums = make([]uint32, len(names))
	return sums, parallel.For(ctx, len(names), 0, func(ctx context.Context, i int) (err error) {
		sums[i], err = r.finite(ctx, names[i])
		return err
	})
}

func (r *Reader) finite(ctx context.Context, name string) (sum uint32, err error) {
	t, err := r.check(name, 0, 0)
	if err != nil {
		return 0, err
	}
	bufp := buffers.Get().(*[]byte)
	defer buffers.Put(bufp)
	size := t.DType.Size()
	for lo, n := 0, t.Numel(); lo < n; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		hi := min(n, lo+len(*bufp)/size)
		b := (*bufp)[:(hi-lo)*size]
		if err := r.ReadRaw(t.Name, lo, hi, b); err != nil {
			return 0, err
		}
		if i := notFinite(b, t.DType); i >= 0 {
			var x [1]float32
			Decode(x[:], b[i*size:(i+1)*size], t.DType)
			return 0, &NotFinite{t.File, t.Name, lo + i, x[0]}
		}
		sum = crc32.Update(sum, castagnoli, b)
		lo = hi
	}
	return sum, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// notFinite returns the index of the first infinite or NaN element, or -1.
func notFinite(b []byte, t DType) int {
	if !t.Float() {
		return -1
	}
	mask := exponents[t]
	if t == F32 {
		for i := 0; i+4 <= len(b); i += 4 {
			if binary.LittleEndian.Uint32(b[i:])&mask == mask {
				return i / 4
			}
		}
		return -1
	}
	for i := 0; i+2 <= len(b); i += 2 {
		if m := uint16(mask); binary.LittleEndian.Uint16(b[i:])&m == m {
			return i / 2
		}
	}
	return -1
}
