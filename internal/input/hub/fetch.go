package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"zeroth/internal/input"
	"zeroth/internal/input/s3"
	"zeroth/internal/parallel"
)

// atOnce is the number of files that are downloaded at the same time.
const atOnce = 4

// Fetch downloads the files of a model that are missing in the cache. It returns the name with its
// revision replaced by the commit, for Folder. It makes no connection for a commit with all files in
// the cache. note receives messages for people; nil discards them.
//
// Processes that fetch the same model wait for each other: one downloads, the others find the files.
func Fetch(ctx context.Context, name string, files Files, note func(string)) (pinned string, err error) {
	if note == nil {
		note = func(string) {}
	}
	if s3.Is(name) {
		return name, fetchObjects(ctx, name, files, note)
	}
	m, err := parse(name)
	if err != nil {
		return "", err
	}
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	f := &fetcher{cache: cache, asked: time.Now(), note: note}
	if offline() {
		return f.offline(m, files)
	}
	if m.pinned() && f.complete(m, files) {
		return m.String(), nil
	}
	if f.client, err = newClient(note); err != nil {
		return "", err
	}
	defer f.client.close()
	lock, err := input.LockFile(ctx, filepath.Join(cache, ".locks", m.base(), "model.lock"), func() { note(fmt.Sprintf("waiting for another process that downloads %s%s", scheme, m.repo)) })
	if err != nil {
		return "", f.unwritable(err)
	}
	defer lock.Close() // nothing was written
	m, t, err := f.resolve(ctx, m)
	if err == nil {
		err = f.fetch(ctx, m, t, files)
	}
	return m.String(), f.unwritable(err)
}

// fetcher is one call of Fetch.
type fetcher struct {
	client *client
	cache  string
	asked  time.Time
	note   func(string)

	store   *s3.Client // of a model in object storage
	bucket  string
	objects map[string]s3.Object // its files by path
}

// unwritable adds advice to errors of a cache that cannot be written.
func (f *fetcher) unwritable(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) && !input.IsInput(err) {
		return input.BadInput(fmt.Errorf("%w; set HF_HOME to another folder", err))
	}
	return err
}

// complete reports whether all files of a commit are in the cache.
func (f *fetcher) complete(m model, files Files) bool {
	t, ok := readTree(f.cache, m)
	return ok && len(f.missing(m, t.small(files))) == 0 && f.weightsMissing(m, t, files) == ""
}

// missing returns the names that are not in the cache.
func (f *fetcher) missing(m model, names []string) (missing []string) {
	for _, name := range names {
		if !input.Exists(f.path(m, name)) {
			missing = append(missing, name)
		}
	}
	return missing
}

// weightsMissing returns the name of a file with weights that is needed and not in the cache, or "".
func (f *fetcher) weightsMissing(m model, t tree, files Files) string {
	if files < Weights {
		return ""
	}
	names, err := t.large(m, m.snapshot(f.cache))
	if err != nil || names[0] == "" {
		return cmp.Or(t.weights(), single)
	}
	if missing := f.missing(m, names); len(missing) > 0 {
		return missing[0]
	}
	return ""
}

func (f *fetcher) path(m model, name string) string {
	return filepath.Join(m.snapshot(f.cache), filepath.FromSlash(name))
}

// offline finds a model in the cache.
func (f *fetcher) offline(m model, files Files) (string, error) {
	what, at := "", m
	if c, ok := f.ref(m); ok {
		at = m.at(c)
	}
	t, ok := readTree(f.cache, at)
	if !ok { // of a program that writes none: what is there counts
		t = folderTree(at.snapshot(f.cache))
	}
	switch missing := f.missing(at, t.small(files)); {
	case len(t.Files) == 0:
		what = "revision " + m.revision
	case len(missing) > 0:
		what = missing[0]
	default:
		what = f.weightsMissing(at, t, files)
	}
	if what != "" {
		return "", input.BadInput(fmt.Errorf("%v: %s is not in the cache %s, and HF_HUB_OFFLINE forbids downloading it; unset that", m, what, f.cache))
	}
	return at.String(), nil
}

func (f *fetcher) refFile(m model) string {
	return filepath.Join(f.cache, m.base(), "refs", filepath.FromSlash(m.revision))
}

// ref returns the cached commit of a branch or tag.
func (f *fetcher) ref(m model) (string, bool) {
	raw, err := input.Read(f.refFile(m), 1024)
	c := strings.TrimSpace(string(raw))
	return c, err == nil && commit.MatchString(c)
}

