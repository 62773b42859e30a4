package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"zeroth/checkpoint/store"
	"zeroth/checkpoint/vfs"
)

// stepName returns the name of a step's folder; try counts earlier saves of the same step.
func stepName(step int64, try int) string {
	if try > 0 {
		return fmt.Sprintf("%s%08d.%d", stepPrefix, step, try)
	}
	return fmt.Sprintf("%s%08d", stepPrefix, step)
}

// parseStepName returns the step in the name of a checkpoint's folder, with or without a try.
func parseStepName(name string) (step int64, ok bool) {
	rest, ok := strings.CutPrefix(name, stepPrefix)
	digits, try, tried := strings.Cut(rest, ".")
	step, err := strconv.ParseInt(digits, 10, 64)
	n, err2 := strconv.Atoi(try)
	if err != nil || tried && err2 != nil || name != stepName(step, n) {
		return 0, false
	}
	return step, ok
}

// parseTmpName returns the step in the name of a temporary folder.
func parseTmpName(name string) (step int64, ok bool) {
	name, ok = strings.CutPrefix(name, tmpPrefix)
	if i := strings.LastIndexByte(name, '-'); ok && i > 0 && nonceForm.MatchString(name[i+1:]) {
		return parseStepName(name[:i])
	}
	return 0, false
}

// isTrashName reports whether a name belongs to a checkpoint or temporary folder being deleted.
func isTrashName(name string) bool {
	name, ok := strings.CutPrefix(name, trashPrefix)
	i := strings.LastIndexByte(name, '-')
	if !ok || i < 0 || !nonceForm.MatchString(name[i+1:]) {
		return false
	}
	_, step := parseStepName(name[:i])
	_, tmp := parseTmpName(name[:i])
	return step || tmp || isBase(name[:i])
}

// Status is the state of a folder.
type Status uint8

const (
	Complete Status = iota // committed, all files present with the right size
	Damaged                // committed, but files are missing or altered
	Partial                // a save in progress or interrupted; never loaded
	Trash                  // being deleted
)

var statusNames = [...]string{"complete", "damaged", "partial", "trash"}

func (s Status) String() string { return statusNames[s] }

// MarshalText encodes a Status as its name.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Entry is a checkpoint, or a folder named like one, in a folder of checkpoints.
type Entry struct {
	Path    string             `json:"path"`
	Status  Status             `json:"status"`
	Why     string             `json:"why,omitempty"` // if not complete
	Step    int64              `json:"step"`
	Seq     int64              `json:"seq"`   // number of the commit, ascending; 0 if COMMIT and manifest disagree on it
	Bytes   int64              `json:"bytes"` // of all files
	Created time.Time          `json:"created,omitzero"`
	Writers int                `json:"writers"`
	Metrics map[string]float64 `json:"metrics,omitempty"`

	Base      string `json:"base,omitempty"`       // name of the base folder; "" if there is none
	BaseBytes int64  `json:"base_bytes,omitempty"` // of all its files
}

// ErrNone means that a folder has no checkpoint.
var ErrNone = errors.New("no checkpoint")

// List returns the entries of a folder of checkpoints: commits in order, then those with unknown
// order, then partial saves and trash. A missing folder counts as empty. List examines names and
// sizes; Verify examines every byte.
func List(root string) ([]Entry, error) { return ListIn(store.Files{}, root) }

// ListIn is like List in another file system.
func ListIn(fsys vfs.FS, root string) ([]Entry, error) {
	for range tries {
		list, moved, err := listOnce(fsys, root)
		if err != nil || !moved {
			return list, err
		}
	}
	return nil, fmt.Errorf("%s: checkpoints are being deleted faster than they can be listed", root)
}

