package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/internal/input"
	"zeroth/internal/input/s3"
)

// round deletes what is doomed, uploads what is missing and commits what is complete. It returns
// whether something is left that other hosts have to upload.
func (m *Mirror) round(ctx context.Context) (left bool, err error) {
	if err := m.lost(); err != nil {
		return false, err
	}
	if err := m.delete(ctx); err != nil {
		return false, err
	}
	var waiting []string
	for _, name := range m.saved() {
		if m.committed(ctx, name) {
			continue
		}
		err := m.damaged(name)
		if err == nil {
			err = m.upload(ctx, name)
		}
		if bad := (altered{}); errors.As(err, &bad) && m.skip(name, bad) {
			continue
		}
		if err != nil {
			return false, err
		}
		waiting = append(waiting, name)
	}
	for _, name := range waiting {
		if m.Follow {
			continue
		}
		done, err := m.commit(ctx, name)
		if err != nil || !done {
			return err == nil, err
		}
	}
	if m.Follow && len(waiting) > 0 {
		return true, nil
	}
	return false, m.thin()
}

// altered is the error of a folder whose files on disk are not those that were saved. It is not uploaded
// again.
type altered struct {
	error
	commit string // of the folder
}

// damaged returns the error of a folder that was found altered, until it is removed or saved anew.
func (m *Mirror) damaged(name string) error {
	m.state.Lock()
	defer m.state.Unlock()
	if bad, ok := m.bad[name]; ok && bad.commit == m.commitOnDisk(name) {
		return bad
	}
	delete(m.bad, name)
	return nil
}

// skip records that a folder is altered, and reports whether others can be uploaded without it.
func (m *Mirror) skip(name string, bad altered) bool {
	m.state.Lock()
	_, known := m.bad[name]
	m.bad[name] = bad
	m.state.Unlock()
	if !known {
		m.Note(bad.Error())
	}
	return !strings.HasPrefix(name, "base-") // checkpoints refer to it
}

// lacks returns the errors of all altered folders that are still on disk.
func (m *Mirror) lacks() error {
	var errs []error
	for _, name := range m.saved() {
		errs = append(errs, m.damaged(name))
	}
	return errors.Join(errs...)
}

// delete deletes the doomed objects.
func (m *Mirror) delete(ctx context.Context) error {
	for {
		m.state.Lock()
		if len(m.dooms) == 0 {
			m.state.Unlock()
			return nil
		}
		name := m.dooms[0]
		m.state.Unlock()
		if err := m.gate(); err != nil {
			return err
		}
		if err := m.c.Remove(ctx, m.bucket, m.prefix+name); err != nil {
			return err
		}
		m.state.Lock()
		m.dooms = m.dooms[1:]
		m.state.Unlock()
	}
}

// committed reports whether a folder on disk is committed in object storage.
func (m *Mirror) committed(ctx context.Context, name string) bool {
	if !m.Follow {
		return m.has(name + "/" + commitName)
	}
	m.state.Lock()
	_, known := m.small[name+"/"+commitName]
	m.state.Unlock()
	if known {
		return true
	}
	b, err := m.c.ReadFile(ctx, m.bucket, m.prefix+name+"/"+commitName, 1024)
	if err != nil || string(b) != m.commitOnDisk(name) {
		return false
	}
	m.state.Lock()
	defer m.state.Unlock()
	m.small[name+"/"+commitName] = b
	return true
}

// listed holds the files that a manifest lists.
type listed struct {
	Files []listedFile `json:"files"`
}

type listedFile struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	CRC    string `json:"crc32c"` // of a data file, 8 hexadecimal digits; else ""
	SHA256 string `json:"sha256"` // of another file; else ""
}

func (m *Mirror) manifest(name string) (l listed, err error) {
	b, err := input.Read(filepath.Join(m.local, name, manifestName), 64<<20)
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	return l, err
}

