package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/shard"
)

// Checkpoint is a committed checkpoint, open for reading. It keeps its files
// open, so that deleting the checkpoint does not disturb it. Its methods may
// be called from several goroutines at once.
type Checkpoint struct {
	Path    string
	Step    int64
	Seq     int64 // number of the commit
	Created time.Time
	Metrics map[string]float64
	State   []byte   // what Commit was given; not to be changed
	Tensors []Tensor // sorted by name, then kind; not to be changed

	fsys  vfs.FS
	man   *manifest
	names map[string]fileEntry // man.Files
	index map[key]*stored
	files []*source
	read  atomic.Int64
	work  sync.Pool // *scratch
}

// source is an open data file.
type source struct {
	name   string
	writer int
	f      vfs.File
	desc   *dataFile
	part   *part
}

// stored is where a tensor's elements are: in one part, which is all of it, or in several.
type stored struct {
	t     Tensor
	parts []*storedPart
	of    map[string]*storedPart // parts by their cuts' names
}

// storedPart is a part of a tensor.
type storedPart struct {
	cut   *cut
	param shard.Param
	ext   []located // sorted by Lo, covering the part exactly
}

type located struct {
	*extent
	from *source
}

// Open opens a checkpoint's folder. It verifies everything but the contents of
// data files, which are verified as they are read.
func Open(path string) (*Checkpoint, error) { return OpenIn(vfs.OS{}, path) }

// OpenIn is Open in another file system.
func OpenIn(fsys vfs.FS, path string) (*Checkpoint, error) {
	c := &Checkpoint{Path: path, fsys: fsys, index: map[key]*stored{}}
	c.work.New = func() any { return newScratch() }
	if err := c.open(); err != nil {
		c.Close()
		if gone(fsys, path) {
			err = ErrGone
		}
		return nil, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	return c, nil
}

// ErrGone means that there is no such folder: often because retention deleted
// the checkpoint while it was opened. What is open stays readable.
var ErrGone = errors.New("is not there, or was deleted while it was opened (retention does that when newer ones come)")

// gone is whether a folder is not there, any more. Deleting a checkpoint
// renames its folder first, so what is found wrong in one that is there is
// damage.
func gone(fsys vfs.FS, path string) bool {
	_, err := fsys.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// Find is Open of what Resolve finds. If that is deleted before it is open, as
// when a run that saves keeps only the newest, it looks again.
func Find(root, which string) (*Checkpoint, error) { return FindIn(vfs.OS{}, root, which) }

// FindIn is Find in another file system.
func FindIn(fsys vfs.FS, root, which string) (c *Checkpoint, err error) {
	for range tries {
		var path string
		if path, err = ResolveIn(fsys, root, which); err != nil {
			return nil, err
		}
		if c, err = OpenIn(fsys, path); !errors.Is(err, ErrGone) || path == which {
			break
		}
	}
	return c, err
}

// tries is how often a folder is looked at again whose checkpoints come and go.
const tries = 100

func (c *Checkpoint) open() error {
	m, err := readManifest(c.fsys, c.Path)
	if err != nil {
		return err
	}
	c.man, c.Tensors, c.names = m, m.Tensors, map[string]fileEntry{}
	for _, f := range m.Files {
		c.names[f.Name] = f
	}
	c.Step, c.Seq, c.Created, c.Metrics = m.Step, m.Seq, m.Created, m.Metrics
	if err := sizes(c.fsys, c.Path, m); err != nil {
		return err
	}
	if c.State, err = readListed(c.fsys, c.Path, c.names[stateName]); err != nil {
		return err
	}
	for _, t := range m.Tensors {
		c.index[t.key()] = &stored{t: t, of: map[string]*storedPart{}}
	}
	for w := range m.Writers {
		if err := c.openPart(w); err != nil {
			return err
		}
	}
	if m.Format == formatCuts && !slices.ContainsFunc(c.files, func(f *source) bool { return f.part.Format == formatCuts }) {
		return &Damage{File: manifestName, Why: fmt.Sprintf("is of format %d, and no part file is", m.Format)}
	}
	described := map[string]bool{}
	for _, f := range c.files {
		described[f.name] = true
	}
	for _, f := range m.Files {
		if isData(f.Name) && !described[f.Name] {
			return &Damage{File: manifestName, Why: fmt.Sprintf("lists %s, which no part file describes", f.Name)}
		}
	}
	for _, t := range m.Tensors {
		if err := c.index[t.key()].sort(); err != nil {
			return &Damage{File: manifestName, Name: t.Name, Kind: t.Kind, Why: err.Error()}
		}
	}
	return nil
}

func (c *Checkpoint) openPart(w int) error {
	name := partName(w)
	b, err := readListed(c.fsys, c.Path, c.names[name])
	if err != nil {
		return err
	}
	p, err := parsePart(b)
	if err == nil && p.Format > c.man.Format {
		err = fmt.Errorf("is of format %d, the manifest of %d", p.Format, c.man.Format)
	}
	if err == nil && (p.Nonce != c.man.Nonce || p.Writer != w || p.Step != c.man.Step) {
		err = fmt.Errorf("is of save %s (step %d, writer %d), the manifest of %s (step %d)", p.Nonce, p.Step, p.Writer, c.man.Nonce, c.man.Step)
	}
	if err != nil {
		return &Damage{File: name, Why: err.Error()}
	}
	for i := range p.Files {
		if err := c.openData(p, i); err != nil {
			return err
		}
	}
	return nil
}

func (c *Checkpoint) openData(p *part, i int) error {
	d := &p.Files[i]
	if e, ok := c.names[d.Name]; !ok || e.Bytes != d.Bytes || e.CRC[0] != d.CRC[0] {
		return &Damage{File: partName(p.Writer), Why: fmt.Sprintf("and the manifest disagree on %s", d.Name)}
	}
	f, err := c.fsys.Open(filepath.Join(c.Path, d.Name))
	if err != nil {
		return err
	}
	src := &source{d.Name, p.Writer, f, d, p}
	c.files = append(c.files, src)
	for j := range d.Extents {
		e := &d.Extents[j]
		t := p.Tensors[e.Tensor]
		s := c.index[t.key()]
		if s == nil || !s.t.same(t) {
			return &Damage{File: partName(p.Writer), Name: t.Name, Kind: t.Kind, Why: "the manifest has no such tensor"}
		}
		s.add(located{e, src})
	}
	return nil
}

// add adds an extent, which has been checked by itself.
func (s *stored) add(e located) {
	name := e.Cut.String()
	p := s.of[name]
	if p == nil {
		p = &storedPart{cut: e.Cut}
		p.param, _ = e.Cut.param(s.t) // checked when it was parsed
		s.of[name], s.parts = p, append(s.parts, p)
	}
	p.ext = append(p.ext, e)
}

// sort orders the extents and checks that they cover the tensor exactly.
func (s *stored) sort() error {
	of := map[string]*partRanges{}
	for name, p := range s.of {
		sort.Slice(p.ext, func(i, j int) bool { return p.ext[i].Lo < p.ext[j].Lo })
		of[name] = &partRanges{cut: p.cut}
		for _, e := range p.ext {
			of[name].ranges = append(of[name].ranges, e.rng())
		}
	}
	slices.SortFunc(s.parts, func(a, b *storedPart) int { return cmp.Compare(a.cut.first(), b.cut.first()) })
	return whole(s.t, of)
}

// Close closes the files.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.f.Close())
	}
	c.files = nil
	return errors.Join(errs...)
}

