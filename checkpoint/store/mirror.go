package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/internal/input"
	"zeroth/internal/input/s3"
)

// Mirror is a folder of checkpoints in object storage, and the folder on disk that it is saved to first.
type Mirror struct {
	Root string // s3://BUCKET/FOLDER
	Options
	local  string // folder on disk; "" if nothing is saved
	c      *s3.Client
	bucket string
	prefix string // of keys, with a slash at the end unless empty

	mu   sync.Mutex // orders changes of names
	wake chan struct{}

	state      sync.Mutex        // protects what follows
	view       map[string]int64  // size of every object by its name below Root, as far as this process knows; nil if others may change them
	small      map[string][]byte // content of COMMIT and MANIFEST.json by name below Root
	sent       map[string]string // COMMIT of the folder on disk with which a file was uploaded, by name
	dooms      []string          // objects to delete, in order
	bad        map[string]altered
	lease      *lease
	fatal      error     // the lease is lost
	trouble    string    // the last reported
	refused    time.Time // since when the server's answers are lasting errors, or any errors if brief; zero if the last was none
	rounds     int       // number of attempts
	changes    int       // number of changes of names on disk
	idle       bool      // nothing was left to do after the last change
	locked     io.Closer
	work       sync.WaitGroup
	stop       context.CancelFunc
	background context.Context // until stop
	started    bool
	patience   time.Duration // in which the leader before this one may still renew its lease
	brief      bool          // used by a command, which can be repeated, and not by a run; local is temporary
}

// Options describe how a run uses a folder in object storage.
type Options struct {
	Local   string       // folder on disk, on every host its own
	Apart   bool         // the run has several hosts, which do not see each other's folders
	Follow  bool         // this process leaves COMMIT, deletions and the lease to another one
	Note    func(string) // receives messages for people; may be nil
	Session string       // of a run of several processes; processes of one run may use the same folder on disk
}

var mirrors struct {
	sync.Mutex
	by map[string]*Mirror
}

// Use sets how names in a folder in object storage are used, until Close. Folders on disk are
// ignored.
func Use(root string, o Options) (*Mirror, error) {
	m, err := newMirror(root)
	if err != nil {
		return nil, err
	}
	if m.Options = o; o.Note == nil {
		m.Note = func(string) {}
	}
	if m.local, err = filepath.Abs(o.Local); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(m.local, 0o777); err != nil {
		return nil, input.BadInput(err)
	}
	mirrors.Lock()
	defer mirrors.Unlock()
	if mirrors.by[m.Root] != nil {
		return nil, fmt.Errorf("%s is in use by this process", m.Root)
	}
	if mirrors.by == nil {
		mirrors.by = map[string]*Mirror{}
	}
	mirrors.by[m.Root] = m
	return m, nil
}

func newMirror(root string) (*Mirror, error) {
	bucket, key, err := s3.Split(root)
	if err != nil {
		return nil, err
	}
	c, err := s3.Connect()
	if err != nil {
		return nil, err
	}
	m := &Mirror{Root: strings.TrimSuffix("s3://"+bucket+"/"+key, "/"), c: c, bucket: bucket, wake: make(chan struct{}, 1)}
	if key != "" {
		m.prefix = key + "/"
	}
	return m, nil
}

// find returns the location of a name.
func find(name string) (location, error) {
	bucket, key, err := s3.Split(name)
	if err != nil {
		return location{}, err
	}
	name = strings.TrimSuffix("s3://"+bucket+"/"+key, "/")
	mirrors.Lock()
	defer mirrors.Unlock()
	for root, m := range mirrors.by {
		if rest, in := strings.CutPrefix(name+"/", root+"/"); in {
			return location{m, strings.TrimSuffix(rest, "/")}, nil
		}
	}
	m, err := newMirror("s3://" + bucket)
	return location{m, key}, err
}

// Apart reports whether a folder of checkpoints is that of a run on several hosts that do not see each
// other's files.
func (Files) Apart(root string) bool {
	p, err := find(root)
	return s3.Is(root) && err == nil && p.Mirror.Apart
}

// OnDisk returns the folder on this host's disk to which checkpoints are saved.
func (Files) OnDisk(root string) string {
	if p, err := find(root); s3.Is(root) && err == nil && p.local != "" {
		return p.local
	}
	return root
}

// Offline reports whether the folder's content is known without asking the server.
func (m *Mirror) Offline() bool {
	m.state.Lock()
	defer m.state.Unlock()
	return m.view != nil
}

// Keep removes the folders on this host's disk that the leader does not have any more.
func (f Files) Keep(root string, names []string) error {
	p, err := find(root)
	if err != nil || !p.Follow {
		return err
	}
	in, err := os.ReadDir(p.local)
	for _, e := range in {
		ours := whole(e.Name()) || temporary.MatchString(e.Name())
		if err == nil && ours && e.IsDir() && !slices.Contains(names, e.Name()) {
			err = p.forget(e.Name())
		}
	}
	return err
}

