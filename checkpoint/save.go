package checkpoint

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"time"

	"zeroth/checkpoint/store"
	"zeroth/checkpoint/vfs"
)

// Options configure how a save is written; they do not affect how it is read. The zero value writes
// raw data with a few workers to the machine's file system.
type Options struct {
	FS       vfs.FS      // default: the machine's
	Workers  int         // goroutines of each Writer; default 2, or 1 on one processor
	Compress Compression // of the data files
	Tuner    *Tuner      // for Compress Auto; reused from save to save
	Expect   int64       // approximate bytes of the save: Begin fails if there is less space; 0 if unknown
	Hold     *Hold       // of the folder, held longer than this save; if nil, the save acquires its own

	headerBytes int   // see writer.go; tests use small values
	fileBytes   int64 // bytes
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = store.Files{}
	}
	o.Workers = cmp.Or(o.Workers, defaultWorkers())
	o.headerBytes = cmp.Or(o.headerBytes, headerBytes)
	o.fileBytes = cmp.Or(o.fileBytes, fileBytes)
	return o
}

// Save is a save in progress: a temporary folder that Commit turns into a checkpoint. One process
// begins it and commits or aborts it; in between it holds the folder's lock, so that no other
// process saves or prunes there. Other processes join the save by its nonce. The methods must be
// called from one goroutine.
type Save struct {
	Step    int64
	Nonce   string // 16 hexadecimal digits, unique to this attempt
	Cleaned Pruned // leftovers of interrupted saves that Begin found

	opt  Options
	root string
	tmp  string
	hold *Hold // nil if the Save was joined, or is finished
}

// Begin starts a save in the folder root, which it creates if needed, and removes leftovers of
// interrupted saves.
func Begin(root string, step int64, opt Options) (*Save, error) {
	s, err := newSave(root, step, newNonce(), opt)
	if err != nil {
		return nil, err
	}
	if err := s.begin(); err != nil {
		return nil, errors.Join(fmt.Errorf("begin save of step %d in %s: %w", step, root, err), s.unlock())
	}
	return s, nil
}

func newSave(root string, step int64, nonce string, opt Options) (*Save, error) {
	if step < 0 {
		return nil, fmt.Errorf("save of step %d: steps are not negative", step)
	}
	s := &Save{Step: step, Nonce: nonce, root: root, opt: opt.withDefaults()}
	s.tmp = vfs.Join(root, tmpPrefix+stepName(step, 0)+"-"+nonce)
	return s, nil
}

func newNonce() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

var nonceForm = regexp.MustCompile(`^[0-9a-f]{16}$`)

func (s *Save) begin() (err error) {
	if s.hold = s.opt.Hold; s.hold == nil {
		if s.hold, err = HoldFolder(s.opt.FS, s.root); err != nil {
			return err
		}
	}
	if err := s.Cleaned.clean(s.opt.FS, s.root, remove); err != nil {
		return err
	}
	if err := s.checkSpace(); err != nil {
		return err
	}
	return s.opt.FS.Mkdir(s.tmp) // no sync needed: only the final name must survive
}

// ErrNoSpace means that a save was not begun because the disk has too little space.
var ErrNoSpace = errors.New("the disk has too little space")

// checkSpace returns an error if there is too little space for the save. Then nothing is
// written, and older checkpoints are not touched.
func (s *Save) checkSpace() error {
	free, err := s.opt.FS.Space(s.root)
	if errors.Is(err, errors.ErrUnsupported) || s.opt.Expect == 0 {
		return nil
	}
	if err == nil && free < s.opt.Expect {
		where := s.root
		if f, ok := s.opt.FS.(apart); ok {
			where = f.OnDisk(s.root)
		}
		return fmt.Errorf("%w: the save needs %d bytes, but only %d are free in %s", ErrNoSpace, s.opt.Expect, free, where)
	}
	return err
}

