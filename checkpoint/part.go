package checkpoint

import (
	"errors"
	"fmt"
	"slices"

	"zeroth/internal/input/jsonread"
	"zeroth/shard"
)

const (
	format     = 1       // number of format 1 in the package comment
	formatCuts = 2       // number of format 2, with extents of parts of tensors
	blockBytes = 1 << 18 // bytes of raw data per CRC32C
	maxHeader  = 1 << 20 // bytes before the first extent of a data file

	codecRaw    = "raw"
	codecPlanes = "planes"
)

// part is a part file: the description of one writer's data.
type part struct {
	Format  int        `json:"format"`
	Step    int64      `json:"step"`
	Nonce   string     `json:"nonce"`
	Writer  int        `json:"writer"`
	Tensors []Tensor   `json:"tensors"`
	Files   []dataFile `json:"files"`
}

// dataFile describes a data file: a safetensors header, then the extents, contiguous and in the
// order of their offsets.
type dataFile struct {
	Name      string   `json:"name"`
	Bytes     int64    `json:"bytes"`
	Header    int64    `json:"header"`        // bytes before the first extent
	HeaderCRC crcs     `json:"header_crc32c"` // one checksum
	CRC       crcs     `json:"crc32c"`        // one checksum, of the whole file
	Extents   []extent `json:"extents"`
}

// extent contains elements [Lo, Hi) of a tensor, in blocks of blockBytes raw bytes (the last may be
// shorter).
type extent struct {
	Tensor int     `json:"tensor"` // index into part.Tensors
	Lo     int     `json:"lo"`
	Hi     int     `json:"hi"`
	Cut    *cut    `json:"cut,omitempty"` // part of the tensor in which Lo and Hi count; nil for the whole
	Offset int64   `json:"offset"`        // bytes from the start of the file
	Codec  string  `json:"codec"`
	Stored []int32 `json:"stored,omitempty"` // bytes of each block as stored; absent for codec raw
	CRC    crcs    `json:"crc32c"`           // of each block as stored
}

func (e *extent) rng() shard.Range { return shard.Range{Lo: e.Lo, Hi: e.Hi} }

// raw returns the number of raw bytes of the elements.
func (e *extent) raw(size int) int64 { return int64(e.Hi-e.Lo) * int64(size) }

// bytes returns the number of bytes in the file.
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

// rawBlock returns the number of raw bytes in block i.
func (e *extent) rawBlock(i, size int) int {
	return int(min(blockBytes, e.raw(size)-int64(i)*blockBytes))
}

// block returns the offset in the file and the stored length of block i.
func (e *extent) block(i, size int) (off int64, n int) {
	if e.Codec == codecRaw {
		return e.Offset + int64(i)*blockBytes, e.rawBlock(i, size)
	}
	off = e.Offset
	for _, s := range e.Stored[:i] {
		off += int64(s)
	}
	return off, int(e.Stored[i])
}

// bytes returns the total size of the data files.
func (p *part) bytes() (n int64) {
	for _, f := range p.Files {
		n += f.Bytes
	}
	return n
}

// encoded reports whether any extent has a codec other than raw.
func (p *part) encoded() bool { return p.has(func(e extent) bool { return e.Codec != codecRaw }) }

// cuts reports whether any extent belongs to a part of its tensor.
func (p *part) cuts() bool { return p.has(func(e extent) bool { return e.Cut != nil }) }

func (p *part) has(some func(extent) bool) bool {
	return slices.ContainsFunc(p.Files, func(f dataFile) bool { return slices.ContainsFunc(f.Extents, some) })
}

func unknownFormat(n int) error {
	return fmt.Errorf("format %d; this program reads formats %d and %d", n, format, formatCuts)
}

// blocks returns the number of blocks for n raw bytes.
func blocks(n int64) int { return int(n/blockBytes + min(1, n%blockBytes)) }

// parsePart parses and checks a part file. The result can be used without further checks of
// indices, sizes or offsets.
func parsePart(b []byte) (*part, error) {
	p := &part{}
	err := jsonread.Strict(b, p)
	if known := p.Format == format || p.Format == formatCuts; !known && (err == nil || p.Format != 0) {
		return nil, unknownFormat(p.Format)
	}
	if err != nil {
		return nil, err
	}
	if p.Writer < 0 || p.Step < 0 {
		return nil, fmt.Errorf("writer %d, step %d", p.Writer, p.Step)
	}
	if cuts := p.cuts(); cuts != (p.Format == formatCuts) {
		return nil, fmt.Errorf("format %d, and extents of parts: %v", p.Format, cuts)
	}
	for i := range p.Files {
		if err := p.checkFile(i); err != nil {
			return nil, fmt.Errorf("%.80q: %w", p.Files[i].Name, err)
		}
	}
	return p, nil
}

// Check implements jsonread.Checked.
func (f *dataFile) Check() error {
	if len(f.CRC) != 1 || len(f.HeaderCRC) != 1 || f.Header < 8 || f.Header > maxHeader || f.Bytes < f.Header {
		return fmt.Errorf("%.80q has %d bytes, a header of %d (at most %d), and %d and %d checksums of header and file; want one each", f.Name, f.Bytes, f.Header, maxHeader, len(f.HeaderCRC), len(f.CRC))
	}
	return nil
}

// Check implements jsonread.Checked.
func (e *extent) Check() error {
	switch {
	case e.Codec != codecRaw && e.Codec != codecPlanes:
		return fmt.Errorf("unknown codec %.40q", e.Codec)
	case e.Codec == codecRaw && e.Stored != nil:
		return errors.New("codec raw must not have stored sizes")
	case e.Codec == codecPlanes && len(e.Stored) != len(e.CRC):
		return fmt.Errorf("%d stored sizes for %d blocks", len(e.Stored), len(e.CRC))
	case len(e.CRC) == 0:
		return errors.New("no checksums")
	}
	return nil
}

func (p *part) checkFile(i int) error {
	f := &p.Files[i]
	if f.Name != dataName(p.Writer, i) {
		return fmt.Errorf("file %d of writer %d should be %s", i, p.Writer, dataName(p.Writer, i))
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
	param, err := e.Cut.param(t)
	if err != nil {
		return err
	}
	if e.Lo < 0 || e.Hi <= e.Lo || e.Hi > param.Numel() {
		return fmt.Errorf("%v: elements [%d, %d) of %d", t, e.Lo, e.Hi, param.Numel())
	}
	n := blocks(e.raw(t.DType.Size()))
	if len(e.CRC) != n {
		return fmt.Errorf("%v: %d checksums for %d blocks", t, len(e.CRC), n)
	}
	for i, s := range e.Stored {
		if most := e.rawBlock(i, t.DType.Size()); s < 1 || int(s) > most+1 {
			return fmt.Errorf("%v: block %d of %d bytes stored as %d", t, i, most, s)
		}
	}
	return nil
}

// union merges the tensors of all parts, sorted, and returns an error if two parts disagree on one.
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

// checkComplete checks that the parts contain every element of every tensor exactly once, and
// nothing else.
func checkComplete(tensors []Tensor, parts []*part) error {
	index := indexOf(tensors)
	for _, p := range parts {
		for _, f := range p.Files {
			for i := range f.Extents {
				e := &f.Extents[i]
				t := p.Tensors[e.Tensor]
				s := index[t.key()]
				if s == nil {
					return fmt.Errorf("%v was written but is not in the list of tensors", t)
				}
				s.add(located{e, nil})
			}
		}
	}
	for _, t := range tensors {
		if err := index[t.key()].sort(); err != nil {
			return fmt.Errorf("%v: %w", t, err)
		}
	}
	return nil
}
