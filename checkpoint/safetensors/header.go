// Package safetensors reads and writes the safetensors format, and folders of large models as used by
// Hugging Face.
//
// A file is
//
//	8 bytes   little-endian uint64 n, at most 100,000,000
//	n bytes   JSON object in UTF-8, padded at the end with spaces:
//	          name → {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}
//	          and optionally "__metadata__" → {string: string}
//	the rest  the tensors' bytes, little-endian, C order; offsets count from
//	          here; tensors are contiguous and end where the file ends
//
// The reader is strict: a duplicate name, a gap, an overlap, a size that does not match the
// shape or an unknown key is an error that names file, tensor and offset. It allocates nothing
// beyond the file's true size. The writer starts the data at a multiple of 4096 bytes and
// sorts tensors by falling element size and then name, so that every tensor is aligned for its
// dtype.
//
// A folder contains model.safetensors, or parts named
// model-00001-of-0000N.safetensors and model.safetensors.index.json:
// {"metadata": {"total_size": bytes of all tensors}, "weight_map": name → file}.
package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"

	"zeroth/checkpoint/vfs"
	"zeroth/internal/input/jsonread"
)

const (
	maxHeader  = 100_000_000 // bytes, the format's own limit
	dataAlign  = 4096        // bytes; alignment of the data in files we write
	metadataAt = "__metadata__"
)

// Spec describes a tensor without its position.
type Spec struct {
	Name  string
	DType DType
	Shape []int
}

// Numel returns the number of elements.
func (s Spec) Numel() int {
	n, _ := Numel(s.Shape)
	return n
}

// Weights returns an error that describes the elements if a model's weights cannot be loaded
// from them.
func (t Tensor) Weights() error {
	if t.DType.Float() {
		return nil
	}
	return fmt.Errorf("%s: tensor %.200q has type %s; weights must be F32, BF16 or F16", t.File, t.Name, t.DType.describe())
}

// Tensor is a tensor in a file. Begin and End are byte offsets in the file.
type Tensor struct {
	Spec
	File       string
	Begin, End int64
}

// ParseHeader reads the header of a file of size bytes and returns its tensors, sorted by
// Begin, and its metadata. Errors do not name the file.
func ParseHeader(f io.ReaderAt, size int64) ([]Tensor, map[string]string, error) {
	var first [8]byte
	if size < 8 {
		return nil, nil, fmt.Errorf("%d bytes: too short for a safetensors file", size)
	}
	if err := vfs.ReadFull(f, first[:], 0); err != nil {
		return nil, nil, err
	}
	n := binary.LittleEndian.Uint64(first[:])
	if other := knownFormat(first[:]); other != "" {
		return nil, nil, fmt.Errorf("it is %s, not a safetensors file", other)
	}
	if n > maxHeader || int64(n) > size-8 {
		return nil, nil, fmt.Errorf("header of %d bytes in a file of %d (limit %d): not a safetensors file", n, size, maxHeader)
	}
	b := make([]byte, n)
	if err := vfs.ReadFull(f, b, 8); err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	ts, meta, err := parseHeader(b)
	if e := (*jsonread.Error)(nil); errors.As(err, &e) {
		err = fmt.Errorf("near byte %d: %w", 8+e.Offset, e.Err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	return ts, meta, checkOffsets(ts, 8+int64(n), size)
}

// knownFormat identifies a file that begins with bytes impossible in a safetensors file, or
// returns "".
func knownFormat(first []byte) string {
	for begin, kind := range map[string]string{
		"version ":   "a Git LFS pointer (fetch the file itself with `git lfs pull`)",
		"PK\x03\x04": "a zip archive, such as PyTorch's pickles",
		"GGUF":       "a GGUF file",
	} {
		if bytes.HasPrefix(first, []byte(begin)) {
			return kind
		}
	}
	return ""
}

// checkOffsets converts offsets in the data to offsets in the file, and checks that the tensors cover
// [start, size) without gaps or overlaps.
func checkOffsets(ts []Tensor, start, size int64) error {
	slices.SortFunc(ts, func(a, b Tensor) int { return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End)) })
	at := start
	for i := range ts {
		t := &ts[i]
		if t.End > size-start {
			return fmt.Errorf("tensor %.200q: ends at data offset %d, but the file at %d", t.Name, t.End, size-start)
		}
		t.Begin, t.End = t.Begin+start, t.End+start
		if t.Begin != at {
			return fmt.Errorf("tensor %.200q: begins at data offset %d, but the previous one ends at %d", t.Name, t.Begin-start, at-start)
		}
		want, ok := byteLen(t.DType, t.Shape)
		if !ok {
			return fmt.Errorf("tensor %.200q: dtype %q with shape %v is not a whole number of bytes below 2^63", t.Name, t.DType, t.Shape)
		}
		if t.End-t.Begin != want {
			return fmt.Errorf("tensor %.200q: %d bytes at data offset %d, but %s%v needs %d", t.Name, t.End-t.Begin, t.Begin-start, t.DType, t.Shape, want)
		}
		at = t.End
	}
	if at != size {
		return fmt.Errorf("tensors end at data offset %d, but the file at %d", at-start, size-start)
	}
	return nil
}

