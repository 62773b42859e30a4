// Package safetensors reads and writes the safetensors format and the folders
// in which Hugging Face keeps large models.
//
// A file is
//
//	8 bytes   little-endian uint64 n, at most 100,000,000
//	n bytes   JSON object in UTF-8, padded at its end with spaces:
//	          name → {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}
//	          and optionally "__metadata__" → {string: string}
//	the rest  the tensors' bytes, little-endian, C order; offsets count from
//	          here, tensors touch each other and end where the file ends
//
// The reader is strict: a duplicate name, a hole, an overlap, a size that is
// not the product of the shape, a key it does not know are errors that name
// file, tensor and offset. It allocates nothing that the file's true size has
// not covered. The writer starts the data at a multiple of 4096 bytes and
// orders tensors by falling element size and then name, so that every tensor
// is aligned for its dtype.
//
// A folder holds model.safetensors, or parts named
// model-00001-of-0000N.safetensors and model.safetensors.index.json:
// {"metadata": {"total_size": bytes of all tensors}, "weight_map": name → file}.
package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"
	"unicode/utf8"

	"zeroth/checkpoint/vfs"
)

const (
	maxHeader  = 100_000_000 // bytes, the format's own limit
	dataAlign  = 4096        // bytes, of the start of the data we write
	metadataAt = "__metadata__"
)

// Spec is what a tensor is, without where it lies.
type Spec struct {
	Name  string
	DType DType
	Shape []int
}

// Numel is the number of elements.
func (s Spec) Numel() int {
	n, _ := Numel(s.Shape)
	return n
}

// Tensor is a tensor in a file. Begin and End are bytes from the file's start.
type Tensor struct {
	Spec
	File       string
	Begin, End int64
}

// ParseHeader reads the header of a file of size bytes. Tensors come sorted by
// Begin. Errors do not name the file.
func ParseHeader(f io.ReaderAt, size int64) ([]Tensor, map[string]string, error) {
	var first [8]byte
	if size < 8 {
		return nil, nil, fmt.Errorf("%d bytes: too short for a safetensors file", size)
	}
	if err := vfs.ReadFull(f, first[:], 0); err != nil {
		return nil, nil, err
	}
	n := binary.LittleEndian.Uint64(first[:])
	if n > maxHeader || int64(n) > size-8 {
		return nil, nil, fmt.Errorf("header of %d bytes in a file of %d (limit %d): not a safetensors file", n, size, maxHeader)
	}
	b := make([]byte, n)
	if err := vfs.ReadFull(f, b, 8); err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	p := headerParser{dec: json.NewDecoder(bytes.NewReader(b))}
	if err := p.parse(b); err != nil {
		return nil, nil, fmt.Errorf("header, near byte %d: %w", 8+p.dec.InputOffset(), err)
	}
	return p.tensors, p.meta, place(p.tensors, 8+int64(n), size)
}

// place turns offsets in the data into offsets in the file and checks that the
// tensors fill [start, size) without holes or overlaps.
func place(ts []Tensor, start, size int64) error {
	sort.Slice(ts, func(i, j int) bool {
		if ts[i].Begin != ts[j].Begin {
			return ts[i].Begin < ts[j].Begin
		}
		return ts[i].End < ts[j].End
	})
	at := start
	for i := range ts {
		t := &ts[i]
		if t.End > size-start {
			return fmt.Errorf("tensor %q: ends at data offset %d, the file at %d", t.Name, t.End, size-start)
		}
		t.Begin, t.End = t.Begin+start, t.End+start
		if t.Begin != at {
			return fmt.Errorf("tensor %q: begins at data offset %d, the one before it ends at %d", t.Name, t.Begin-start, at-start)
		}
		want, ok := byteLen(t.DType, t.Shape)
		if !ok {
			return fmt.Errorf("tensor %q: dtype %q with shape %v has no whole number of bytes that fits in 63 bits", t.Name, t.DType, t.Shape)
		}
		if t.End-t.Begin != want {
			return fmt.Errorf("tensor %q: %d bytes at data offset %d, %s%v needs %d", t.Name, t.End-t.Begin, t.Begin-start, t.DType, t.Shape, want)
		}
		at = t.End
	}
	if at != size {
		return fmt.Errorf("tensors end at data offset %d, the file at %d", at-start, size-start)
	}
	return nil
}

// headerParser walks the tokens, because a map would hide duplicate keys.
type headerParser struct {
	dec     *json.Decoder
	tensors []Tensor
	meta    map[string]string
}

func (p *headerParser) parse(b []byte) error {
	if len(b) == 0 || b[0] != '{' {
		return errors.New("does not start with '{'")
	}
	if !utf8.Valid(b) {
		return errors.New("not UTF-8")
	}
	p.dec.UseNumber()
	if err := p.object(p.entry); err != nil {
		return err
	}
	if rest := bytes.TrimRight(b[p.dec.InputOffset():], " "); len(rest) > 0 {
		return fmt.Errorf("%d bytes after the JSON object that are not padding", len(rest))
	}
	return nil
}