// listOnce is like List, but returns moved if names changed while they were read, or if a folder
// was deleted before it was examined: then there may be others.
func listOnce(fsys vfs.FS, root string) (list []Entry, moved bool, err error) {
	in, moved, err := listTwice(fsys, root)
	if err != nil || moved {
		return nil, moved, err
	}
	for _, d := range in {
		e := Entry{Path: vfs.Join(root, d.Name)}
		if !e.parseName(d.Name) || e.Status != Complete && d.Kind != vfs.Dir {
			continue
		}
		if e.Status == Complete {
			e.inspect(fsys)
		}
		if e.Status == Damaged {
			if _, err := fsys.Lstat(e.Path); errors.Is(err, fs.ErrNotExist) {
				return nil, true, nil
			}
		}
		list = append(list, e)
	}
	markDuplicates(list)
	sort.SliceStable(list, func(i, j int) bool { return list[i].before(list[j]) })
	return list, false, nil
}

// listTwice reads a folder's names twice, unless it does not exist, and returns moved if they
// differ. POSIX readdir may miss names that are renamed while it reads. Then two could be missing:
// the newest checkpoint, renamed into place after its position was passed, and the previous one,
// renamed away before.
func listTwice(fsys vfs.FS, root string) (in []vfs.Entry, moved bool, err error) {
	in, err = fsys.List(root)
	if err == nil {
		var again []vfs.Entry
		again, err = fsys.List(root)
		moved = !slices.EqualFunc(in, again, func(a, b vfs.Entry) bool { return a.Name == b.Name })
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return in, moved, err
}

// markDuplicates marks checkpoints with the same commit number as damaged. One may be a copy, or
// have the other's COMMIT and manifest, so it is unknown which is newer.
func markDuplicates(list []Entry) {
	same := map[int64][]int{} // indices by Seq
	for i, e := range list {
		if e.Seq > 0 {
			same[e.Seq] = append(same[e.Seq], i)
		}
	}
	for _, twins := range same {
		for k, i := range twins {
			if len(twins) > 1 {
				other := filepath.Base(list[twins[(k+1)%len(twins)]].Path)
				list[i].Status, list[i].Seq = Damaged, 0
				list[i].Why = fmt.Sprintf("has the same commit number as %s: one is a copy, or has the COMMIT and manifest of another", other)
			}
		}
	}
}

// Stat describes the folder of a checkpoint, even if renamed, or a folder named like one. ok is
// false for any other folder or file.
func Stat(path string) (e Entry, ok bool) { return StatIn(store.Files{}, path) }

// StatIn is like Stat in another file system.
func StatIn(fsys vfs.FS, path string) (e Entry, ok bool) {
	if d, err := fsys.Stat(path); err != nil || d.Kind != vfs.Dir {
		return e, false
	}
	e.Path = path
	if ok = e.parseName(baseName(path)); !ok {
		m, err := readManifest(fsys, path)
		if err != nil {
			return Entry{}, false
		}
		e.Step = m.Step
	}
	if e.Status == Complete {
		e.inspect(fsys)
	}
	return e, true
}

// parseName sets the fields that follow from a folder's name, and reports whether the name belongs
// to the format.
func (e *Entry) parseName(name string) bool {
	if isTrashName(name) {
		e.Status, e.Why = Trash, "its deletion was interrupted; the next save or prune completes it"
		return true
	}
	var tmp, step bool
	if e.Step, tmp = parseTmpName(name); tmp {
		e.Status, e.Why = Partial, "a save in progress or interrupted: it was never committed"
		return true
	}
	e.Step, step = parseStepName(name)
	return step
}

// before orders a list: commits by number, then those without one, then partial saves and trash.
func (e Entry) before(o Entry) bool {
	group := func(e Entry) int {
		switch {
		case e.Status > Damaged:
			return 2
		case e.Seq == 0:
			return 1
		}
		return 0
	}
	if a, b := group(e), group(o); a != b {
		return a < b
	}
	return e.Seq < o.Seq
}

// inspect reads the manifest of a committed folder and sets the fields that follow from it.
func (e *Entry) inspect(fsys vfs.FS) {
	err := e.read(fsys)
	if err != nil {
		e.Status, e.Why = Damaged, err.Error()
	}
}

func (e *Entry) read(fsys vfs.FS) error {
	d, err := fsys.Stat(e.Path)
	if err == nil && d.Kind != vfs.Dir {
		err = fmt.Errorf("it is %v; want a folder, or a link to one", d.Kind)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("it is a dangling symbolic link")
	}
	if err != nil {
		return err
	}
	m, err := readManifest(fsys, e.Path)
	if err != nil {
		e.Seq = agreedSeq(fsys, e.Path)
		return err
	}
	e.Step, e.Seq, e.Bytes, e.Created, e.Writers, e.Metrics = m.Step, m.Seq, m.bytes(), m.Created, m.Writers, m.Metrics
	if err := sizes(fsys, e.Path, m); err != nil || m.Base == "" {
		return err
	}
	b, err := readBase(fsys, nextTo(e.Path, m.Base))
	if err == nil {
		e.Base, e.BaseBytes = m.Base, b.bytes()
	}
	return err
}

// agreedSeq returns the number of a commit if COMMIT, the manifest (read without checking its digest)
// and the folder's name agree on it, otherwise 0. Damage to one of them cannot make them agree on
// another number.
func agreedSeq(fsys vfs.FS, dir string) int64 {
	c, err := readMarker(fsys, dir)
	if err != nil {
		return 0
	}
	m := looseManifest(fsys, dir)
	step, ok := parseStepName(baseName(dir))
	if m == nil || m.Seq != c.seq || m.Step != c.step || m.Nonce != c.nonce || !ok || step != m.Step {
		return 0
	}
	return m.Seq
}

// looseManifest reads a manifest without checking its digest. It returns nil if that fails.
func looseManifest(fsys vfs.FS, dir string) *manifest {
	b, err := readSmall(fsys, dir, manifestName, maxJSON)
	if err != nil {
		return nil
	}
	m, err := parseManifest(b)
	if err != nil {
		return nil
	}
	return m
}

// sizes checks that the files of a manifest exist with the right size.
func sizes(fsys vfs.FS, dir string, m *manifest) error {
	for _, f := range m.Files {
		st, err := fsys.Stat(vfs.Join(dir, f.Name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return &Damage{File: f.Name, Why: "is missing"}
		case err != nil:
			return err
		case st.Kind != vfs.Regular:
			return &Damage{File: f.Name, Why: fmt.Sprintf("is %v; want a file", st.Kind)}
		case st.Bytes != f.Bytes:
			return &Damage{File: f.Name, Why: fmt.Sprintf("has %d bytes, the manifest says %d", st.Bytes, f.Bytes)}
		}
	}
	return nil
}

// lastSeq returns the highest commit number in any COMMIT or manifest in a folder, or 0.
func lastSeq(fsys vfs.FS, root string) (seq int64, err error) {
	in, err := fsys.List(root)
	for _, d := range in {
		if _, ok := parseStepName(d.Name); !ok {
			continue
		}
		path := vfs.Join(root, d.Name)
		if c, err := readMarker(fsys, path); err == nil {
			seq = max(seq, c.seq)
		}
		if m := looseManifest(fsys, path); m != nil {
			seq = max(seq, m.Seq)
		}
	}
	return seq, err
}

// Resolve finds the checkpoint that a user means by "latest", a step, or a checkpoint's own folder.
//
// The latest is the newest commit, which is not always the highest step: a run that went back to an
// earlier step commits that step again. If a newer commit is damaged, or may be newer because its
// number cannot be read, Resolve returns an error naming it and the newest intact one, because
// going back silently could lose days of work. Without any checkpoint the error is ErrNone.
func Resolve(root, which string) (string, error) { return ResolveIn(store.Files{}, root, which) }

// ResolveIn is like Resolve in another file system.
func ResolveIn(fsys vfs.FS, root, which string) (string, error) {
	step, err := strconv.ParseInt(which, 10, 64)
	if which != "latest" && err != nil {
		return resolvePath(fsys, which)
	}
	list, err := ListIn(fsys, root)
	if err != nil {
		return "", err
	}
	candidates := list
	if which != "latest" {
		candidates = slices.DeleteFunc(slices.Clone(list), func(e Entry) bool { return e.Step != step })
	}
	best, ok := Newest(candidates)
	switch {
	case !ok && which == "latest":
		return "", fmt.Errorf("%s: %w", root, ErrNone)
	case !ok:
		return "", fmt.Errorf("%s: step %d: %w (have %s)", root, step, ErrNone, steps(list))
	case best.Status == Damaged:
		return "", damagedError(best, list)
	}
	return best.Path, nil
}

// resolvePath checks that path is a checkpoint's folder and returns it.
func resolvePath(fsys vfs.FS, path string) (string, error) {
	e, ok := StatIn(fsys, path)
	if ok && e.Status > Damaged {
		return "", fmt.Errorf("%s: %s", path, e.Why)
	}
	if _, err := fsys.Stat(path); !ok && errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("no such folder; want latest, best, the step of a checkpoint, or its folder%s", suggestion(path))
	}
	if _, err := fsys.Stat(filepath.Join(path, "config.json")); err == nil {
		return "", fmt.Errorf("%s is a model, not a checkpoint: start from it with model.from, without --resume", path)
	}
	if _, err := readManifest(fsys, path); err != nil {
		return "", fmt.Errorf("%s: not \"latest\", not a step, not a checkpoint's folder: %w", path, err)
	}
	return path, nil
}

// suggestion returns a hint for a word that names no checkpoint.
func suggestion(word string) string {
	name := strings.ToLower(word)
	if slices.Contains([]string{"last", "lastest", "newest", "auto", "true", "yes"}, name) {
		return "; did you mean latest?"
	}
	for _, before := range []string{"step-", "step", "checkpoint-"} {
		digits, ok := strings.CutPrefix(name, before)
		if step, err := strconv.ParseInt(digits, 10, 64); ok && err == nil {
			return fmt.Sprintf("; did you mean %d?", step)
		}
	}
	return ""
}

// damagedError returns the error for a list whose newest commit is damaged. It names the intact
// commit to use instead.
func damagedError(bad Entry, list []Entry) error {
	maybe := ""
	if bad.Seq == 0 {
		maybe = " and may be the newest"
	}
	return fmt.Errorf("%s is damaged%s: %s; %s", bad.Path, maybe, bad.Why, alternative(list))
}

// alternative describes the intact checkpoint to use instead.
func alternative(list []Entry) string {
	best, ok := Newest(slices.DeleteFunc(slices.Clone(list), func(e Entry) bool { return e.Status != Complete }))
	if !ok {
		return "there is no intact one"
	}
	return fmt.Sprintf("to continue from an older state, give its path: the newest intact one is %s (have %s)", best.Path, steps(list))
}

// Alternative describes the checkpoint in the same folder to use instead of a damaged one.
func Alternative(path string) string {
	list, err := List(vfs.Parent(path))
	if err != nil {
		return err.Error()
	}
	return alternative(slices.DeleteFunc(list, func(e Entry) bool { return filepath.Base(e.Path) == filepath.Base(path) }))
}

// Newest returns the newest commit of a list; ok is false if there is none. If a damaged commit is
// or may be newer than all intact ones, it returns that one, with Seq 0 if its order is unknown.
func Newest(list []Entry) (best Entry, ok bool) {
	for _, e := range list {
		if e.Status == Complete && e.Seq > best.Seq || e.Status == Damaged && (e.Seq == 0 || e.Seq > best.Seq) {
			best = e
		}
		if e.Status == Damaged && e.Seq == 0 {
			break
		}
	}
	return best, best.Path != ""
}

// steps lists the complete steps for a message.
func steps(list []Entry) string {
	var s []string
	for _, e := range list {
		if e.Status == Complete {
			s = append(s, strconv.FormatInt(e.Step, 10))
		}
	}
	if len(s) == 0 {
		return "none"
	}
	if len(s) > 10 {
		s = append([]string{"…"}, s[len(s)-10:]...)
	}
	return strings.Join(s, ", ")
}
