package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"

	"zeroth/checkpoint/store"
	"zeroth/checkpoint/vfs"
	"zeroth/shard"
)

// Checkpoint is a committed checkpoint, open for reading. It keeps its files open, so that deleting
// the checkpoint does not disturb it. Its methods are safe for concurrent use.
type Checkpoint struct {
	Path    string
	Step    int64
	Seq     int64 // number of the commit
	Created time.Time
	Metrics map[string]float64
	State   []byte      // as passed to Commit; must not be modified
	Tensors []Tensor    // sorted by name, then kind; must not be modified
	Base    *Checkpoint // the base folder, which has some of the tensors; nil if there is none. Only its description may be used

	fsys  vfs.FS
	man   *manifest
	names map[string]fileEntry // man.Files
	index map[key]*stored
	files []*source
	read  atomic.Int64
}

// source is an open data file.
type source struct {
	name   string
	writer int
	f      vfs.File
	desc   *dataFile
	part   *part
}

// stored locates the elements of a tensor: in a single part if it was saved whole, or in several.
type stored struct {
	t     Tensor
	parts []*storedPart
	byCut map[string]*storedPart // parts by the names of their cuts
}

// storedPart is a stored part of a tensor.
type storedPart struct {
	cut   *cut
	param shard.Param
	ext   []located // sorted by Lo; cover the part exactly
}

type located struct {
	*extent
	from *source
}

// Open opens a checkpoint's folder. It verifies everything except the content of data files, which
// is verified when read.
func Open(path string) (*Checkpoint, error) { return OpenIn(store.Files{}, path) }