// object reads an object, each value by the function given its key.
func (p *headerParser) object(value func(key string) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.dec.More() {
		key, err := p.str()
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("key %q twice", key)
		}
		seen[key] = true
		if err := value(key); err != nil {
			return err
		}
	}
	return p.delim('}')
}

func (p *headerParser) entry(name string) error {
	if name == metadataAt {
		p.meta = map[string]string{}
		return p.object(func(k string) error {
			v, err := p.str()
			p.meta[k] = v
			return err
		})
	}
	t := Tensor{Spec: Spec{Name: name}}
	fields := 0
	err := p.object(func(key string) error {
		fields++
		switch key {
		case "dtype":
			s, err := p.str()
			t.DType = DType(s)
			return err
		case "shape":
			d, err := p.ints()
			t.Shape = d
			return err
		case "data_offsets":
			o, err := p.ints()
			if err != nil {
				return err
			}
			if len(o) != 2 || o[0] > o[1] {
				return fmt.Errorf("data_offsets %v", o)
			}
			t.Begin, t.End = int64(o[0]), int64(o[1])
			return nil
		}
		return fmt.Errorf("unknown key %q", key)
	})
	if err == nil && fields != 3 {
		err = errors.New("needs dtype, shape and data_offsets")
	}
	if err != nil {
		return fmt.Errorf("tensor %q: %w", name, err)
	}
	p.tensors = append(p.tensors, t)
	return nil
}

func (p *headerParser) delim(want json.Delim) error {
	t, err := p.dec.Token()
	if err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("%v where %v should be", t, want)
	}
	return nil
}

func (p *headerParser) str() (string, error) {
	t, err := p.dec.Token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("%v where a string should be", t)
	}
	return s, nil
}

// ints reads an array of non-negative integers that fit an int.
func (p *headerParser) ints() ([]int, error) {
	if err := p.delim('['); err != nil {
		return nil, err
	}
	out := []int{}
	for p.dec.More() {
		t, err := p.dec.Token()
		if err != nil {
			return nil, err
		}
		num, _ := t.(json.Number)
		n, err := strconv.ParseUint(string(num), 10, 64)
		if err != nil || n > math.MaxInt {
			return nil, fmt.Errorf("%v where a size should be", t)
		}
		out = append(out, int(n))
	}
	return out, p.delim(']')
}

// AppendHeader appends the header of tensors at the given offsets in the data,
// padded with spaces so that all of it, with its first 8 bytes, is a multiple
// of align bytes and at least least bytes.
func AppendHeader(b []byte, ts []Tensor, meta map[string]string, align, least int) ([]byte, error) {
	start := len(b)
	b = append(b, make([]byte, 8)...)
	b = append(b, '{')
	if len(meta) > 0 {
		m, err := json.Marshal(meta)
		if err != nil {
			return nil, err
		}
		b = append(append(b, `"__metadata__":`...), m...)
	}
	for i, t := range ts {
		if i > 0 || len(meta) > 0 {
			b = append(b, ',')
		}
		b = appendEntry(b, t)
	}
	b = append(b, '}')
	for (len(b)-start)%align != 0 || len(b)-start < least {
		b = append(b, ' ')
	}
	n := len(b) - start - 8
	if n > maxHeader {
		return nil, fmt.Errorf("safetensors: header of %d tensors is %d bytes, the format's limit is %d; write several files", len(ts), n, maxHeader)
	}
	binary.LittleEndian.PutUint64(b[start:], uint64(n))
	return b, nil
}

func appendEntry(b []byte, t Tensor) []byte {
	name, err := json.Marshal(t.Name)
	if err != nil {
		panic("safetensors: " + err.Error()) // strings always marshal
	}
	b = append(append(b, name...), `:{"dtype":"`...)
	b = append(append(b, t.DType...), `","shape":[`...)
	for i, d := range t.Shape {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(d), 10)
	}
	b = append(b, `],"data_offsets":[`...)
	b = strconv.AppendInt(b, t.Begin, 10)
	b = append(b, ',')
	b = strconv.AppendInt(b, t.End, 10)
	return append(b, "]}"...)
}

// check is what of a Spec can be wrong before anything is written.
func (s Spec) check() error {
	if s.Name == "" || s.Name == metadataAt || !utf8.ValidString(s.Name) {
		return fmt.Errorf("safetensors: tensor name %q cannot be written", s.Name)
	}
	if _, ok := byteLen(s.DType, s.Shape); !ok || s.DType.Size() == 0 {
		return fmt.Errorf("safetensors: tensor %q: dtype %q with shape %v cannot be written", s.Name, s.DType, s.Shape)
	}
	return nil
}
