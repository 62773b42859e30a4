package torchfile

import (
	"archive/zip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"zeroth/checkpoint/vfs"
	"zeroth/internal/input"
)

// File is an open torch.save file.
type File struct {
	Object any
	Size   int64 // bytes
	in     *os.File
}

// Close closes the file, after which its tensors cannot be read.
func (f *File) Close() error { return f.in.Close() }

// maxFile exceeds the size of any file.
const maxFile = 1 << 50

// maxPickle is the maximum size of a pickle in bytes.
const maxPickle = 1 << 30

// Open opens a file and reads its object; the tensors' elements stay in the file. The object may use
// as many bytes of memory as the file has, and those in left, initially Slack, which all files of a
// checkpoint share: Open leaves there what the next ones may use.
func Open(path string, left *int64) (*File, error) {
	in, err := input.Open(path, maxFile)
	if err != nil {
		return nil, err
	}
	st, err := in.Stat()
	var v any
	if err == nil {
		v, *left, err = load(path, in, st.Size(), *left)
	}
	if err != nil {
		_ = in.Close() // opened for reading only
		return nil, err
	}
	return &File{v, st.Size(), in}, nil
}

// LoadSmall reads a file of size bytes whose object should be a tensor or a number. path is used in
// messages.
func LoadSmall(path string, r io.ReaderAt, size int64) (any, error) {
	v, _, err := load(path, r, size, Slack/64)
	return v, err
}