// Join joins a save that another process began.
func Join(root string, step int64, nonce string, opt Options) (*Save, error) {
	if !nonceForm.MatchString(nonce) {
		return nil, fmt.Errorf("join save of step %d: nonce %q is not 16 hexadecimal digits", step, nonce)
	}
	s, err := newSave(root, step, nonce, opt)
	if err != nil {
		return nil, err
	}
	if _, err := s.opt.FS.Stat(s.tmp); err != nil {
		return nil, fmt.Errorf("join save of step %d: %w (ranks must see the same folder)", step, err)
	}
	return s, nil
}

// Writer starts the writer of one rank. Each number from 0 up to the number of writers must be used
// exactly once in a save, across all processes.
func (s *Save) Writer(rank int) *Writer {
	if rank < 0 {
		panic(fmt.Sprintf("checkpoint: writer %d", rank))
	}
	return newWriter(s.opt.FS, s.tmp, s.Step, s.Nonce, rank, s.opt)
}

// Commit holds the parts of a save and the additions of the committing process.
type Commit struct {
	Parts   []PartFile         // of every writer
	Tensors []Tensor           // exactly those that must be present; nil for those that were put
	State   []byte             // state.json: anything else needed to resume
	Metrics map[string]float64 // for retention by metric; finite
	Base    string             // name of the base folder in the same root with the other tensors; "" if these are all
	AsBase  bool               // commits a base folder for checkpoints to come, not a checkpoint
}

// Commit checks that the parts are complete and belong to this save, and turns them into a
// checkpoint. It returns the checkpoint's folder. After an error there is no checkpoint, unless
// only the very last sync failed. Call Abort in either case.
func (s *Save) Commit(c Commit) (string, error) {
	path, err := s.commit(c)
	if err != nil {
		return "", fmt.Errorf("commit of step %d in %s: %w", s.Step, s.root, err)
	}
	return path, s.unlock()
}

