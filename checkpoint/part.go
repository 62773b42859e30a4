package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"

	"zeroth/shard"
)

const (
	format     = 1       // of the files described in the package comment
	blockBytes = 1 << 18 // of raw data under one CRC32C
	maxJSON    = 1 << 30 // bytes of a part file or manifest

	codecRaw    = "raw"
	codecPlanes = "planes"
)

// part is a part file: what one writer wrote.
type part struct {
	Format  int        `json:"format"`
	Step    int64      `json:"step"`
	Nonce   string     `json:"nonce"`
	Writer  int        `json:"writer"`
	Tensors []Tensor   `json:"tensors"`
	Files   []dataFile `json:"files"`
}

// dataFile is a data file: a safetensors header and then the extents, in the
// order of their offsets, without holes.
type dataFile struct {
	Name      string   `json:"name"`
	Bytes     int64    `json:"bytes"`
	Header    int64    `json:"header"`        // bytes before the first extent
	HeaderCRC crcs     `json:"header_crc32c"` // one
	CRC       crcs     `json:"crc32c"`        // one, of the whole file
	Extents   []extent `json:"extents"`
}

// extent is elements [Lo, Hi) of a tensor, in blocks of blockBytes raw bytes
// (the last may be shorter).
type extent struct {
	Tensor int    `json:"tensor"` // index into part.Tensors
	Lo     int    `json:"lo"`
	Hi     int    `json:"hi"`
	Offset int64  `json:"offset"` // bytes from the start of the file
	Codec  string `json:"codec"`
	Stored []int  `json:"stored,omitempty"` // bytes of each block as stored; absent for codec raw
	CRC    crcs   `json:"crc32c"`           // of each block as stored
}

func (e *extent) rng() shard.Range { return shard.Range{Lo: e.Lo, Hi: e.Hi} }

// raw is the number of bytes of the elements.
func (e *extent) raw(size int) int64 { return int64(e.Hi-e.Lo) * int64(size) }

// bytes is the number of bytes in the file.
func (e *extent) bytes(size int) int64 {
	if e.Codec == codecRaw {
		return e.raw(size)
	}
	n := int64(0)
	for _, s := range e.Stored {
		n += int64(s)
	}
	return n
}

// rawBlock is the number of raw bytes of block i.
func (e *extent) rawBlock(i, size int) int {
	return int(min(blockBytes, e.raw(size)-int64(i)*blockBytes))
}

// block is the offset and length in the file of block i.
func (e *extent) block(i, size int) (off int64, n int) {
	if e.Codec == codecRaw {
		return e.Offset + int64(i)*blockBytes, e.rawBlock(i, size)
	}
	off = e.Offset
	for _, s := range e.Stored[:i] {
		off += int64(s)
	}
	return off, e.Stored[i]
}

// bytes is the size of all data files.
func (p *part) bytes() (n int64) {
	for _, f := range p.Files {
		n += f.Bytes
	}
	return n
}

// encoded is whether an extent has another codec than raw.
func (p *part) encoded() bool {
	for _, f := range p.Files {
		for i := range f.Extents {
			if f.Extents[i].Codec != codecRaw {
				return true
			}
		}
	}
	return false
}

// blocks is how many blocks n raw bytes make.
func blocks(n int64) int { return int((n + blockBytes - 1) / blockBytes) }

// decodeStrict reads one JSON value without unknown fields or anything behind.
func decodeStrict(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the JSON object")
	}
	return nil
}

// parsePart reads and checks a part file. What it returns can be used without
// further checks of indices, sizes or offsets.
func parsePart(b []byte) (*part, error) {
	p := &part{}
	if err := decodeStrict(b, p); err != nil {
		return nil, err
	}
	if p.Format != format {
		return nil, fmt.Errorf("format %d; this program reads format %d", p.Format, format)
	}
	if p.Writer < 0 || p.Step < 0 {
		return nil, fmt.Errorf("writer %d, step %d", p.Writer, p.Step)
	}
	for _, t := range p.Tensors {
		if err := t.check(); err != nil {
			return nil, err
		}
	}
	for i := range p.Files {
		if err := p.checkFile(i); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Files[i].Name, err)
		}
	}
	return p, nil
}

