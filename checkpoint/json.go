package checkpoint

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"zeroth/internal/input/jsonread"
)

// The JSON of manifests and part files is untrusted. It is read value by value, and each value is
// checked before the next is read, so that memory use stays within a few times the size of the
// file.

const (
	maxJSON    = 64 << 20 // bytes per manifest, part file or state.json
	maxDims    = 64       // per shape
	maxMetrics = 1 << 13  // per manifest
)

// decode reads a JSON object with the given keys, each at most once; value reads the value of a
// key.
func decode(b []byte, names []string, value func(r *jsonread.Reader, name string) error) error {
	return jsonread.All(b, func(r *jsonread.Reader) error {
		return r.Members(names, func(name string) error { return value(r, name) })
	})
}

// readTensors reads a list of tensors, checks each, and passes it to take.
func readTensors(r *jsonread.Reader, take func(Tensor) error) error {
	return r.Array(func(int) error {
		t := Tensor{}
		err := r.Members([]string{"name", "kind", "dtype", "shape"}, func(name string) (err error) {
			switch name {
			case "name":
				t.Name, err = r.Text(maxName)
			case "kind":
				t.Kind, err = r.Text(maxKind)
			case "dtype":
				var s string
				s, err = r.Text(maxKind)
				t.DType = DType(s)
			case "shape":
				t.Shape, err = readShape(r)
			}
			return err
		})
		if err == nil {
			err = t.check()
		}
		if err == nil {
			err = take(t)
		}
		return err
	})
}

func readShape(r *jsonread.Reader) (shape []int, err error) {
	shape = []int{}
	err = r.Array(func(i int) error {
		if i == maxDims {
			return fmt.Errorf("more than %d dimensions", maxDims)
		}
		shape = append(shape, 0)
		return jsonread.Whole(r, &shape[i])
	})
	return shape, err
}

// readCRCs reads a list of checksums, written as one string.
func readCRCs(r *jsonread.Reader) (crcs, error) {
	s, err := r.String()
	if err != nil {
		return nil, err
	}
	if len(s)%8 != 0 {
		return nil, fmt.Errorf("checksums with %d digits, not a multiple of 8", len(s))
	}
	c := make(crcs, len(s)/8)
	for i := range c {
		x, err := strconv.ParseUint(s[8*i:8*i+8], 16, 32)
		if err != nil {
			return nil, fmt.Errorf("invalid checksum %q", s[8*i:8*i+8])
		}
		c[i] = uint32(x)
	}
	return c, nil
}

const maxPlain = 1000 // bytes

// Plain returns a text from a file in a form that is safe to display: unchanged or, if it contains
// anything that is not printable, such as a control character, quoted and escaped. A long one is cut.
func Plain(s string) string {
	if len(s) > maxPlain {
		s = strings.ToValidUTF8(s[:maxPlain], "") + "…"
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