// load returns the object of a file, and the rest of its size and slack.
func load(path string, r io.ReaderAt, size, slack int64) (v any, left int64, err error) {
	var head [4]byte
	if err := vfs.ReadFull(r, head[:], 0); err != nil {
		return nil, 0, fmt.Errorf("%s: too short to be a file of torch.save: %w", path, err)
	}
	switch {
	case string(head[:2]) == "PK":
		v, left, err = loadZip(path, r, size, slack)
	case string(head[:]) == "\x80\x02\x8a\x0a":
		v, left, err = loadLegacy(path, r, size, slack)
	default:
		err = errors.New("it is not a file of torch.save: it begins with neither a zip archive nor PyTorch's magic number")
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	return v, left, nil
}

// Pickle reads a file that is a single pickle without tensors. budget limits the bytes of memory
// that its objects may use.
func Pickle(path string, budget int64) (any, error) {
	b, err := input.Read(path, maxPickle)
	if err != nil {
		return nil, err
	}
	v, _, _, err := decode(b, budget+Slack, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return v, nil
}

func loadZip(path string, r io.ReaderAt, size, slack int64) (any, int64, error) {
	list := &directory{r: r, left: (size + slack) / directoryCost}
	z, err := zip.NewReader(list, size)
	if err != nil {
		return nil, 0, err
	}
	used := (size+slack)/directoryCost - list.left
	list.left = math.MaxInt64
	entries := make(map[string]*zip.File, len(z.File))
	pickle := ""
	for _, f := range z.File {
		if entries[f.Name] != nil {
			return nil, 0, fmt.Errorf("entry %.200q exists twice", f.Name)
		}
		entries[f.Name] = f
		if stem, ok := strings.CutSuffix(f.Name, "/data.pkl"); ok && !strings.Contains(stem, "/") {
			if pickle != "" {
				return nil, 0, errors.New("several data.pkl")
			}
			pickle = f.Name
		}
	}
	if pickle == "" {
		return nil, 0, errors.New("a zip archive without data.pkl: it is not a file of torch.save")
	}
	stem := strings.TrimSuffix(pickle, "data.pkl")
	if err := littleEndian(r, entries[stem+"byteorder"], size); err != nil {
		return nil, 0, err
	}
	at, n, err := stored(entries[pickle], size)
	if err == nil && n > maxPickle {
		err = fmt.Errorf("%s: %d bytes; at most %d expected", pickle, n, maxPickle)
	}
	if err != nil {
		return nil, 0, err
	}
	b := make([]byte, n)
	if err := vfs.ReadFull(r, b, at); err != nil {
		return nil, 0, err
	}
	v, _, left, err := decode(b, size-n+slack-directoryCost*used, storagesOf(path, r, map[string]*Storage{}, func(s *Storage) error {
		e := entries[stem+"data/"+s.Key]
		if e == nil {
			return fmt.Errorf("storage %.80q is not in the archive", s.Key)
		}
		at, bytes, err := stored(e, size)
		if s.at = at; err == nil && bytes != s.Bytes {
			err = fmt.Errorf("storage %.80q has %d bytes; the pickle says %d", s.Key, bytes, s.Bytes)
		}
		return err
	}))
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", pickle, err)
	}
	return v, left, nil
}

// directoryCost is an upper bound of the bytes of memory needed per byte of a zip archive's
// directory.
const directoryCost = 10

// directory limits how many bytes of an archive are read while reading its directory, whose entries
// take several times as much memory as space in the file.
type directory struct {
	r    io.ReaderAt
	left int64
}

func (d *directory) ReadAt(b []byte, off int64) (int, error) {
	if d.left -= int64(len(b)); d.left < 0 {
		return 0, errBudget
	}
	return d.r.ReadAt(b, off)
}

// littleEndian refuses an archive marked as big-endian.
func littleEndian(r io.ReaderAt, e *zip.File, size int64) error {
	if e == nil {
		return nil
	}
	at, n, err := stored(e, size)
	if err != nil {
		return err
	}
	b := make([]byte, min(n, 16))
	if err := vfs.ReadFull(r, b, at); err != nil {
		return err
	}
	if string(b) != "little" {
		return fmt.Errorf("its byte order is %q; want little", b)
	}
	return nil
}

// stored locates an entry's bytes.
func stored(e *zip.File, size int64) (at, n int64, err error) {
	if e.Method != zip.Store || e.CompressedSize64 != e.UncompressedSize64 {
		return 0, 0, fmt.Errorf("entry %.200q is compressed; torch.save stores it", e.Name)
	}
	at, err = e.DataOffset()
	if err != nil {
		return 0, 0, fmt.Errorf("entry %.200q: %w", e.Name, err)
	}
	if e.UncompressedSize64 > uint64(size) || at+int64(e.UncompressedSize64) > size {
		return 0, 0, fmt.Errorf("entry %.200q: %d bytes at %d, but the file has %d", e.Name, e.UncompressedSize64, at, size)
	}
	return at, int64(e.UncompressedSize64), nil
}

// storagesOf returns a function that finds the storage of a persistent id in a file, and adds it to known
// after find has located it. All references to a storage must agree.
func storagesOf(path string, r io.ReaderAt, known map[string]*Storage, find func(*Storage) error) func(Tuple) (*Storage, error) {
	return func(id Tuple) (*Storage, error) {
		s, err := parseStorage(id)
		if err != nil {
			return nil, err
		}
		if o := known[s.Key]; o != nil {
			if o.Bytes != s.Bytes || o.DType != s.DType {
				err = fmt.Errorf("storage %.80q is %d bytes of %s here and %d of %s before", s.Key, s.Bytes, s.DType, o.Bytes, o.DType)
			}
			return o, err
		}
		s.file, s.from = path, r
		known[s.Key] = s
		return s, find(s)
	}
}

// parseStorage reads a persistent id: ('storage', class, key, device, number of elements).
func parseStorage(id Tuple) (*Storage, error) {
	bad := errors.New("a storage of an unknown form")
	if len(id) < 5 || len(id) > 6 || id[0] != "storage" {
		return nil, bad
	}
	if len(id) == 6 && id[5] != nil {
		return nil, errors.New("a storage that is a view of another; save the file with a newer version of PyTorch")
	}
	class, ok := id[1].(Global)
	key, text := id[2].(string)
	n, number := id[4].(int64)
	dtype, known := storages[class.Name]
	if !ok || !text || !number || !known || n < 0 || n > maxFile || len(key) > 80 {
		return nil, bad
	}
	return &Storage{DType: dtype, Key: key, Bytes: n * int64(dtype.Size()), untyped: class.Name == "UntypedStorage"}, nil
}

// magic starts files of PyTorch before 1.6: the little-endian bytes of a number.
const magic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"

func loadLegacy(path string, r io.ReaderAt, size, slack int64) (any, int64, error) {
	for n := min(size, 1<<20); ; n = min(size, 4*n) {
		b := make([]byte, n)
		if err := vfs.ReadFull(r, b, 0); err != nil {
			return nil, 0, err
		}
		v, left, err := legacyPickles(path, r, b, size, size-n+slack)
		if !errors.Is(err, errShort) || n == size || n >= maxPickle/4 {
			return v, left, err
		}
	}
}

// legacyPickles reads the five pickles at the beginning of an old file: magic number, version,
// properties of the machine, object, keys of storages.
func legacyPickles(path string, r io.ReaderAt, b []byte, size, budget int64) (any, int64, error) {
	at := 0
	known := map[string]*Storage{}
	var parts [5]any
	for i := range parts {
		v, n, left, err := decode(b[at:], budget, storagesOf(path, r, known, func(s *Storage) (err error) {
			if s.Bytes > size {
				err = fmt.Errorf("storage %.80q has %d bytes, but the file %d", s.Key, s.Bytes, size)
			}
			return err
		}))
		if err != nil {
			return nil, 0, fmt.Errorf("pickle %d at %d: %w", i, at, err)
		}
		parts[i], budget, at = v, left, at+n
	}
	if parts[0] != magic || parts[1] != int64(1001) {
		return nil, 0, errors.New("its magic number or version is not PyTorch's")
	}
	offset := int64(at)
	for _, key := range Items(parts[4]) {
		k, _ := key.(string)
		s := known[k]
		if s == nil || s.at != 0 {
			return nil, 0, fmt.Errorf("storage %.80q is not one of its tensors", k)
		}
		var count [8]byte
		if err := vfs.ReadFull(r, count[:], offset); err != nil {
			return nil, 0, err
		}
		n := int64(binary.LittleEndian.Uint64(count[:]))
		if s.at = offset + 8; n < 0 || n != s.Bytes/int64(s.DType.Size()) || s.at+s.Bytes > size {
			return nil, 0, fmt.Errorf("storage %.80q at %d has %d elements of %s, but the file has %d bytes", k, offset, n, s.DType, size)
		}
		offset = s.at + s.Bytes
	}
	for _, s := range known {
		if s.at == 0 {
			return nil, 0, fmt.Errorf("storage %.80q is not in the file", s.Key)
		}
	}
	return parts[3], budget, nil
}
