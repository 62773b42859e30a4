package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/internal/input"
	"zeroth/internal/input/s3"
)

const (
	leasePrefix = ".lease-"
	probePrefix = ".probe-"
	ownerName   = ".owner"   // file on disk that names its folder in leases
	sessionName = ".session" // file on disk with the session of the run that has locked it
)

// term is how long a lease is valid after it was written, and poll the time between two looks at that of
// another process. Tests shorten them.
var (
	term = time.Minute
	poll = 3 * time.Second
)

// lease is the right to change a folder.
type lease struct {
	m      *Mirror
	name   string
	number int
	holder

	mu     sync.Mutex
	until  time.Time // it is valid until then
	failed error     // of the last renewal
}

// holder is the content of a lease.
type holder struct {
	Owner string `json:"owner"` // folder on disk, so that a run that crashed finds its own lease
	Nonce string `json:"nonce"` // of the process
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	Free  bool   `json:"free,omitempty"`
	Beat  int    `json:"beat"` // times it was written

	Newest string `json:"newest,omitempty"` // folder committed last, which shows whether a listing is stale
}

func leaseName(n int) string { return fmt.Sprintf("%s%08d", leasePrefix, n) }

// acquire creates the next lease. While another is valid, it waits for its expiry. If the holder
// renews that instead, acquire returns a *vfs.Locked, unless that is the lost leader, which will end.
func (m *Mirror) acquire(ctx context.Context, owner string) (*lease, error) {
	host, _ := os.Hostname() // only for messages
	l := &lease{m: m, holder: holder{Owner: owner, Nonce: rand.Text(), Host: host, PID: os.Getpid()}}
	beat, end := -1, time.Now().Add(m.patience)
	for {
		n, last, h, err := m.lastLease(ctx)
		if err != nil {
			return nil, err
		}
		now, err := m.probe(ctx)
		if err != nil {
			return nil, err
		}
		if n == 0 || h.Free || h.Owner == owner || now.Sub(last) >= term {
			l.name, l.number, l.Newest = leaseName(n+1), n+1, h.Newest
			begin := time.Now()
			err := m.c.Create(ctx, m.bucket, m.prefix+l.name, l.text())
			if b, _ := m.c.ReadFile(ctx, m.bucket, m.prefix+l.name, 4096); err == nil || errors.Is(err, fs.ErrExist) && string(b) == string(l.text()) {
				l.until = begin.Add(term)
				return l, m.tidy(ctx, n)
			}
			if !errors.Is(err, fs.ErrExist) {
				return nil, err
			}
			continue
		}
		if beat >= 0 && h.Beat > beat && time.Now().After(end) {
			return nil, &vfs.Locked{Name: m.Root, PID: h.PID, Host: h.Host}
		}
		if beat < 0 {
			m.Note(fmt.Sprintf("%s is locked by process %d on host %q; waiting up to %s to see whether it is still running", m.Root, h.PID, h.Host, (term - now.Sub(last)).Round(time.Second)))
		}
		beat = h.Beat
		if err := input.Sleep(ctx, poll); err != nil {
			return nil, err
		}
	}
}

// lastLease returns the number of the last lease, when it was written by the server's clock, and its
// holder; 0 if there is none.
func (m *Mirror) lastLease(ctx context.Context) (n int, at time.Time, h holder, err error) {
	all, err := m.c.List(ctx, m.bucket, m.prefix+leasePrefix, 10_000)
	if err != nil || len(all) == 0 {
		return 0, at, h, err
	}
	last := all[len(all)-1]
	name := strings.TrimPrefix(last.Key, m.prefix)
	if _, err := fmt.Sscanf(name, leasePrefix+"%d", &n); err != nil || name != leaseName(n) {
		return 0, at, h, input.BadInput(fmt.Errorf("%s/%s is not a lease; delete it", m.Root, name))
	}
	b, err := m.c.ReadFile(ctx, m.bucket, last.Key, 4096)
	if err != nil {
		return 0, at, h, err
	}
	if err := json.Unmarshal(b, &h); err != nil {
		return 0, at, h, input.BadInput(fmt.Errorf("%s/%s is not a lease; delete it", m.Root, name))
	}
	return n, last.Modified, h, nil
}

// tidy deletes the leases up to a number.
func (m *Mirror) tidy(ctx context.Context, last int) error {
	for n := last; n > max(0, last-3); n-- {
		if err := m.c.Remove(ctx, m.bucket, m.prefix+leaseName(n)); err != nil {
			return err
		}
	}
	return nil
}

