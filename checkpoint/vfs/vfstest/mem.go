package vfstest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"zeroth/checkpoint/vfs"
)

// Mem is a file system in memory. The zero Mem has one folder, "/".
//
// It logs every operation that changes it, so that AfterPowerLoss can build the possible
// contents of a disk after a power failure at any moment.
type Mem struct {
	mu    sync.Mutex
	nodes []*node // by id; 0 is the root folder
	log   []op
	locks map[string]bool
}

// node is a file or folder, protected by Mem.mu. Names refer to it by its index in Mem.nodes,
// so a file removed while open lives on.
type node struct {
	dir  bool
	data []byte
	kids map[string]int
}

// op is one logged change. dir and node are ids.
type op struct {
	kind        opKind
	node        int
	dir, dir2   int // folder of the name; of the new name
	name, name2 string
	off         int64
	data        []byte
}

type opKind uint8

const (
	opName    opKind = iota // name in dir now refers to node
	opRename                // name in dir is now name2 in dir2
	opRemove                // name in dir is gone
	opWrite                 // data at off of node
	opSync                  // node's data before this is durable
	opSyncDir               // node's names before this are durable
)

func (m *Mem) init() {
	if m.nodes == nil {
		m.nodes = []*node{{dir: true, kids: map[string]int{}}}
		m.locks = map[string]bool{}
	}
}

// find returns the id of a name, the folder it is in, and its last element.
func (m *Mem) find(what, name string) (id, dir int, base string, err error) {
	m.init()
	clean := filepath.Clean("/" + name)
	id = 0
	for _, el := range strings.Split(clean, "/")[1:] {
		if el == "" {
			continue
		}
		if id < 0 || !m.nodes[id].dir {
			return -1, -1, "", &fs.PathError{Op: what, Path: name, Err: fs.ErrNotExist}
		}
		dir, base = id, el
		if k, ok := m.nodes[id].kids[el]; ok {
			id = k
		} else {
			id = -1
		}
	}
	return id, dir, base, nil
}

// must is find for a name that must exist.
func (m *Mem) must(what, name string) (id, dir int, base string, err error) {
	id, dir, base, err = m.find(what, name)
	if err == nil && id < 0 {
		err = &fs.PathError{Op: what, Path: name, Err: fs.ErrNotExist}
	}
	return id, dir, base, err
}

// do applies a change to the live state and logs it.
func (m *Mem) do(o op) {
	m.apply(o)
	m.log = append(m.log, o)
}

func (m *Mem) apply(o op) {
	switch o.kind {
	case opName:
		m.nodes[o.dir].kids[o.name] = o.node
	case opRename:
		if m.nodes[o.dir].kids[o.name] == o.node {
			delete(m.nodes[o.dir].kids, o.name)
		}
		m.nodes[o.dir2].kids[o.name2] = o.node
	case opRemove:
		if m.nodes[o.dir].kids[o.name] == o.node {
			delete(m.nodes[o.dir].kids, o.name)
		}
	case opWrite:
		n := m.nodes[o.node]
		if need := int(o.off) + len(o.data); need > len(n.data) {
			n.data = append(n.data, make([]byte, need-len(n.data))...)
		}
		copy(n.data[o.off:], o.data)
	}
}

// add creates a node and its name.
func (m *Mem) add(what, name string, dir bool) (int, error) {
	id, parent, base, err := m.find(what, name)
	if err != nil {
		return -1, err
	}
	if id >= 0 {
		return -1, &fs.PathError{Op: what, Path: name, Err: fs.ErrExist}
	}
	n := &node{dir: dir}
	if dir {
		n.kids = map[string]int{}
	}
	m.nodes = append(m.nodes, n)
	m.do(op{kind: opName, node: len(m.nodes) - 1, dir: parent, name: base})
	return len(m.nodes) - 1, nil
}

func (m *Mem) Create(name string) (vfs.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, err := m.add("create", name, false)
	if err != nil {
		return nil, err
	}
	return &memFile{m, id, name, true}, nil
}

func (m *Mem) Open(name string) (vfs.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, _, _, err := m.must("open", name)
	if err != nil {
		return nil, err
	}
	if m.nodes[id].dir {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("it is a folder, not a regular file")}
	}
	return &memFile{m, id, name, false}, nil
}

// Space implements FS: memory is unlimited.
func (m *Mem) Space(string) (int64, error) { return math.MaxInt64, nil }

func (m *Mem) Mkdir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.add("mkdir", name, true)
	return err
}

func (m *Mem) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, dir, base, err := m.must("rename", from)
	if err != nil {
		return err
	}
	old, dir2, base2, err := m.find("rename", to)
	if err != nil {
		return err
	}
	if old >= 0 && (m.nodes[old].dir || m.nodes[id].dir) {
		return &fs.PathError{Op: "rename", Path: to, Err: fs.ErrExist}
	}
	m.do(op{kind: opRename, node: id, dir: dir, name: base, dir2: dir2, name2: base2})
	return nil
}

func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, dir, base, err := m.must("remove", name)
	if err != nil {
		return err
	}
	if len(m.nodes[id].kids) > 0 {
		return &fs.PathError{Op: "remove", Path: name, Err: errors.New("folder not empty")}
	}
	m.do(op{kind: opRemove, node: id, dir: dir, name: base})
	return nil
}

func (m *Mem) List(dir string) ([]vfs.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, _, _, err := m.must("list", dir)
	if err != nil {
		return nil, err
	}
	if !m.nodes[id].dir {
		return nil, &fs.PathError{Op: "list", Path: dir, Err: errors.New("not a folder")}
	}
	var out []vfs.Entry
	for name, k := range m.nodes[id].kids {
		out = append(out, m.entry(name, k))
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

func (m *Mem) entry(name string, id int) vfs.Entry {
	e := vfs.Entry{Name: name, Kind: vfs.Regular, Bytes: int64(len(m.nodes[id].data))}
	if m.nodes[id].dir {
		e.Kind = vfs.Dir
	}
	return e
}

func (m *Mem) Stat(name string) (vfs.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, _, base, err := m.must("stat", name)
	if err != nil {
		return vfs.Entry{}, err
	}
	return m.entry(base, id), nil
}

// Lstat implements FS: there are no links in a Mem.
func (m *Mem) Lstat(name string) (vfs.Entry, error) { return m.Stat(name) }

func (m *Mem) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, _, _, err := m.must("sync", dir)
	if err == nil {
		m.do(op{kind: opSyncDir, node: id})
	}
	return err
}

func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, _, _, err := m.find("lock", name)
	if err == nil && id < 0 {
		_, err = m.add("lock", name, false)
	}
	if err != nil {
		return nil, err
	}
	if m.locks[name] {
		return nil, fmt.Errorf("%s: %w", name, vfs.ErrLocked)
	}
	m.locks[name] = true
	return memLock{m, name}, nil
}

type memLock struct {
	m    *Mem
	name string
}

func (l memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.locks, l.name)
	return nil
}

type memFile struct {
	m        *Mem
	id       int
	name     string
	writable bool
}

func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	data := f.m.nodes[f.id].data
	if off < 0 || off >= int64(len(data)) {
		return 0, io.EOF
	}
	n := copy(b, data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if !f.writable {
		return 0, &fs.PathError{Op: "write", Path: f.name, Err: fs.ErrPermission}
	}
	f.m.do(op{kind: opWrite, node: f.id, off: off, data: append([]byte(nil), b...)})
	return len(b), nil
}

func (f *memFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.m.do(op{kind: opSync, node: f.id})
	return nil
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return int64(len(f.m.nodes[f.id].data)), nil
}

func (f *memFile) Close() error { return nil }