// OpenIn is like Open in another file system.
func OpenIn(fsys vfs.FS, path string) (*Checkpoint, error) {
	c := &Checkpoint{Path: path, fsys: fsys}
	if err := c.open(); err != nil {
		c.Close()
		if missing(fsys, path) {
			err = ErrGone
		}
		return nil, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	return c, nil
}

// ErrGone means that the folder does not exist, often because retention deleted the checkpoint
// while it was being opened. A checkpoint already open stays readable.
var ErrGone = errors.New("does not exist, or was deleted while it was being opened (retention deletes older checkpoints)")

// missing reports whether a folder does not exist (any more). Deleting a checkpoint renames
// its folder first, so problems in a folder that exists are damage.
func missing(fsys vfs.FS, path string) bool {
	_, err := fsys.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// Find opens the checkpoint found by Resolve. If that is deleted before it is open, as when a
// running job keeps only the newest, Find tries again.
func Find(root, which string) (*Checkpoint, error) { return FindIn(store.Files{}, root, which) }

// FindIn is like Find in another file system.
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

// tries limits how often a folder with changing checkpoints is read again.
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
	c.index = indexOf(m.Tensors)
	for w := range m.Writers {
		if err := c.openPart(w); err != nil {
			return err
		}
	}
	if m.Format == formatCuts && !slices.ContainsFunc(c.files, func(f *source) bool { return f.part.Format == formatCuts }) {
		return &Damage{File: manifestName, Why: fmt.Sprintf("has format %d, but no part file does", m.Format)}
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
	if m.Base != "" {
		return c.openBase()
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
		err = fmt.Errorf("has format %d, but the manifest has %d", p.Format, c.man.Format)
	}
	if err == nil && (p.Nonce != c.man.Nonce || p.Writer != w || p.Step != c.man.Step) {
		err = fmt.Errorf("belongs to save %s (step %d, writer %d), but the manifest to %s (step %d)", p.Nonce, p.Step, p.Writer, c.man.Nonce, c.man.Step)
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
		return &Damage{File: partName(p.Writer), Why: fmt.Sprintf("disagrees with the manifest on %s", d.Name)}
	}
	f, err := c.fsys.Open(vfs.Join(c.Path, d.Name))
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

// indexOf returns an index of tensors of which nothing is stored yet.
func indexOf(tensors []Tensor) map[key]*stored {
	index := map[key]*stored{}
	for _, t := range tensors {
		index[t.key()] = &stored{t: t, byCut: map[string]*storedPart{}}
	}
	return index
}

// add adds an extent that has been checked on its own.
func (s *stored) add(e located) {
	name := e.Cut.String()
	p := s.byCut[name]
	if p == nil {
		p = &storedPart{cut: e.Cut}
		p.param, _ = e.Cut.param(s.t) // checked when parsed
		s.byCut[name], s.parts = p, append(s.parts, p)
	}
	p.ext = append(p.ext, e)
}

// sort sorts the parts and their extents, and checks that these contain every element of the tensor
// exactly once.
func (s *stored) sort() error {
	if len(s.parts) == 0 {
		return checkCovered(s.t.Numel(), nil)
	}
	slices.SortFunc(s.parts, func(a, b *storedPart) int { return cmp.Compare(a.cut.first(), b.cut.first()) })
	var cuts []*cut
	for _, p := range s.parts {
		slices.SortFunc(p.ext, func(a, b located) int { return cmp.Compare(a.Lo, b.Lo) })
		var ranges []shard.Range
		for _, e := range p.ext {
			ranges = append(ranges, e.rng())
		}
		if err := checkCovered(p.param.Numel(), ranges); err != nil {
			if p.cut != nil {
				err = fmt.Errorf("part %v: %w", p.cut, err)
			}
			return err
		}
		cuts = append(cuts, p.cut)
	}
	return checkDivided(s.t, cuts)
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

// Tensor returns a tensor, and whether it exists.
func (c *Checkpoint) Tensor(name, kind string) (Tensor, bool) {
	s, ok := c.index[key{name, kind}]
	if !ok {
		return Tensor{}, false
	}
	return s.t, true
}

// Writers returns the number of writers that wrote the checkpoint.
func (c *Checkpoint) Writers() int { return c.man.Writers }

// Bytes returns the total size of the files, without those of the base folder.
func (c *Checkpoint) Bytes() int64 { return c.man.bytes() }

// BytesRead returns the number of bytes of data files read so far.
func (c *Checkpoint) BytesRead() int64 { return c.read.Load() }

// Piece is a contiguous range of elements in a file, of a tensor or of a part of one.
type Piece struct {
	Part        string `json:"part,omitempty"` // part of the tensor in which Range counts, such as {1:0-4} for columns 0 to 3; "" for the whole
	shard.Range        // exclusive of Hi
	Writer      int    `json:"writer"`
	File        string `json:"file"`
	Offset      int64  `json:"offset"` // bytes from the start of the file
	Bytes       int64  `json:"bytes"`  // in the file
	Codec       string `json:"codec"`  // raw or planes
}

// Pieces describes how a tensor is stored, part by part, in the order of elements.
func (c *Checkpoint) Pieces(name, kind string) []Piece {
	s := c.index[key{name, kind}]
	if s == nil {
		return nil
	}
	out := []Piece{}
	for _, p := range s.parts {
		for _, e := range p.ext {
			out = append(out, Piece{e.Cut.String(), e.rng(), e.from.writer, e.from.name, e.Offset, e.bytes(s.t.DType.Size()), e.Codec})
		}
	}
	return out
}

// Damage locates an error in the content of a checkpoint.
type Damage struct {
	File        string `json:"file"`
	Offset      int64  `json:"offset"`           // bytes from the start of the file to the block; 0 for a whole file
	Name        string `json:"tensor,omitempty"` // empty if no tensor is affected
	Kind        string `json:"kind,omitempty"`   // of the tensor
	shard.Range        // lost elements of the tensor
	Why         string `json:"why"`
}

func (d *Damage) Error() string {
	if d.Name == "" {
		return d.File + ": " + d.Why
	}
	return fmt.Sprintf("%s: offset %d: %v, elements [%d, %d): %s", d.File, d.Offset, Tensor{Name: d.Name, Kind: d.Kind}, d.Range.Lo, d.Range.Hi, d.Why)
}