// probe returns the server's time. It refuses servers that ignore conditions of writes.
func (m *Mirror) probe(ctx context.Context) (time.Time, error) {
	key := m.prefix + probePrefix + rand.Text()
	if err := m.c.Create(ctx, m.bucket, key, []byte("probe")); err != nil && !errors.Is(err, fs.ErrExist) {
		return time.Time{}, err
	}
	again := m.c.Create(ctx, m.bucket, key, []byte("again"))
	o, err := m.c.Stat(ctx, m.bucket, key)
	if err := cmp.Or(err, m.c.Remove(ctx, m.bucket, key)); err != nil {
		return time.Time{}, err
	}
	if again == nil {
		return time.Time{}, input.BadInput(fmt.Errorf("%s: the server ignores If-None-Match, so that two runs could commit the same checkpoint; use storage that supports conditional writes", m.Root))
	}
	if !errors.Is(again, fs.ErrExist) {
		return time.Time{}, again
	}
	return o.Modified, nil
}

func (l *lease) text() []byte {
	b, err := json.Marshal(l.holder)
	if err != nil {
		panic("store: " + err.Error())
	}
	return b
}

// renew writes the lease again. If another process has the next one, errLost.
func (l *lease) renew(ctx context.Context) error {
	n, _, h, err := l.m.lastLease(ctx)
	if err != nil {
		return err
	}
	if n > l.number {
		return &taken{l.m.Root, true, h}
	}
	if _, err := l.m.c.Stat(ctx, l.m.bucket, l.m.prefix+l.name); errors.Is(err, fs.ErrNotExist) {
		return &taken{l.m.Root, false, h}
	}
	return l.write(ctx, func() { l.Beat++ })
}

// write changes and writes the lease.
func (l *lease) write(ctx context.Context, change func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	begin := time.Now()
	change()
	if err := l.m.c.Write(ctx, l.m.bucket, l.m.prefix+l.name, l.text()); err != nil {
		return err
	}
	l.until = begin.Add(term)
	return nil
}

// taken is the error of a lease that another process has.
type taken struct {
	root string
	held bool
	by   holder
}

func (t *taken) Error() string {
	if !t.held {
		return fmt.Sprintf("%s: the lease of this run was deleted; checkpoints are no longer uploaded", t.root)
	}
	return fmt.Sprintf("%s: process %d on host %q took over the folder because this run did not renew its lease for %v; checkpoints are no longer uploaded", t.root, t.by.PID, t.by.Host, term)
}

// release ends the lease.
func (l *lease) release() error {
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Second)
	defer stop()
	if n, _, _, err := l.m.lastLease(ctx); err != nil || n > l.number {
		return nil // it expires, or is another's
	}
	_ = l.write(ctx, func() { l.Free = true }) // otherwise it expires
	return nil
}

// errSilent is the error of renewals that have not failed yet.
var errSilent = errors.New("the server does not answer")

// gate returns an error unless the lease is valid for a while. If it could not be renewed in time, it may
// be again.
func (m *Mirror) gate() error {
	if m.Follow {
		return nil
	}
	if err := m.lost(); err != nil {
		return err
	}
	m.lease.mu.Lock()
	defer m.lease.mu.Unlock()
	if time.Until(m.lease.until) < term/4 {
		return fmt.Errorf("the lease has expired: %w", cmp.Or(m.lease.failed, errSilent))
	}
	return nil
}

// renewals renews the lease at intervals until ctx ends or another process has it.
func (m *Mirror) renewals(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := m.lease.renew(ctx)
		m.lease.mu.Lock()
		m.lease.failed = err
		m.lease.mu.Unlock()
		if lost := (*taken)(nil); errors.As(err, &lost) {
			m.state.Lock()
			m.fatal = err
			m.state.Unlock()
			return
		}
	}
}

// Begin locks the folder on disk and acquires the lease. A follower does without the lease, and without
// the lock if a process of its run has it: that uploads for both. While another run holds either, the error
// is a *vfs.Locked. Until Begin has succeeded, another process of the run uploads.
func (m *Mirror) Begin(ctx context.Context) (err error) {
	if m.stop != nil {
		return nil
	}
	defer func() {
		if err != nil && m.locked != nil {
			err, m.locked = errors.Join(err, m.locked.Close()), nil
		}
	}()
	session := filepath.Join(m.local, sessionName)
	m.locked, err = (vfs.OS{}).Lock(filepath.Join(m.local, ".lock"))
	if errors.Is(err, vfs.ErrLocked) && m.Follow && m.joins(ctx, session) {
		return nil
	}
	if err == nil && m.Session != "" {
		err = input.WriteBytes(session, []byte(m.Session))
	}
	if err != nil {
		return err
	}
	if !m.Follow {
		owner, err := m.owner()
		if err == nil {
			m.lease, err = m.acquire(ctx, owner)
		}
		if err == nil {
			err = m.look(ctx)
		}
		if err != nil {
			return err
		}
	}
	if err := m.heal(ctx); err != nil {
		return err
	}
	m.state.Lock()
	m.sent, m.bad = map[string]string{}, map[string]altered{}
	if m.small == nil {
		m.small = map[string][]byte{}
	}
	m.state.Unlock()
	m.background, m.stop = context.WithCancel(context.Background())
	if !m.Follow {
		every := max(term/4, time.Second)
		m.work.Go(func() { m.renewals(m.background, every) })
	}
	return nil
}