func (s *Save) commit(c Commit) (string, error) {
	if s.hold == nil {
		return "", errors.New("only the process that began the save commits it, once")
	}
	m, err := s.manifest(c)
	if err != nil {
		return "", err
	}
	b := mustJSON(m)
	if err := readable(b, c.State); err != nil {
		return "", fmt.Errorf("the checkpoint would not be readable: %w", err)
	}
	mark := marker{m.Format, m.Seq, m.Step, m.Nonce, digest(b)}
	for _, f := range []struct {
		name string
		b    []byte
	}{{stateName, c.State}, {manifestName, b}, {commitName, []byte(mark.String())}} {
		if err := vfs.WriteFile(s.opt.FS, vfs.Join(s.tmp, f.name), f.b); err != nil {
			return "", fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if err := s.opt.FS.SyncDir(s.tmp); err != nil {
		return "", err
	}
	if c.AsBase {
		return s.publish(vfs.Join(s.root, basePrefix+mark.manifest))
	}
	return s.rename()
}

// readable returns an error if readers would refuse the checkpoint about to be committed.
func readable(manifest, state []byte) error {
	for name, b := range map[string][]byte{manifestName: manifest, stateName: state} {
		if len(b) > maxJSON {
			return fmt.Errorf("%s has %d bytes, at most %d can be read", name, len(b), maxJSON)
		}
	}
	_, err := parseManifest(manifest)
	return err
}

// rename gives the folder its final name: the step's, with the next free number if an older save of
// the step exists. It does not touch the older folder; Prune removes it.
func (s *Save) rename() (string, error) {
	for try := 0; ; try++ {
		final := vfs.Join(s.root, stepName(s.Step, try))
		if _, err := s.opt.FS.Lstat(final); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		return s.publish(final)
	}
}

// publish gives the folder its final name.
func (s *Save) publish(final string) (string, error) {
	if err := s.opt.FS.Rename(s.tmp, final); err != nil {
		return "", err
	}
	return final, s.opt.FS.SyncDir(s.root)
}

// manifest reads back the part files and describes the checkpoint.
func (s *Save) manifest(c Commit) (*manifest, error) {
	for name, x := range c.Metrics {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, fmt.Errorf("metric %s is %v; omit it", Plain(name), x)
		}
	}
	seq, err := lastSeq(s.opt.FS, s.root)
	if err != nil {
		return nil, err
	}
	m := &manifest{Format: format, Seq: seq + 1, Step: s.Step, Nonce: s.Nonce, Created: time.Now().UTC(),
		Metrics: c.Metrics, Base: c.Base, Writers: len(c.Parts)}
	m.Files = append(m.Files, fileEntry{Name: stateName, Bytes: int64(len(c.State)), SHA256: digest(c.State)})
	parts, err := s.parts(c.Parts, m)
	if err != nil {
		return nil, err
	}
	if m.Tensors, err = union(parts); err != nil {
		return nil, err
	}
	for _, p := range parts {
		m.Format = max(m.Format, p.Format)
	}
	m.setUses()
	want := c.Tensors
	if want == nil {
		want = m.Tensors
	}
	if err := checkTensors(want, m); err != nil {
		return nil, err
	}
	if err := s.checkBase(m); err != nil {
		return nil, err
	}
	return m, checkComplete(m.Tensors, parts)
}

// checkTensors compares the tensors put with those wanted, and lists the latter in m; empty tensors
// need not have been put.
func checkTensors(want []Tensor, m *manifest) error {
	put := map[key]Tensor{}
	for _, t := range m.Tensors {
		put[t.key()] = t
	}
	m.Tensors = make([]Tensor, 0, len(want))
	seen := map[key]bool{}
	for _, t := range want {
		if err := t.Check(); err != nil {
			return err
		}
		if seen[t.key()] {
			return fmt.Errorf("%v is listed twice", t)
		}
		seen[t.key()] = true
		if p, ok := put[t.key()]; ok && !p.same(t) {
			return fmt.Errorf("%v was put as %s%v, not %s%v", t, p.DType, p.Shape, t.DType, t.Shape)
		}
		if t.Shape == nil {
			t.Shape = []int{}
		}
		m.Tensors = append(m.Tensors, t)
	}
	byKey(m.Tensors)
	return nil
}

// parts reads the part files, checks that each belongs to this save and that its data files have the
// right size, and lists all files in m.
func (s *Save) parts(ps []PartFile, m *manifest) ([]*part, error) {
	if len(ps) == 0 {
		return nil, errors.New("no parts")
	}
	out := make([]*part, len(ps))
	for _, p := range ps {
		if p.Writer < 0 || p.Writer >= len(ps) || out[p.Writer] != nil {
			return nil, fmt.Errorf("%d parts, one of them from writer %d: want one part per writer", len(ps), p.Writer)
		}
		e := fileEntry{Name: partName(p.Writer), Bytes: p.Bytes, SHA256: p.SHA256}
		b, err := readListed(s.opt.FS, s.tmp, e)
		if err != nil {
			return nil, err
		}
		x, err := parsePart(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name, err)
		}
		if x.Nonce != s.Nonce || x.Step != s.Step || x.Writer != p.Writer {
			return nil, fmt.Errorf("%s belongs to save %s (step %d, writer %d), not to %s", e.Name, x.Nonce, x.Step, x.Writer, s.Nonce)
		}
		out[p.Writer] = x
		m.Files = append(m.Files, e)
		if err := s.addData(x, m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *Save) addData(p *part, m *manifest) error {
	for _, f := range p.Files {
		e, err := s.opt.FS.Stat(vfs.Join(s.tmp, f.Name))
		if errors.Is(err, fs.ErrNotExist) && s.isApart() { // on another host
			e.Bytes, err = f.Bytes, nil
		}
		if err != nil {
			return err
		}
		if e.Bytes != f.Bytes {
			return fmt.Errorf("%s has %d bytes, its writer says %d", f.Name, e.Bytes, f.Bytes)
		}
		m.Files = append(m.Files, fileEntry{Name: f.Name, Bytes: f.Bytes, CRC: f.CRC})
	}
	return nil
}

// Abort removes the temporary folder and releases the lock. After Commit it does nothing, so
// it can be deferred.
func (s *Save) Abort() error {
	if s.hold == nil {
		return nil
	}
	var p Pruned
	return errors.Join(p.take(s.opt.FS, s.tmp, remove), s.unlock())
}

func (s *Save) unlock() error {
	if s.hold == nil {
		return nil
	}
	held := s.hold
	if s.hold = nil; held == s.opt.Hold {
		return nil
	}
	return held.Close()
}
