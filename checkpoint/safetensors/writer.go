package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"zeroth/checkpoint/vfs"
)

// Writer writes a set of tensors, fixed when it is created, piece by piece, in any order and from
// several goroutines. It holds no tensor data.
//
// It writes files under temporary names (the final name plus ".tmp"). Close renames them after
// everything is written and synced, a folder's index last. So there is never a partial file under a
// final name, and a folder from an interrupted export has no index and does not open.
type Writer struct {
	fsys    vfs.FS
	dir     string
	out     []*outFile
	targets map[string]*target
	index   []byte // of a folder with several parts, otherwise nil

	mu   sync.Mutex
	err  error // the first error; makes Close fail
	done bool  // Close or Abort was called
}

type outFile struct {
	name string // final, in dir
	f    vfs.File
}

type target struct {
	Tensor
	f       vfs.File
	written []span // sorted, disjoint, not adjacent; under Writer.mu
}

type span struct{ lo, hi int } // elements [lo, hi)

// Create begins a single file. Close replaces an existing one.
func Create(path string, specs []Spec, meta map[string]string) (*Writer, error) {
	return CreateIn(vfs.OS{}, path, specs, meta)
}

// CreateIn is like Create in another file system.
func CreateIn(fsys vfs.FS, path string, specs []Spec, meta map[string]string) (*Writer, error) {
	return create(fsys, filepath.Dir(path), []string{filepath.Base(path)}, [][]Spec{specs}, meta)
}

// CreateFolderIn begins model.safetensors in a folder or, if the tensors have more than limit
// bytes, numbered parts of at most limit bytes each (a larger tensor gets a part of its own)
// and an index. Tensors fill the parts greedily in the given order. It refuses a folder that
// already contains a model.
func CreateFolderIn(fsys vfs.FS, dir string, limit int64, specs []Spec, meta map[string]string) (*Writer, error) {
	if limit < 1 {
		return nil, fmt.Errorf("safetensors: invalid limit of %d bytes per part", limit)
	}
	for _, name := range []string{single, indexName} {
		if _, err := fsys.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			if err == nil {
				err = fmt.Errorf("safetensors: %s: already contains %s; remove it or write to another folder", dir, name)
			}
			return nil, err
		}
	}
	if err := vfs.MkdirAll(fsys, dir); err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	groups := split(specs, limit)
	names := partNames(len(groups))
	w, err := create(fsys, dir, names, groups, meta)
	if err == nil && len(groups) > 1 {
		w.index = renderIndex(names, groups)
	}
	return w, err
}

func create(fsys vfs.FS, dir string, names []string, groups [][]Spec, meta map[string]string) (*Writer, error) {
	w := &Writer{fsys: fsys, dir: dir, targets: map[string]*target{}}
	for i, g := range groups {
		if err := w.begin(names[i], g, meta); err != nil {
			return nil, errors.Join(err, w.Abort())
		}
	}
	return w, nil
}

// begin creates one temporary file with its header.
func (w *Writer) begin(name string, specs []Spec, meta map[string]string) error {
	ts, err := layOut(specs)
	if err != nil {
		return err
	}
	head, err := AppendHeader(nil, ts, meta, dataAlign, 0)
	if err != nil {
		return err
	}
	tmp := filepath.Join(w.dir, name+".tmp")
	if err := w.removeOld(tmp); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	f, err := w.fsys.Create(tmp)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	w.out = append(w.out, &outFile{name, f})
	for _, t := range ts {
		if w.targets[t.Name] != nil {
			return fmt.Errorf("safetensors: tensor %.200q announced twice", t.Name)
		}
		t.File = filepath.Join(w.dir, name)
		t.Begin, t.End = t.Begin+int64(len(head)), t.End+int64(len(head))
		w.targets[t.Name] = &target{Tensor: t, f: f}
	}
	if _, err := f.WriteAt(head, 0); err != nil {
		return fmt.Errorf("safetensors: %s: %w", tmp, err)
	}
	return nil
}

// removeOld removes a temporary file left by an interrupted writer, but nothing other than a file.
func (w *Writer) removeOld(tmp string) error {
	e, err := w.fsys.Lstat(tmp)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case e.Kind != vfs.Regular:
		return fmt.Errorf("%s already exists and is %v", tmp, e.Kind)
	}
	return w.fsys.Remove(tmp)
}

// layOut sorts tensors in the order of the file and sets their offsets in the data.
func layOut(specs []Spec) ([]Tensor, error) {
	ts := make([]Tensor, len(specs))
	for i, s := range specs {
		if err := s.check(); err != nil {
			return nil, err
		}
		ts[i].Spec = s
	}
	sort.SliceStable(ts, func(i, j int) bool {
		if a, b := ts[i].DType.Size(), ts[j].DType.Size(); a != b {
			return a > b
		}
		return ts[i].Name < ts[j].Name
	})
	at := int64(0)
	for i := range ts {
		n, _ := byteLen(ts[i].DType, ts[i].Shape)
		if at+n < at {
			return nil, fmt.Errorf("safetensors: tensor %.200q: the file would have more than 2^63 bytes", ts[i].Name)
		}
		ts[i].Begin, ts[i].End = at, at+n
		at += n
	}
	return ts, nil
}

