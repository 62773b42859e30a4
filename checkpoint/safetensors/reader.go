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
	"zeroth/internal/input/jsonread"
)

const (
	single    = "model.safetensors"
	indexName = "model.safetensors.index.json"
	MaxIndex  = 32 << 20 // bytes of an index
	maxParts  = 1 << 14
)

// Reader reads tensors from a file or a folder. Its methods are safe for concurrent use.
type Reader struct {
	files   map[string]vfs.File // by Tensor.File
	tensors []Tensor            // sorted by name
	byName  map[string]int      // index into tensors
}

// Open opens a safetensors file, or a folder with model.safetensors, or with
// model.safetensors.index.json and its parts.
func Open(path string) (*Reader, error) { return OpenIn(vfs.OS{}, path) }

// OpenIn is like Open in another file system.
func OpenIn(fsys vfs.FS, path string) (*Reader, error) {
	r := &Reader{files: map[string]vfs.File{}, byName: map[string]int{}}
	if err := r.open(fsys, path); err != nil {
		r.Close()
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	sort.Slice(r.tensors, func(i, j int) bool { return r.tensors[i].Name < r.tensors[j].Name })
	for i, t := range r.tensors {
		r.byName[t.Name] = i
	}
	return r, nil
}

func (r *Reader) open(fsys vfs.FS, path string) error {
	e, err := fsys.Stat(path)
	if err != nil {
		return err
	}
	if e.Kind != vfs.Dir {
		return r.add(fsys, path, nil)
	}
	whole := filepath.Join(path, single)
	_, noWhole := fsys.Stat(whole)
	if noWhole != nil && !errors.Is(noWhole, fs.ErrNotExist) {
		return noWhole
	}
	index := filepath.Join(path, indexName)
	parts, err := readIndex(fsys, index)
	switch {
	case errors.Is(err, fs.ErrNotExist) && noWhole == nil:
		return r.add(fsys, whole, nil)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: has neither %s nor %s", path, single, indexName)
	case err != nil:
		return fmt.Errorf("%s: %w", index, err)
	case noWhole == nil && (len(parts) != 1 || parts[single] == nil):
		return fmt.Errorf("%s: has both %s and %s with other files: remove those that do not belong to the model", path, single, indexName)
	}
	if err := checkStray(fsys, path, parts); err != nil {
		return err
	}
	for _, name := range sortedKeys(parts) {
		if err := r.add(fsys, filepath.Join(path, name), parts[name]); err != nil {
			return err
		}
	}
	return nil
}

// checkStray returns an error if a folder has parts of a model that its index does not name:
// then either they or the index belong to another model.
func checkStray(fsys vfs.FS, folder string, parts map[string]map[string]bool) error {
	in, err := fsys.List(folder)
	if err != nil {
		return err
	}
	for _, e := range in {
		if part, _ := filepath.Match("model-*-of-*.safetensors", e.Name); part && parts[e.Name] == nil {
			return fmt.Errorf("%s: %s names no tensor in the existing file %s: remove files that do not belong to the model", folder, indexName, e.Name)
		}
	}
	return nil
}

// readIndex returns the tensor names of each part of a folder.
func readIndex(fsys vfs.FS, path string) (map[string]map[string]bool, error) {
	b, err := vfs.ReadFile(fsys, path, MaxIndex)
	if err != nil {
		return nil, err
	}
	return ParseIndex(b)
}

// ParseIndex returns the tensors in each file of an index's weight_map and ignores other keys. Its values must be plain
// file names, because a path could lead out of the folder.
func ParseIndex(b []byte) (map[string]map[string]bool, error) {
	if other := knownFormat(b); other != "" {
		return nil, fmt.Errorf("it is %s, not an index", other)
	}
	parts, n := map[string]map[string]bool{}, 0
	err := jsonread.All(b, func(r *jsonread.Reader) error {
		return r.Object(func(key string) error {
			if key != "weight_map" {
				_, err := r.Raw()
				return err
			}
			return r.Object(func(tensor string) error {
				file, err := r.String()
				if err != nil {
					return err
				}
				if n++; n > MaxTensors {
					return fmt.Errorf("more than %d tensors", MaxTensors)
				}
				return addPart(parts, tensor, file)
			})
		})
	})
	if err == nil && len(parts) == 0 {
		err = errors.New("no weight_map")
	}
	if err != nil {
		return nil, err
	}
	return parts, nil
}

// addPart adds a tensor to its part.
func addPart(parts map[string]map[string]bool, tensor, file string) error {
	if file == "" || file == ".." || file == "." || len(file) > 255 || strings.ContainsAny(file, `/\`) || filepath.Base(file) != file {
		return fmt.Errorf("tensor %.80q: part %.300q is not a plain file name", tensor, file)
	}
	if parts[file] == nil {
		if len(parts) == maxParts {
			return fmt.Errorf("more than %d parts", maxParts)
		}
		parts[file] = map[string]bool{}
	}
	parts[file][tensor] = true
	return nil
}

// add opens one file. If want is not nil, the file must have exactly those tensors.
func (r *Reader) add(fsys vfs.FS, path string, want map[string]bool) error {
	f, err := fsys.Open(path)
	if err != nil {
		return err
	}
	r.files[path] = f
	size, err := f.Size()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	ts, _, err := ParseHeader(f, size)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for i := range ts {
		if want != nil && !want[ts[i].Name] {
			return fmt.Errorf("%s: tensor %.200q is not listed for this file in %s", path, ts[i].Name, indexName)
		}
		delete(want, ts[i].Name)
		ts[i].File = path
	}
	for name := range want {
		return fmt.Errorf("%s: no tensor %.200q, although %s lists it for this file", path, name, indexName)
	}
	r.tensors = append(r.tensors, ts...)
	return nil
}

// Tensors returns all tensors, sorted by name. The caller must not modify the slice.
func (r *Reader) Tensors() []Tensor { return r.tensors }

// Tensor returns the tensor with the given name, and whether it exists.
func (r *Reader) Tensor(name string) (Tensor, bool) {
	i, ok := r.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return r.tensors[i], true
}

// ReadRaw reads elements [lo, hi) of the flattened tensor as stored. dst must have exactly
// their size.
func (r *Reader) ReadRaw(name string, lo, hi int, dst []byte) error {
	t, err := r.check(name, lo, hi)
	if err != nil {
		return err
	}
	size := t.DType.Size()
	if size == 0 {
		return fmt.Errorf("safetensors: %s: tensor %.200q: single elements of %s cannot be read", t.File, name, t.DType)
	}
	if len(dst) != (hi-lo)*size {
		panic(fmt.Sprintf("safetensors: %d bytes for elements [%d, %d) of %s", len(dst), lo, hi, t.DType))
	}
	at := t.Begin + int64(lo)*int64(size)
	if err := vfs.ReadFull(r.files[t.File], dst, at); err != nil {
		return fmt.Errorf("safetensors: %s: tensor %.200q, elements [%d, %d), offset %d: %w", t.File, name, lo, hi, at, err)
	}
	return nil
}

// ReadF32 reads elements [lo, hi) of the flattened tensor, widened to float32,
// into dst of length hi-lo.
func (r *Reader) ReadF32(name string, lo, hi int, dst []float32) error {
	t, err := r.check(name, lo, hi)
	if err != nil {
		return err
	}
	if len(dst) != hi-lo {
		panic(fmt.Sprintf("safetensors: %d elements for [%d, %d)", len(dst), lo, hi))
	}
	if err := t.Weights(); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	if t.DType == F32 && littleEndian {
		return r.ReadRaw(name, lo, hi, bytesOf(dst))
	}
	bufp := buffers.Get().(*[]byte)
	defer buffers.Put(bufp)
	for len(dst) > 0 {
		n := min(len(dst), len(*bufp)/t.DType.Size())
		b := (*bufp)[:n*t.DType.Size()]
		if err := r.ReadRaw(name, lo, lo+n, b); err != nil {
			return err
		}
		Decode(dst[:n], b, t.DType)
		dst, lo = dst[n:], lo+n
	}
	return nil
}

// buffers is the work space of conversions.
var buffers = sync.Pool{New: func() any { b := make([]byte, 1<<20); return &b }}

func (r *Reader) check(name string, lo, hi int) (Tensor, error) {
	t, ok := r.Tensor(name)
	if !ok {
		return t, fmt.Errorf("safetensors: no tensor %.200q", name)
	}
	if lo < 0 || hi < lo || hi > t.Numel() {
		return t, fmt.Errorf("safetensors: %s: tensor %.200q: elements [%d, %d) of %d", t.File, name, lo, hi, t.Numel())
	}
	return t, nil
}

// Close closes all files.
func (r *Reader) Close() error {
	var first error
	for _, f := range r.files {
		if err := f.Close(); first == nil {
			first = err
		}
	}
	return first
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