// Again prepares for another Begin of the process, which may lead now. A lease stays that of the folder on disk.
func (m *Mirror) Again(follow bool) (err error) {
	m.end()
	if m.locked != nil {
		err = m.locked.Close()
	}
	m.state.Lock()
	defer m.state.Unlock()
	m.patience, m.Follow, m.started, m.locked, m.lease, m.stop = 3*term, follow, false, nil, nil, nil
	m.view, m.small, m.dooms = nil, nil, nil // what is not deleted yet is found again
	return err
}

// joins reports whether a process of this run has locked the folder on disk.
func (m *Mirror) joins(ctx context.Context, session string) bool {
	for range 100 { // it writes the session once it has the lock
		if b, _ := input.Read(session, 1024); string(b) == m.Session {
			return true
		}
		if input.Sleep(ctx, 50*time.Millisecond) != nil {
			return false
		}
	}
	return false
}

// Start begins to upload and delete in the background.
func (m *Mirror) Start() {
	if !m.started && m.stop != nil {
		m.started = true
		m.work.Go(func() { m.serve(m.background) })
	}
}

// CatchUp brings the hosts of a run to the same checkpoints before it begins. Each uploads what it has;
// meet returns when all have. Checkpoints of which files are missing, because a host was lost, are
// removed from the disks.
func (m *Mirror) CatchUp(ctx context.Context, meet func() error) error {
	if m.stop == nil {
		return errors.Join(meet(), meet())
	}
	for _, name := range m.saved() {
		if !m.committed(ctx, name) {
			if err := m.upload(ctx, name); err != nil {
				return err
			}
		}
	}
	if err := meet(); err != nil {
		return err
	}
	if m.Follow { // the leader commits first
		if err := meet(); err != nil {
			return err
		}
	}
	for _, name := range m.saved() {
		done := m.committed(ctx, name)
		if !done && !m.Follow {
			var err error
			if done, err = m.commit(ctx, name); err != nil {
				return err
			}
		}
		if !done {
			m.Note(fmt.Sprintf("removing %s from %s: some hosts did not upload their part, so it is incomplete", name, m.local))
			if err := errors.Join(m.forget(name), m.discard(name)); err != nil {
				return err
			}
		}
	}
	if m.Follow {
		return nil
	}
	return meet()
}

// discard makes the leader delete what all hosts have uploaded of a folder.
func (m *Mirror) discard(name string) error {
	if m.Follow {
		return nil
	}
	all, err := m.remote(m.prefix + name + "/")
	m.state.Lock()
	for _, o := range all {
		m.view[name+"/"+o.Key] = o.Size
	}
	m.state.Unlock()
	m.doom(name)
	return err
}

// owner returns the name of the folder on disk in leases.
func (m *Mirror) owner() (string, error) {
	name := filepath.Join(m.local, ownerName)
	if b, err := input.Read(name, 100); err == nil && len(b) > 0 {
		return string(b), nil
	}
	owner := rand.Text()
	return owner, input.WriteBytes(name, []byte(owner))
}

// look reads what is in the folder, and removes copies on disk of checkpoints that the folder does not
// have: those that are older than its newest were deleted there.
func (m *Mirror) look(ctx context.Context) error {
	all, err := m.fresh(ctx)
	if err != nil {
		return err
	}
	view, small, newest := map[string]int64{}, map[string][]byte{}, int64(0)
	for _, o := range all {
		view[o.Key] = o.Size
	}
	for name := range view {
		folder, file, _ := strings.Cut(name, "/")
		if file != commitName || !whole(folder) {
			continue
		}
		for _, f := range []string{commitName, manifestName} {
			b, err := m.c.ReadFile(ctx, m.bucket, m.prefix+folder+"/"+f, 64<<20)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err == nil {
				small[folder+"/"+f] = b
			} else if f == commitName { // the list is stale
				delete(view, name)
				break
			}
		}
		if n, ok := number(string(small[name])); ok && strings.HasPrefix(folder, "step-") {
			newest = max(newest, n)
		}
	}
	for _, name := range m.saved() {
		mark := m.commitOnDisk(name)
		n, _ := number(mark)
		far, there := small[name+"/"+commitName]
		stale := there && string(far) != mark || !there && strings.HasPrefix(name, "step-") && n <= newest
		if stale {
			m.Note(fmt.Sprintf("removing %s from %s: %s no longer contains this checkpoint", name, m.local, m.Root))
			if err := m.forget(name); err != nil {
				return err
			}
		}
	}
	m.state.Lock()
	defer m.state.Unlock()
	m.view, m.small = view, small
	return nil
}