// resolve returns the model at its commit, and the list of its files. If another process has asked
// the Hub since Fetch was called, its answer is used.
func (f *fetcher) resolve(ctx context.Context, m model) (model, tree, error) {
	known := m
	if info, err := os.Stat(f.refFile(m)); err == nil && info.ModTime().After(f.asked) {
		if c, ok := f.ref(m); ok {
			known = m.at(c)
		}
	}
	if known.pinned() {
		if t, ok := readTree(f.cache, known); ok {
			return known, t, nil
		}
	}
	info, err := f.client.revision(ctx, m)
	if err != nil {
		return m, tree{}, err
	}
	at, t := m.at(info.Commit), info.tree()
	raw, err := json.Marshal(t)
	if err == nil {
		err = write(treeFile(f.cache, at), raw)
	}
	if err == nil && !m.pinned() {
		err = write(f.refFile(m), []byte(info.Commit))
	}
	return at, t, err
}

// write writes a file and its folders.
func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return input.WriteBytes(path, content)
}

// fetch downloads missing files.
func (f *fetcher) fetch(ctx context.Context, m model, t tree, files Files) error {
	if t.first("config.json", "adapter_config.json") == "" && files < AnyWeights {
		return input.BadInput(fmt.Errorf("%v has no config.json; %s shows its files", m, f.client.page(m)))
	}
	if err := f.download(ctx, m, t, t.small(files), maxSmall); err != nil || files < Weights {
		return err
	}
	switch w := t.weights(); {
	case w == "":
		return input.BadInput(fmt.Errorf("%v has neither %s nor %s; %s shows its files", m, single, pickle, f.client.page(m)))
	case files == Weights && (w == pickle || w == pickleIndex):
		return input.BadInput(fmt.Errorf("%v has %s, but no safetensors; convert it with 'zeroth ckpt export %v --to FOLDER' and use that folder", m, pickle, m))
	}
	names, err := t.large(m, m.snapshot(f.cache))
	if err != nil {
		return err
	}
	return f.download(ctx, m, t, names, maxFile)
}

// download downloads the missing files among names. All files together must be within a limit.
func (f *fetcher) download(ctx context.Context, m model, t tree, names []string, limit int64) error {
	names = f.missing(m, names)
	if err := t.check(m, names, limit); err != nil || len(names) == 0 {
		return err
	}
	blobs := filepath.Join(f.cache, m.base(), "blobs")
	if err := os.MkdirAll(blobs, 0o777); err != nil {
		return err
	}
	total, have := int64(0), int64(0)
	for _, name := range names {
		x := t.Files[name]
		total += x.Size
		for _, path := range []string{filepath.Join(blobs, x.sum()), filepath.Join(blobs, x.sum()+".incomplete")} {
			if info, err := os.Stat(path); err == nil {
				have += min(info.Size(), x.Size)
				break
			}
		}
	}
	const headroom = 16 << 20 // bytes, for everything else
	if free, err := input.Space(blobs); err == nil && total-have+headroom > free {
		return input.BadInput(fmt.Errorf("%v: the download needs %d MB, but %s has only %d MB free; free some space, or set HF_HOME to a folder on another disk", m, (total-have)/1e6, f.cache, free/1e6))
	}
	if limit == maxFile {
		f.note(fmt.Sprintf("downloading %d MB of %v to %s", (total-have)/1e6, m, f.cache))
	}
	p := &progress{total: total, begin: time.Now(), note: func(s string) { f.note(fmt.Sprintf("%v: %s", m, s)) }}
	p.done.Store(have)
	p.first = have
	return parallel.For(ctx, len(names), atOnce, func(ctx context.Context, i int) error { return f.one(ctx, m, names[i], t.Files[names[i]], p) })
}

// one downloads a file, unless another model or revision has brought its blob, and links it.
func (f *fetcher) one(ctx context.Context, m model, name string, x file, p *progress) error {
	blob := filepath.Join(f.cache, m.base(), "blobs", x.sum())
	lock, err := input.LockFile(ctx, filepath.Join(f.cache, ".locks", m.base(), x.sum()+".lock"), func() {})
	if err != nil {
		return err
	}
	defer lock.Close() // nothing was written
	if info, err := os.Stat(blob); err != nil || info.Size() != x.Size {
		if err := f.client.download(ctx, m, name, x, blob, p); err != nil {
			return err
		}
	}
	return link(blob, f.path(m, name))
}

// link creates a relative symbolic link to a blob, in place of one that leads nowhere.
func link(blob, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	to, err := filepath.Rel(filepath.Dir(path), blob)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(to, path)
}

// progress counts downloaded bytes and reports them now and then.
type progress struct {
	total int64 // bytes
	first int64 // of done, when it began
	begin time.Time
	note  func(string)
	done  atomic.Int64
	last  atomic.Int64 // seconds since begin, at the last report
}

// seconds between two reports.
const reportEvery = 5

func (p *progress) add(n int64) {
	done, now, last := p.done.Add(n), int64(time.Since(p.begin).Seconds()), p.last.Load()
	if now-last >= reportEvery && p.last.CompareAndSwap(last, now) {
		p.note(fmt.Sprintf("%d of %d MB, %.1f MB/s", done/1e6, p.total/1e6, float64(done-p.first)/1e6/float64(now)))
	}
}