// Tensor finds a tensor.
func (c *Checkpoint) Tensor(name, kind string) (Tensor, bool) {
	s, ok := c.index[key{name, kind}]
	if !ok {
		return Tensor{}, false
	}
	return s.t, true
}

// Writers is how many writers the checkpoint had.
func (c *Checkpoint) Writers() int { return c.man.Writers }

// Bytes is the size of all files.
func (c *Checkpoint) Bytes() int64 { return c.man.bytes() }

// BytesRead is how many bytes of data files were read so far.
func (c *Checkpoint) BytesRead() int64 { return c.read.Load() }

// Piece is a run of elements of a tensor, or of a part of one, in a file.
type Piece struct {
	Part   string // which part of the tensor Range counts in, such as {1:0-4} for columns 0 to 3; "": all of it
	Range  shard.Range
	Writer int
	File   string
	Offset int64  // bytes from the start of the file
	Bytes  int64  // in the file
	Codec  string // raw or planes
}

// Pieces is how a tensor is stored, part by part, by rising elements.
func (c *Checkpoint) Pieces(name, kind string) []Piece {
	s := c.index[key{name, kind}]
	if s == nil {
		return nil
	}
	var out []Piece
	for _, p := range s.parts {
		for _, e := range p.ext {
			out = append(out, Piece{e.Cut.String(), e.rng(), e.from.writer, e.from.name, e.Offset, e.bytes(s.t.DType.Size()), e.Codec})
		}
	}
	return out
}

// Damage is a place where a checkpoint is not what was written.
type Damage struct {
	File   string
	Offset int64       // bytes, of the block; 0 for a whole file
	Name   string      // of the tensor, empty where it concerns none
	Kind   string      // of the tensor
	Range  shard.Range // elements of the tensor that are lost
	Why    string
}

func (d *Damage) Error() string {
	if d.Name == "" {
		return d.File + ": " + d.Why
	}
	return fmt.Sprintf("%s: offset %d: %v, elements [%d, %d): %s", d.File, d.Offset, Tensor{Name: d.Name, Kind: d.Kind}, d.Range.Lo, d.Range.Hi, d.Why)
}