// upload uploads the files of a folder on disk, but not COMMIT. A folder that is removed meanwhile is
// no error.
func (m *Mirror) upload(ctx context.Context, name string) error {
	mark := m.commitOnDisk(name)
	l, err := m.manifest(name)
	in, listing := os.ReadDir(filepath.Join(m.local, name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(listing, fs.ErrNotExist) {
		return nil
	}
	if err := errors.Join(err, listing); err != nil {
		return err
	}
	for _, e := range in {
		if e.Name() == commitName || m.Follow && !strings.HasPrefix(e.Name(), "data-") && !strings.HasPrefix(e.Name(), "part-") {
			continue
		}
		file := name + "/" + e.Name()
		if done, err := m.there(ctx, file, mark); done || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		crc := ""
		if i := slices.IndexFunc(l.Files, func(f listedFile) bool { return f.Name == e.Name() }); i >= 0 {
			crc = l.Files[i].CRC
		}
		if err := m.send(ctx, file, mark, crc); err != nil {
			return err
		}
	}
	return nil
}

// there reports whether a file was uploaded. A follower checks that it still exists, because the
// leader deletes files of an earlier run from a folder of the same name.
func (m *Mirror) there(ctx context.Context, file, mark string) (bool, error) {
	m.state.Lock()
	sent := m.sent[file] == mark
	m.state.Unlock()
	if !sent || !m.Follow {
		return sent, nil
	}
	_, err := m.c.Stat(ctx, m.bucket, m.prefix+file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// send uploads a file and compares what was sent with its CRC32C, unless that is empty. A follower compares
// before, because the leader commits what it finds.
func (m *Mirror) send(ctx context.Context, file, mark, crc string) error {
	in, err := (vfs.OS{}).Open(filepath.Join(m.local, filepath.FromSlash(file)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	size, err := in.Size()
	if err != nil {
		return err
	}
	differs := func(sum uint32) error {
		if want, err := strconv.ParseUint(crc, 16, 32); crc == "" || err == nil && uint32(want) == sum {
			return nil
		}
		return altered{fmt.Errorf("%s: the copy in %s has CRC32C %08x, its manifest says %s: the disk has altered it, and it is not uploaded; delete the folder there", file, m.local, sum, crc), mark}
	}
	if m.Follow {
		h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
		if _, err := io.CopyBuffer(h, io.NewSectionReader(in, 0, size), make([]byte, 1<<20)); err != nil {
			return err
		}
		if err := differs(h.Sum32()); err != nil {
			return err
		}
	}
	sums, err := m.c.Upload(ctx, m.bucket, m.prefix+file, in, size, m.gate)
	if err != nil {
		return err
	}
	sum := uint32(0)
	for i, s := range sums {
		sum = vfs.JoinCRC(sum, s, min(s3.PartBytes, size-int64(i)*s3.PartBytes))
	}
	if err := differs(sum); err != nil {
		return err
	}
	m.mu.Lock() // the folder is not renamed meanwhile
	_, there := os.Lstat(filepath.Join(m.local, path.Dir(file)))
	m.state.Lock()
	m.sent[file], m.refused = mark, time.Time{}
	if m.view != nil {
		m.view[file] = size
	}
	m.state.Unlock()
	if errors.Is(there, fs.ErrNotExist) {
		m.doom(path.Dir(file))
	}
	m.mu.Unlock()
	return nil
}

// commit writes COMMIT of a folder whose files are all uploaded, by whatever host, and reports whether
// it did.
func (m *Mirror) commit(ctx context.Context, name string) (bool, error) {
	mark := m.commitOnDisk(name)
	l, err := m.manifest(name)
	if errors.Is(err, fs.ErrNotExist) || mark == "" {
		return true, nil // deleted meanwhile
	}
	if err != nil {
		return false, err
	}
	for _, f := range l.Files {
		if there, err := m.arrived(ctx, name+"/"+f.Name, mark, f.Bytes); err != nil || !there {
			return false, err
		}
	}
	b, err := input.Read(filepath.Join(m.local, name, manifestName), 64<<20)
	if err != nil {
		return false, nil // deleted meanwhile
	}
	if err := m.gate(); err != nil {
		return false, err
	}
	file := name + "/" + commitName
	err = m.c.Create(ctx, m.bucket, m.prefix+file, []byte(mark))
	if errors.Is(err, fs.ErrExist) { // perhaps an answer was lost
		var have []byte
		if have, err = m.c.ReadFile(ctx, m.bucket, m.prefix+file, 1024); err == nil && string(have) != mark {
			err = fmt.Errorf("%s/%s was committed by another run", m.Root, name)
		}
	}
	if err != nil {
		return false, err
	}
	_ = m.lease.write(ctx, func() { m.lease.Newest = name }) // a hint
	m.mu.Lock()
	defer m.mu.Unlock()
	_, there := os.Lstat(filepath.Join(m.local, name))
	m.state.Lock()
	for _, f := range l.Files {
		m.view[name+"/"+f.Name] = f.Bytes
	}
	m.view[file], m.small[file], m.small[name+"/"+manifestName] = int64(len(mark)), []byte(mark), b
	m.state.Unlock()
	if errors.Is(there, fs.ErrNotExist) {
		m.doom(name)
	}
	return true, nil
}

// arrived reports whether an object was uploaded by this process, or has a size.
func (m *Mirror) arrived(ctx context.Context, file, mark string, bytes int64) (bool, error) {
	m.state.Lock()
	sent := m.sent[file] == mark
	m.state.Unlock()
	if sent {
		return true, nil
	}
	o, err := m.c.Stat(ctx, m.bucket, m.prefix+file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return o.Size == bytes, err
}

// thin removes copies on disk of checkpoints that are in object storage, all but the newest.
func (m *Mirror) thin() error {
	var steps []string
	for _, name := range m.saved() {
		if strings.HasPrefix(name, "step-") {
			steps = append(steps, name)
		}
	}
	for i, name := range steps {
		if i < len(steps)-1 && m.committed(context.Background(), name) {
			if err := m.forget(name); err != nil {
				return err
			}
		}
	}
	return nil
}