// Limits of a header besides its size.
const (
	MaxTensors  = 400_000 // of a file or an index; the largest public models have half as many
	maxDims     = 64      // per shape
	maxMetadata = 1 << 16 // pairs of strings
)

// parseHeader parses the JSON of a header. Offsets are relative to the data.
func parseHeader(b []byte) (ts []Tensor, meta map[string]string, err error) {
	if len(b) == 0 || b[0] != '{' {
		return nil, nil, errors.New("does not start with '{'")
	}
	err = jsonread.All(b, func(r *jsonread.Reader) error {
		return r.Object(func(name string) (err error) {
			if name == metadataAt {
				meta, err = readMetadata(r)
			} else {
				var e entry
				if err = r.Strict(&e); err == nil && len(ts) == MaxTensors {
					err = fmt.Errorf("more than %d tensors", MaxTensors)
				}
				if err == nil {
					ts = append(ts, Tensor{Spec: Spec{name, e.DType, e.Shape}, Begin: e.Offsets[0], End: e.Offsets[1]})
				}
			}
			return r.In(name, err)
		})
	})
	if end := bytes.TrimRight(b, " "); err == nil && end[len(end)-1] != '}' {
		err = fmt.Errorf("%q after the JSON object is not padding", end[len(end)-1])
	}
	return ts, meta, err
}

func readMetadata(r *jsonread.Reader) (map[string]string, error) {
	meta := map[string]string{}
	err := r.Object(func(key string) (err error) {
		if len(meta) == maxMetadata {
			return fmt.Errorf("more than %d keys", maxMetadata)
		}
		meta[key], err = r.String()
		return err
	})
	return meta, err
}

// entry is the description of a tensor in a header.
type entry struct {
	DType   DType     `json:"dtype"`
	Shape   []int     `json:"shape"`
	Offsets *[2]int64 `json:"data_offsets"` // [begin, end) in the data
}

// Check implements jsonread.Checked.
func (e *entry) Check() error {
	if e.DType == "" || e.Shape == nil || e.Offsets == nil {
		return errors.New("needs dtype, shape and data_offsets")
	}
	known, ok := dtypes[string(e.DType)]
	switch {
	case !ok:
		return fmt.Errorf("unknown dtype %.20q", e.DType)
	case len(e.Shape) > maxDims:
		return fmt.Errorf("a shape of more than %d numbers", maxDims)
	case slices.Min(append(e.Shape, 0)) < 0:
		return fmt.Errorf("shape %v has a negative size", e.Shape)
	case e.Offsets[0] < 0 || e.Offsets[0] > e.Offsets[1]:
		return fmt.Errorf("data_offsets %v are not a valid [begin, end]", *e.Offsets)
	}
	e.DType = known // whose text all entries share
	return nil
}

// AppendHeader appends the header of tensors at the given offsets in the data. The header, with its
// first 8 bytes, is padded with spaces to a multiple of align bytes, and to a length of at least
// least.
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
		return nil, fmt.Errorf("safetensors: header of %d tensors has %d bytes, but the format's limit is %d; write several files", len(ts), n, maxHeader)
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

// check checks a Spec before anything is written.
func (s Spec) check() error {
	if s.Name == "" || s.Name == metadataAt || !utf8.ValidString(s.Name) {
		return fmt.Errorf("safetensors: tensor name %.200q cannot be written", s.Name)
	}
	if _, ok := byteLen(s.DType, s.Shape); !ok || s.DType.Size() == 0 {
		return fmt.Errorf("safetensors: tensor %.200q: dtype %q with shape %v cannot be written", s.Name, s.DType, s.Shape)
	}
	return nil
}