// heal removes the folders on disk that were damaged after they were uploaded, so that they are read from
// object storage.
func (m *Mirror) heal(ctx context.Context) error {
	for _, name := range m.saved() {
		far, err := m.c.ReadFile(ctx, m.bucket, m.prefix+name+"/"+commitName, 1024)
		if err != nil || string(far) != m.commitOnDisk(name) {
			continue // not uploaded
		}
		far, err = m.c.ReadFile(ctx, m.bucket, m.prefix+name+"/"+manifestName, 64<<20)
		if err != nil {
			continue
		}
		if wrong := m.sound(name, far); wrong != nil {
			m.Note(fmt.Sprintf("removing %s from %s, where it is damaged: %v; it is read from %s", name, m.local, wrong, m.Root))
			if err := m.forget(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// sound returns an error if a file of a folder on disk is not that of a manifest. Files that are not there
// are read from object storage.
func (m *Mirror) sound(name string, manifest []byte) error {
	have, err := input.Read(filepath.Join(m.local, name, manifestName), 64<<20)
	if err == nil && !bytes.Equal(have, manifest) {
		err = fmt.Errorf("%s differs", manifestName)
	}
	var l listed
	if err == nil {
		err = json.Unmarshal(manifest, &l)
	}
	for i := 0; err == nil && i < len(l.Files); i++ {
		err = l.Files[i].sound(filepath.Join(m.local, name, filepath.Base(l.Files[i].Name)))
	}
	return err
}

// sound returns an error if there is a file at path that is not the one of the manifest.
func (f listedFile) sound(path string) error {
	in, err := input.Open(path, math.MaxInt64)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close() // only read from
	var sum hash.Hash = crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if f.SHA256 != "" {
		sum = sha256.New()
	}
	n, err := io.CopyBuffer(sum, in, make([]byte, 1<<20))
	if want := f.CRC + f.SHA256; err == nil && (n != f.Bytes || want != "" && want != hex.EncodeToString(sum.Sum(nil))) {
		err = fmt.Errorf("%s differs", f.Name)
	}
	return err
}

// fresh lists the folder, again if the list is older than the last commit.
func (m *Mirror) fresh(ctx context.Context) (all []s3.Object, err error) {
	last := m.lease.Newest + "/" + commitName
	for range 100 {
		if all, err = m.remote(m.prefix); err != nil || m.lease.Newest == "" || slices.ContainsFunc(all, func(o s3.Object) bool { return o.Key == last }) {
			return all, err
		}
		if _, err := m.c.Stat(ctx, m.bucket, m.prefix+last); errors.Is(err, fs.ErrNotExist) {
			return all, nil // deleted since
		}
		if err := input.Sleep(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: the server has %s, but does not list it", m.Root, last)
}

// lock begins the mirror of a folder, with a temporary folder on disk if it has none.
func lock(root string) (io.Closer, error) {
	p, err := find(root)
	if err != nil {
		return nil, err
	}
	if p.rel == "" && p.local != "" {
		if err := p.Begin(context.Background()); err != nil {
			return nil, err
		}
		p.Start()
		return nothing{}, nil
	}
	dir, err := input.TempDir("zeroth-s3-")
	if err != nil {
		return nil, err
	}
	m, err := Use(root, Options{Local: dir})
	if err == nil {
		m.brief = true
		err = m.Begin(context.Background())
	}
	if err == nil {
		m.Start()
	}
	if err != nil {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
		return nil, errors.Join(err, input.RemoveTemp(dir))
	}
	return brief{m, dir}, nil
}

// nothing is the lock of a folder that its user ends.
type nothing struct{}

func (nothing) Close() error { return nil }

// brief is the lock of a folder that is used for one command.
type brief struct {
	*Mirror
	dir string
}

// mostFlush is how long a command waits for uploads and deletions.
const mostFlush = 24 * time.Hour

func (b brief) Close() error {
	ctx, stop := context.WithTimeout(context.Background(), mostFlush)
	defer stop()
	return errors.Join(b.Flush(ctx), b.Mirror.Close(), input.RemoveTemp(b.dir))
}