// Own reports whether a name in a folder on disk is one that only a Mirror knows.
func Own(name string) bool {
	return name == ownerName || name == sessionName || strings.HasPrefix(name, oldPrefix)
}

// lost returns the error of a folder that another run has taken over.
func (m *Mirror) lost() error {
	m.state.Lock()
	defer m.state.Unlock()
	return m.fatal
}

func (m *Mirror) kick() {
	m.state.Lock()
	m.idle, m.changes = false, m.changes+1
	m.state.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// objects returns the objects in a folder, with names below it.
func (m *Mirror) objects(folder string) ([]s3.Object, error) {
	prefix := m.prefix
	if folder != "" {
		prefix += folder + "/"
	}
	m.state.Lock()
	if m.view != nil {
		defer m.state.Unlock()
		var out []s3.Object
		for _, name := range slices.Sorted(maps.Keys(m.view)) {
			if rest, in := strings.CutPrefix(m.prefix+name, prefix); in {
				out = append(out, s3.Object{Key: rest, Size: m.view[name]})
			}
		}
		return out, nil
	}
	m.state.Unlock()
	return m.remote(prefix)
}

// mostObjects is the limit of the number of objects in a folder of checkpoints.
const mostObjects = 10_000_000

func (m *Mirror) remote(prefix string) ([]s3.Object, error) {
	all, err := m.c.List(context.Background(), m.bucket, prefix, mostObjects)
	for i := range all {
		all[i].Key = strings.TrimPrefix(all[i].Key, prefix)
	}
	return all, err
}

// size returns the size of an object.
func (m *Mirror) size(name string) (int64, error) {
	m.state.Lock()
	if m.view != nil {
		defer m.state.Unlock()
		if size, ok := m.view[name]; ok {
			return size, nil
		}
		return 0, fs.ErrNotExist
	}
	m.state.Unlock()
	o, err := m.c.Stat(context.Background(), m.bucket, m.prefix+name)
	return o.Size, err
}

func (m *Mirror) has(name string) bool {
	_, err := m.size(name)
	return err == nil
}

// any reports whether there is an object with a name, or in a folder with it.
func (m *Mirror) any(name string) (bool, error) {
	if path.Base(name) == commitName {
		return m.has(name), nil
	}
	m.state.Lock()
	if m.view != nil {
		defer m.state.Unlock()
		for have := range m.view {
			if name == "" || strings.HasPrefix(have, name+"/") {
				return true, nil
			}
		}
		return false, nil
	}
	m.state.Unlock()
	return m.c.Any(m.bucket, strings.TrimSuffix(m.prefix+name, "/")+"/")
}

// open opens an object.
func (p location) open(name string) (vfs.File, error) {
	p.state.Lock()
	b, ok := p.small[p.rel]
	p.state.Unlock()
	if ok {
		return content{Reader: bytes.NewReader(b)}, nil
	}
	o, err := s3.Object{}, error(fs.ErrNotExist)
	if !p.Offline() || p.has(p.rel) {
		o, err = p.c.Stat(context.Background(), p.bucket, p.prefix+p.rel)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	if err != nil {
		return nil, err
	}
	return &object{p.c, p.bucket, o}, nil
}

// doom plans the deletion of an object, or of all in a folder, and reports whether there are any.
func (m *Mirror) doom(name string) bool {
	m.state.Lock()
	defer m.state.Unlock()
	var gone []string
	for have := range m.view {
		if have == name || strings.HasPrefix(have, name+"/") {
			gone = append(gone, have)
		}
	}
	found := len(gone) > 0
	commit := name + "/" + commitName
	if _, known := m.view[commit]; found && whole(name) && !strings.Contains(name, "/") && !known { // it may be there soon, or its answer was lost
		gone = append(gone, commit)
	}
	slices.SortFunc(gone, func(a, b string) int { // COMMIT first
		return cmp.Or(-compare(path.Base(a) == commitName, path.Base(b) == commitName), strings.Compare(a, b))
	})
	for _, g := range gone {
		delete(m.view, g)
		delete(m.small, g)
		delete(m.sent, g)
	}
	m.dooms = append(m.dooms, gone...)
	return found
}

func compare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// saved returns the names of the folders on disk that are committed: base folders, then checkpoints in
// the order of their commits.
func (m *Mirror) saved() (names []string) {
	in, _ := os.ReadDir(m.local) // what cannot be read is tried again
	seq := map[string]int64{}
	for _, e := range in {
		if whole(e.Name()) && e.IsDir() {
			if n, ok := number(m.commitOnDisk(e.Name())); ok {
				names, seq[e.Name()] = append(names, e.Name()), n
			}
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(compare(strings.HasPrefix(a, "step-"), strings.HasPrefix(b, "step-")), cmp.Compare(seq[a], seq[b]))
	})
	return names
}

func (m *Mirror) commitOnDisk(name string) string {
	b, err := input.Read(filepath.Join(m.local, name, commitName), 1024)
	if err != nil {
		return ""
	}
	return string(b)
}

// number returns the number of a commit.
func number(commit string) (seq int64, ok bool) {
	var format int
	_, err := fmt.Sscanf(commit, "zeroth-checkpoint %d seq %d ", &format, &seq)
	return seq, err == nil
}

// forget removes a folder from the disk.
func (m *Mirror) forget(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	trash := filepath.Join(m.local, oldPrefix+name) // not a name that a prune knows
	if err := os.RemoveAll(trash); err != nil {     // of a process that ended here
		return err
	}
	if err := os.Rename(filepath.Join(m.local, name), trash); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(trash)
}

// report notes trouble when it begins, changes and ends.
func (m *Mirror) report(err error) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	m.state.Lock()
	was := m.trouble
	m.trouble = now
	m.rounds++
	if !s3.Lasting(err) && (err == nil || !m.brief) {
		m.refused = time.Time{}
	} else if m.refused.IsZero() {
		m.refused = time.Now()
	}
	m.state.Unlock()
	switch {
	case now != "" && was == "":
		m.Note(fmt.Sprintf("%s: %s; training continues, checkpoints stay in %s until they can be uploaded", m.Root, now, m.local))
	case now == "" && was != "":
		m.Note(m.Root + ": answers again")
	}
}

// pause is the longest time between two attempts. Tests shorten it.
var pause = 20 * time.Second

// serve uploads and deletes until ctx ends.
func (m *Mirror) serve(ctx context.Context) {
	for wait := time.Duration(0); ctx.Err() == nil; {
		m.state.Lock()
		changes := m.changes
		m.state.Unlock()
		left, err := m.round(ctx)
		if ctx.Err() != nil {
			return
		}
		m.report(err)
		switch {
		case err == nil && !left, errors.As(err, new(altered)):
			m.state.Lock()
			m.idle = len(m.dooms) == 0 && changes == m.changes
			m.state.Unlock()
			wait = time.Second // for folders of other processes
		default:
			wait = min(max(2*wait, 100*time.Millisecond), pause)
		}
		select {
		case <-ctx.Done():
		case <-m.wake:
		case <-time.After(wait):
		}
	}
}

// Flush waits for a server that refuses requests for mostRefused, and reports every noteEvery what it
// waits for. Tests shorten them.
var mostRefused, noteEvery = 2 * time.Minute, time.Minute

// Flush waits until everything is uploaded and deleted, ctx ends, or the server has refused for long.
func (m *Mirror) Flush(ctx context.Context) error {
	m.kick()
	stays := func(why error) error {
		if m.brief {
			return fmt.Errorf("%s: some files were not uploaded or deleted: %w; run the command again", m.Root, why)
		}
		return fmt.Errorf("%s: some files were not uploaded: %w; they stay in %s, and a run that continues there uploads them", m.Root, why, m.local)
	}
	m.state.Lock()
	first := m.rounds
	m.state.Unlock()
	for noted := (time.Time{}); ; {
		m.state.Lock()
		idle, fatal, trouble := m.idle || !m.started, m.fatal, m.trouble
		refused := !m.refused.IsZero() && time.Since(m.refused) >= mostRefused && m.rounds > first
		m.state.Unlock()
		switch {
		case fatal != nil:
			return stays(fatal)
		case idle:
			return m.lacks()
		case refused:
			return stays(fmt.Errorf("%s, for %v", trouble, mostRefused)) // not a mistake in the job
		}
		if err := input.Sleep(ctx, 50*time.Millisecond); err != nil {
			return stays(err)
		}
		switch {
		case noted.IsZero():
			m.Note("waiting for uploads to " + m.Root + limit(ctx))
		case time.Since(noted) < noteEvery:
			continue
		case trouble != "":
			m.Note(fmt.Sprintf("still waiting for uploads to %s: %s", m.Root, trouble))
		default:
			m.Note("still uploading to " + m.Root)
		}
		noted = time.Now()
	}
}

// limit describes how long ctx lasts.
func limit(ctx context.Context) string {
	end, ok := ctx.Deadline()
	if !ok {
		return ""
	}
	return fmt.Sprintf(", at most %v", time.Until(end).Round(time.Second))
}

// Close ends uploads, where they are, and the use of the folder.
func (m *Mirror) Close() error {
	mirrors.Lock()
	delete(mirrors.by, m.Root)
	mirrors.Unlock()
	m.end()
	m.state.Lock()
	defer m.state.Unlock()
	var err error
	if m.lease != nil && m.fatal == nil {
		err = m.lease.release()
	}
	if m.locked != nil {
		err = errors.Join(err, m.locked.Close())
	}
	m.lease, m.locked = nil, nil
	return err
}

// end ends the work in the background.
func (m *Mirror) end() {
	if m.stop != nil {
		m.stop()
		m.work.Wait()
	}
}
