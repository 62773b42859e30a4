// Package store is the file system of checkpoints: the machine's, and object storage for names that
// begin with s3://.
//
// A checkpoint in object storage has the objects that it has as files on disk, with the same names, so
// that a copy of either is the other. There is no rename: the object COMMIT, written last and only if
// none exists, makes a folder a checkpoint. A folder without COMMIT is being uploaded or deleted. It is
// listed under a temporary name and never loaded.
//
// Saves go to a folder on disk and commit there, like saves without object storage. A Mirror uploads what is committed there, in
// order, and deletes what the save or prune renames to .trash-. One goroutine does both, so that an
// upload and a deletion never overlap. Reads prefer the copy on disk.
//
// A run holds a lease of the folder: the objects .lease-00000001, .lease-00000002 and so on, of which
// the last counts. Its holder rewrites it four times a minute. A process that finds it free, its own, or
// more than a minute old by the server's clock, creates the next one, if that does not exist. Nothing is
// uploaded or deleted without a valid lease.
package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"zeroth/checkpoint/vfs"
	"zeroth/internal/input/s3"
)

// Files is a file system for all names. It implements vfs.FS.
type Files struct{ vfs.OS }

const (
	commitName   = "COMMIT"
	manifestName = "MANIFEST.json"
	nobody       = "-0000000000000000" // nonce of the temporary name of a folder that has none
	oldPrefix    = ".old-"             // begins the name of a copy on disk that is being removed
)

// temporary matches the temporary names of a folder.
var temporary = regexp.MustCompile(`^(?:\.tmp-|\.trash-|\.trash-\.tmp-)((?:step|base)-[0-9a-f.]+)(?:-[0-9a-f]{16}){1,2}$`)

// whole reports whether a folder with a name is one only with COMMIT.
func whole(name string) bool {
	return strings.HasPrefix(name, "step-") || strings.HasPrefix(name, "base-")
}

// location is a name in object storage.
type location struct {
	*Mirror
	rel string // below the mirror's root, "" for the root
}

func (p location) name() string { return path.Base(p.rel) }

// disk returns the path of the copy on disk; "" if there is no folder for copies.
func (p location) disk() string {
	if p.local == "" {
		return ""
	}
	return filepath.Join(p.local, filepath.FromSlash(p.rel))
}

// far returns the name in object storage below the root, which differs for temporary names. It is ""
// for a temporary name of a folder that is whole, or that is saved here.
func (p location) far() string {
	top, rest, below := strings.Cut(p.rel, "/")
	m := temporary.FindStringSubmatch(top)
	if m == nil {
		return p.rel
	}
	if location := (location{p.Mirror, m[1]}); location.onDisk() || p.has(m[1]+"/"+commitName) {
		return ""
	}
	if below {
		return m[1] + "/" + rest
	}
	return m[1]
}

func (p location) onDisk() bool {
	_, err := os.Lstat(p.disk())
	return p.local != "" && err == nil
}

// Create implements vfs.FS.
func (f Files) Create(name string) (vfs.File, error) {
	if !s3.Is(name) {
		return f.OS.Create(name)
	}
	p, err := find(name)
	if err == nil {
		err = p.writable("create", name)
	}
	if err != nil {
		return nil, err
	}
	return f.OS.Create(p.disk())
}

// writable returns an error if nothing can be saved in a location.
func (p location) writable(op, name string) error {
	if p.local == "" {
		return &fs.PathError{Op: op, Path: name, Err: errors.New("the folder in object storage is not locked")}
	}
	return p.lost()
}

// Open implements vfs.FS.
func (f Files) Open(name string) (vfs.File, error) {
	if !s3.Is(name) {
		return f.OS.Open(name)
	}
	p, err := find(name)
	if err != nil {
		return nil, err
	}
	if p.local != "" {
		if in, err := f.OS.Open(p.disk()); !errors.Is(err, fs.ErrNotExist) {
			return in, err
		}
	}
	return p.open(name)
}