func (p *part) checkFile(i int) error {
	f := &p.Files[i]
	if f.Name != dataName(p.Writer, i) {
		return fmt.Errorf("file %d of writer %d should be %s", i, p.Writer, dataName(p.Writer, i))
	}
	if len(f.CRC) != 1 || len(f.HeaderCRC) != 1 || f.Header < 8 || f.Bytes < f.Header {
		return fmt.Errorf("%d bytes, header %d, %d+%d checksums", f.Bytes, f.Header, len(f.HeaderCRC), len(f.CRC))
	}
	at := f.Header
	for j := range f.Extents {
		e := &f.Extents[j]
		if err := p.checkExtent(e); err != nil {
			return fmt.Errorf("extent %d: %w", j, err)
		}
		n := e.bytes(p.Tensors[e.Tensor].DType.Size())
		if e.Offset != at || n > f.Bytes-at {
			return fmt.Errorf("extent %d: %d bytes at offset %d, expected at %d of %d", j, n, e.Offset, at, f.Bytes)
		}
		at += n
	}
	if at != f.Bytes {
		return fmt.Errorf("extents end at %d of %d bytes", at, f.Bytes)
	}
	return nil
}

func (p *part) checkExtent(e *extent) error {
	if e.Tensor < 0 || e.Tensor >= len(p.Tensors) {
		return fmt.Errorf("tensor %d of %d", e.Tensor, len(p.Tensors))
	}
	t := p.Tensors[e.Tensor]
	if e.Lo < 0 || e.Hi <= e.Lo || e.Hi > t.Numel() {
		return fmt.Errorf("%v: elements [%d, %d) of %d", t, e.Lo, e.Hi, t.Numel())
	}
	n := blocks(e.raw(t.DType.Size()))
	if len(e.CRC) != n {
		return fmt.Errorf("%v: %d checksums for %d blocks", t, len(e.CRC), n)
	}
	switch e.Codec {
	case codecRaw:
		if e.Stored != nil {
			return fmt.Errorf("%v: stored sizes with codec raw", t)
		}
		return nil
	case codecPlanes:
		if len(e.Stored) != n {
			return fmt.Errorf("%v: %d stored sizes for %d blocks", t, len(e.Stored), n)
		}
		for i, s := range e.Stored {
			if s < 1 || s > e.rawBlock(i, t.DType.Size())+1 {
				return fmt.Errorf("%v: block %d of %d bytes stored as %d", t, i, e.rawBlock(i, t.DType.Size()), s)
			}
		}
		return nil
	}
	return fmt.Errorf("%v: codec %q is not known", t, e.Codec)
}

// union merges the tensors of all parts, sorted, and refuses two opinions on
// one of them.
func union(parts []*part) ([]Tensor, error) {
	seen := map[key]Tensor{}
	var out []Tensor
	for _, p := range parts {
		for _, t := range p.Tensors {
			old, ok := seen[t.key()]
			if !ok {
				seen[t.key()] = t
				out = append(out, t)
			} else if !old.same(t) {
				return nil, fmt.Errorf("%v: writer %d says %s%v, another %s%v", t, p.Writer, t.DType, t.Shape, old.DType, old.Shape)
			}
		}
	}
	byKey(out)
	return out, nil
}

// complete checks that the parts hold every element of every tensor exactly
// once and nothing else.
func complete(tensors []Tensor, parts []*part) error {
	have := map[key][]shard.Range{}
	for _, p := range parts {
		for _, f := range p.Files {
			for _, e := range f.Extents {
				k := p.Tensors[e.Tensor].key()
				have[k] = append(have[k], e.rng())
			}
		}
	}
	for _, t := range tensors {
		r := have[t.key()]
		sort.Slice(r, func(i, j int) bool { return r[i].Lo < r[j].Lo })
		if err := covered(t.Numel(), r); err != nil {
			return fmt.Errorf("%v: %w", t, err)
		}
		delete(have, t.key())
	}
	for k := range have {
		return fmt.Errorf("%s (%s) was written but is not in the list of tensors", k.name, k.kind)
	}
	return nil
}