// WriteF32 writes elements [lo, lo+len(src)) of the flattened tensor, rounded to its dtype, or
// returns a *device.TooLarge error.
// Each element must be written once; src is not retained.
func (w *Writer) WriteF32(name string, lo int, src []float32) error {
	t, err := w.claim(name, lo, len(src))
	if err != nil {
		return err
	}
	if !t.DType.Float() {
		return w.fail(fmt.Errorf("safetensors: tensor %.200q is %s, not a float that can be written from float32", name, t.DType))
	}
	if t.DType == F32 && littleEndian {
		return w.write(t, lo, bytesOf(src))
	}
	bufp := buffers.Get().(*[]byte)
	defer buffers.Put(bufp)
	for len(src) > 0 {
		n := min(len(src), len(*bufp)/t.DType.Size())
		b := (*bufp)[:n*t.DType.Size()]
		if err := Narrow(b, src[:n], t.DType, name, lo); err != nil {
			return w.fail(err)
		}
		if err := w.write(t, lo, b); err != nil {
			return err
		}
		src, lo = src[n:], lo+n
	}
	return nil
}

func (w *Writer) write(t *target, lo int, b []byte) error {
	at := t.Begin + int64(lo)*int64(t.DType.Size())
	if _, err := t.f.WriteAt(b, at); err != nil {
		return w.fail(fmt.Errorf("safetensors: %s.tmp: tensor %.200q, offset %d: %w", t.File, t.Name, at, err))
	}
	return nil
}

// fail records the first error for Close.
func (w *Writer) fail(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	return err
}

// claim records that elements [lo, lo+n) are written, and returns an error if any was written before.
func (w *Writer) claim(name string, lo, n int) (*target, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.targets[name]
	if w.done {
		return nil, errors.New("safetensors: write after Close")
	}
	if t == nil {
		return nil, fmt.Errorf("safetensors: tensor %.200q was not announced", name)
	}
	hi := lo + n
	if lo < 0 || n < 0 || hi > t.Numel() {
		return nil, fmt.Errorf("safetensors: tensor %.200q: elements [%d, %d) of %d", name, lo, hi, t.Numel())
	}
	if n == 0 {
		return t, nil
	}
	s := t.written
	i := sort.Search(len(s), func(i int) bool { return s[i].hi >= lo }) // first adjacent or later span
	j := i
	for ; j < len(s) && s[j].lo <= hi; j++ {
		if max(lo, s[j].lo) < min(hi, s[j].hi) {
			return nil, fmt.Errorf("safetensors: tensor %.200q: elements [%d, %d) written twice", name, max(lo, s[j].lo), min(hi, s[j].hi))
		}
	}
	merged := span{lo, hi}
	if j > i {
		merged = span{min(lo, s[i].lo), max(hi, s[j-1].hi)}
	}
	t.written = append(s[:i:i], append([]span{merged}, s[j:]...)...)
	return t, nil
}

// Close checks that every element was written, makes the files durable and renames them to their
// final names. After an error no file has its final name; if a rename failed, at least the index
// does not.
func (w *Writer) Close() error {
	if err := w.finish(); err != nil {
		return errors.Join(err, w.Abort())
	}
	for _, o := range w.out {
		final := filepath.Join(w.dir, o.name)
		if err := w.fsys.Rename(final+".tmp", final); err != nil {
			return errors.Join(fmt.Errorf("safetensors: %w", err), w.Abort())
		}
	}
	w.out = nil
	if w.index != nil {
		if err := w.writeIndex(); err != nil {
			return fmt.Errorf("safetensors: %w", err)
		}
	}
	if err := w.fsys.SyncDir(w.dir); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}

// writeIndex first makes the parts' names durable, so that after a power loss an index never
// exists without its parts.
func (w *Writer) writeIndex() error {
	if err := w.fsys.SyncDir(w.dir); err != nil {
		return err
	}
	final := filepath.Join(w.dir, indexName)
	if err := w.removeOld(final + ".tmp"); err != nil {
		return err
	}
	if err := vfs.WriteFile(w.fsys, final+".tmp", w.index); err != nil {
		return err
	}
	return w.fsys.Rename(final+".tmp", final)
}

func (w *Writer) finish() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return errors.New("safetensors: closed twice")
	}
	w.done = true
	if w.err != nil {
		return w.err
	}
	for _, name := range sortedKeys(w.targets) {
		if err := w.targets[name].missing(); err != nil {
			return err
		}
	}
	for _, o := range w.out {
		if err := o.f.Sync(); err != nil {
			return fmt.Errorf("safetensors: %s: sync: %w", filepath.Join(w.dir, o.name), err)
		}
		err := o.f.Close()
		o.f = nil
		if err != nil {
			return fmt.Errorf("safetensors: %s: %w", filepath.Join(w.dir, o.name), err)
		}
	}
	return nil
}

// missing returns an error that lists elements that were not written.
func (t *target) missing() error {
	var gaps []string
	at := 0
	for _, s := range append(t.written[:len(t.written):len(t.written)], span{t.Numel(), t.Numel()}) {
		if s.lo > at {
			gaps = append(gaps, fmt.Sprintf("[%d, %d)", at, s.lo))
		}
		at = s.hi
	}
	if len(gaps) == 0 {
		return nil
	}
	if more := len(gaps) - 3; more > 0 {
		gaps = append(gaps[:3], fmt.Sprintf("%d more ranges", more))
	}
	return fmt.Errorf("safetensors: %s: tensor %.200q: elements %s of %d were not written", t.File, t.Name, strings.Join(gaps, ", "), t.Numel())
}

// Abort removes the temporary files. After Close it does nothing.
func (w *Writer) Abort() error {
	w.mu.Lock()
	w.done = true
	w.mu.Unlock()
	var errs []error
	for _, o := range w.out {
		if o.f != nil {
			errs = append(errs, o.f.Close())
		}
		if err := w.fsys.Remove(filepath.Join(w.dir, o.name+".tmp")); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	w.out = nil
	return errors.Join(errs...)
}