// Mkdir implements vfs.FS. Object storage has no folders.
func (f Files) Mkdir(name string) error {
	if !s3.Is(name) {
		return f.OS.Mkdir(name)
	}
	p, err := find(name)
	if err != nil || p.local == "" {
		return err
	}
	if err := p.lost(); err != nil {
		return err
	}
	return f.OS.Mkdir(p.disk())
}

// Rename implements vfs.FS. A rename to a temporary name deletes the objects, soon.
func (f Files) Rename(from, to string) error {
	if !s3.Is(from) {
		return f.OS.Rename(from, to)
	}
	a, err := find(from)
	if err == nil {
		err = a.writable("rename", from)
	}
	if err != nil {
		return err
	}
	b := location{a.Mirror, strings.TrimPrefix(to, a.Root+"/")}
	a.mu.Lock()
	defer a.mu.Unlock()
	far := ""
	if temporary.MatchString(b.rel) { // otherwise the name may be looked up in vain, for seconds without network
		far = a.far()
	}
	err = f.OS.Rename(a.disk(), b.disk())
	if far != "" {
		if found := a.doom(far); found && errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	a.kick()
	return err
}

// Remove implements vfs.FS.
func (f Files) Remove(name string) error {
	if !s3.Is(name) {
		return f.OS.Remove(name)
	}
	p, err := find(name)
	if err == nil {
		err = p.writable("remove", name)
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err = f.OS.Remove(p.disk())
	if far := p.far(); far != "" && p.doom(far) && errors.Is(err, fs.ErrNotExist) || temporary.MatchString(p.rel) && errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	p.kick()
	return err
}

// List implements vfs.FS.
func (f Files) List(dir string) ([]vfs.Entry, error) {
	if !s3.Is(dir) {
		return f.OS.List(dir)
	}
	p, err := find(dir)
	if err != nil {
		return nil, err
	}
	var out []vfs.Entry
	exists := p.local != "" && p.rel == "" || temporary.MatchString(p.rel)
	if p.local != "" {
		out, err = f.OS.List(p.disk())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		exists = exists || err == nil
		out = slices.DeleteFunc(out, func(e vfs.Entry) bool { return Own(e.Name) })
	}
	far, err := p.list()
	if err != nil {
		return nil, err
	}
	for _, e := range far {
		if !slices.ContainsFunc(out, func(o vfs.Entry) bool { return o.Name == e.Name }) {
			out = append(out, e)
		}
	}
	if len(out) == 0 && !exists {
		return nil, &fs.PathError{Op: "list", Path: dir, Err: fs.ErrNotExist}
	}
	slices.SortFunc(out, func(a, b vfs.Entry) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// list returns the entries in object storage.
func (p location) list() (out []vfs.Entry, err error) {
	far := p.far()
	if far == "" && p.rel != "" {
		return nil, nil
	}
	all, err := p.objects(far)
	if err != nil {
		return nil, err
	}
	folders := map[string]bool{} // whether COMMIT was seen
	for _, o := range all {
		top, rest, below := strings.Cut(o.Key, "/")
		switch {
		case below:
			folders[top] = folders[top] || rest == commitName
		case !strings.HasPrefix(top, leasePrefix) && !strings.HasPrefix(top, probePrefix):
			out = append(out, vfs.Entry{Name: top, Bytes: o.Size})
		}
	}
	for name, committed := range folders {
		if whole(name) && !committed {
			if (location{p.Mirror, path.Join(p.rel, name)}).onDisk() {
				continue
			}
			name = map[bool]string{true: ".tmp-", false: ".trash-"}[strings.HasPrefix(name, "step-")] + name + nobody
		}
		out = append(out, vfs.Entry{Name: name, Kind: vfs.Dir})
	}
	return out, nil
}

// Stat implements vfs.FS.
func (f Files) Stat(name string) (vfs.Entry, error) { return f.describe(name, f.OS.Stat) }

// Lstat implements vfs.FS.
func (f Files) Lstat(name string) (vfs.Entry, error) { return f.describe(name, f.OS.Lstat) }

func (f Files) describe(name string, stat func(string) (vfs.Entry, error)) (vfs.Entry, error) {
	if !s3.Is(name) {
		return stat(name)
	}
	p, err := find(name)
	if err != nil {
		return vfs.Entry{}, err
	}
	if p.local != "" {
		if e, err := stat(p.disk()); !errors.Is(err, fs.ErrNotExist) {
			return e, err
		}
	}
	gone := &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	far := p.far()
	if far == "" && p.rel != "" {
		return vfs.Entry{}, gone
	}
	if p.rel == "" {
		return vfs.Entry{Name: p.name(), Kind: vfs.Dir}, nil
	}
	if far != "" {
		if size, err := p.size(far); !errors.Is(err, fs.ErrNotExist) {
			return vfs.Entry{Name: p.name(), Bytes: size}, err
		}
		if size, ok := p.awaited(); ok {
			return vfs.Entry{Name: p.name(), Bytes: size}, nil
		}
	}
	inside := far
	if whole(p.name()) {
		inside = path.Join(far, commitName)
	}
	found, err := p.any(inside)
	if err == nil && !found {
		err = gone
	}
	return vfs.Entry{Name: p.name(), Kind: vfs.Dir}, err
}

// awaited returns the size of a file that another host still has to upload: the checkpoint is committed
// on this host's disk and not in object storage. It is not damaged, and rules may delete it.
func (p location) awaited() (size int64, ok bool) {
	folder, file, _ := strings.Cut(p.rel, "/")
	if !p.Mirror.Apart || p.local == "" || !whole(folder) || p.commitOnDisk(folder) == "" || p.has(folder+"/"+commitName) {
		return 0, false
	}
	l, _ := p.manifest(folder) // an error leaves the file missing
	for _, f := range l.Files {
		if f.Name == file {
			return f.Bytes, true
		}
	}
	return 0, false
}

// SyncDir implements vfs.FS.
func (f Files) SyncDir(dir string) error {
	if !s3.Is(dir) {
		return f.OS.SyncDir(dir)
	}
	p, err := find(dir)
	if err != nil || p.local == "" || !p.onDisk() {
		return err
	}
	return f.OS.SyncDir(p.disk())
}

// Space implements vfs.FS: of the disk.
func (f Files) Space(dir string) (int64, error) {
	if !s3.Is(dir) {
		return f.OS.Space(dir)
	}
	p, err := find(dir)
	if err != nil || p.local == "" {
		return 0, errors.Join(err, errors.ErrUnsupported)
	}
	return f.OS.Space(p.local)
}

// Lock implements vfs.FS. The lock of a folder in object storage is a lease, and begins its Mirror;
// Close waits until everything is uploaded.
func (f Files) Lock(name string) (io.Closer, error) {
	if !s3.Is(name) {
		return f.OS.Lock(name)
	}
	return lock(vfs.Parent(name))
}

// object is an open object, of which all is read from one version.
type object struct {
	c      *s3.Client
	bucket string
	s3.Object
}

var errReadOnly = errors.New("objects are not written in place")

func (o *object) ReadAt(b []byte, off int64) (int, error) {
	return o.c.ReadAt(context.Background(), o.bucket, o.Object, b, off)
}

func (o *object) WriteAt([]byte, int64) (int, error) { return 0, errReadOnly }
func (o *object) Sync() error                        { return errReadOnly }
func (o *object) Size() (int64, error)               { return o.Object.Size, nil }
func (o *object) Close() error                       { return nil }

// content is a small object in memory.
type content struct {
	*bytes.Reader
	*object // nil
}

func (c content) ReadAt(b []byte, off int64) (int, error) { return c.Reader.ReadAt(b, off) }
func (c content) Size() (int64, error)                    { return c.Reader.Size(), nil }
func (c content) Close() error                            { return nil }
