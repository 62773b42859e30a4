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

	"zeroth/checkpoint/vfs"
)

// stepName is the folder of a step; try counts earlier ones of the same step.
func stepName(step int64, try int) string {
	if try > 0 {
		return fmt.Sprintf("%s%08d.%d", stepPrefix, step, try)
	}
	return fmt.Sprintf("%s%08d", stepPrefix, step)
}

// parseStepName is the step of a checkpoint's folder name, with a number of
// tries or without.
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

// parseTmpName is the step of a temporary folder's name.
func parseTmpName(name string) (step int64, ok bool) {
	name, ok = strings.CutPrefix(name, tmpPrefix)
	if i := strings.LastIndexByte(name, '-'); ok && i > 0 && nonceForm.MatchString(name[i+1:]) {
		return parseStepName(name[:i])
	}
	return 0, false
}

// isTrashName is whether a name is that of a folder which is being deleted: of
// a checkpoint or a temporary folder, with a nonce.
func isTrashName(name string) bool {
	name, ok := strings.CutPrefix(name, trashPrefix)
	i := strings.LastIndexByte(name, '-')
	if !ok || i < 0 || !nonceForm.MatchString(name[i+1:]) {
		return false
	}
	_, step := parseStepName(name[:i])
	_, tmp := parseTmpName(name[:i])
	return step || tmp
}

// Status is what a folder is.
type Status uint8

const (
	Complete Status = iota // committed, all files there in their size
	Damaged                // committed, but something is missing or altered
	Partial                // a save in progress or cut short; never loaded
	Trash                  // being deleted
)

var statusNames = [...]string{"complete", "damaged", "partial", "trash"}

func (s Status) String() string { return statusNames[s] }

// MarshalText makes a Status its name in JSON.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Entry is a checkpoint, or what looks like one, in a folder of checkpoints.
type Entry struct {
	Path    string             `json:"path"`
	Status  Status             `json:"status"`
	Why     string             `json:"why,omitempty"` // not complete
	Step    int64              `json:"step"`
	Seq     int64              `json:"seq"`   // of the commit: later ones have higher numbers; 0 if COMMIT and manifest do not agree on it
	Bytes   int64              `json:"bytes"` // of all files
	Created time.Time          `json:"created,omitzero"`
	Writers int                `json:"writers"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
}

// ErrNone means that a folder has no checkpoint.
var ErrNone = errors.New("no checkpoint")

// List is what is in a folder of checkpoints, in the order of commits; then
// those whose place in it is not known, and partial ones and trash. A folder
// that does not exist is an empty one. It looks at names and sizes; Verify
// looks at every byte.
func List(root string) ([]Entry, error) { return ListIn(vfs.OS{}, root) }

// ListIn is List in another file system.
func ListIn(fsys vfs.FS, root string) ([]Entry, error) {
	for range tries {
		list, moved, err := listOnce(fsys, root)
		if err != nil || !moved {
			return list, err
		}
	}
	return nil, fmt.Errorf("%s: checkpoints are deleted faster than they can be listed", root)
}

// listOnce is a List, unless moved: then names changed while they were read, or a
// folder was deleted before it was looked at, and there may be newer ones.
func listOnce(fsys vfs.FS, root string) (list []Entry, moved bool, err error) {
	in, moved, err := listTwice(fsys, root)
	if err != nil || moved {
		return nil, moved, err
	}
	for _, d := range in {
		e := Entry{Path: filepath.Join(root, d.Name)}
		if !e.is(d.Name) || e.Status != Complete && d.Kind != vfs.Dir {
			continue
		}
		if e.Status == Complete {
			e.look(fsys)
		}
		if e.Status == Damaged {
			if _, err := fsys.Lstat(e.Path); errors.Is(err, fs.ErrNotExist) {
				return nil, true, nil
			}
		}
		list = append(list, e)
	}
	doubt(list)
	sort.SliceStable(list, func(i, j int) bool { return list[i].before(list[j]) })
	return list, false, nil
}

// listTwice reads a folder's names twice, unless it does not exist. A system may leave out of one
// reading what is renamed meanwhile (readdir of POSIX): the newest checkpoint, which
// came behind it, and the one before, which went ahead of it. Then moved is true.
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

// doubt marks as damaged what has the number of another commit: of a copy, or
// of a folder with another's COMMIT and manifest, nobody knows which is newer.
func doubt(list []Entry) {
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

// Stat is what a checkpoint's folder, or what looks like one, is by itself; ok
// is false for any other folder or file. A checkpoint may have been renamed.
func Stat(path string) (e Entry, ok bool) { return StatIn(vfs.OS{}, path) }

// StatIn is Stat in another file system.
func StatIn(fsys vfs.FS, path string) (e Entry, ok bool) {
	if d, err := fsys.Stat(path); err != nil || d.Kind != vfs.Dir {
		return e, false
	}
	e.Path = path
	if ok = e.is(baseName(path)); !ok {
		m, err := readManifest(fsys, path)
		if err != nil {
			return Entry{}, false
		}
		e.Step = m.Step
	}
	if e.Status == Complete {
		e.look(fsys)
	}
	return e, true
}

// is fills in what a folder's name says: whether it is one of ours, its step,
// and whether it can be complete.
func (e *Entry) is(name string) bool {
	if isTrashName(name) {
		e.Status, e.Why = Trash, "its deletion was cut short; the next save or prune ends it"
		return true
	}
	var tmp, step bool
	if e.Step, tmp = parseTmpName(name); tmp {
		e.Status, e.Why = Partial, "a save in progress or cut short: it was never committed"
		return true
	}
	e.Step, step = parseStepName(name)
	return step
}

// before is the order of a list: commits by their number, then what has none,
// then partial ones and trash.
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

// look fills in what a committed folder says of itself.
func (e *Entry) look(fsys vfs.FS) {
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
		err = errors.New("it is a symbolic link that leads nowhere")
	}
	if err != nil {
		return err
	}
	m, err := readManifest(fsys, e.Path)
	if err != nil {
		e.Seq = agreed(fsys, e.Path)
		return err
	}
	e.Step, e.Seq, e.Bytes, e.Created, e.Writers, e.Metrics = m.Step, m.Seq, m.bytes(), m.Created, m.Writers, m.Metrics
	return sizes(fsys, e.Path, m)
}

// agreed is the number of a commit of which COMMIT and manifest, read without
// the digest between them, and the folder's name say the same; 0 if they do
// not. Damage to one of them does not make them agree on another number.
func agreed(fsys vfs.FS, dir string) int64 {
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

// looseManifest is a manifest that nothing vouches for, nil if it cannot be read.
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

// sizes checks that the files of a manifest are there in their size.
func sizes(fsys vfs.FS, dir string, m *manifest) error {
	for _, f := range m.Files {
		st, err := fsys.Stat(filepath.Join(dir, f.Name))
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

// lastSeq is the highest number of a commit in a folder that a COMMIT or a
// manifest tells, 0 without any.
func lastSeq(fsys vfs.FS, root string) (seq int64, err error) {
	in, err := fsys.List(root)
	for _, d := range in {
		if _, ok := parseStepName(d.Name); !ok {
			continue
		}
		path := filepath.Join(root, d.Name)
		if c, err := readMarker(fsys, path); err == nil {
			seq = max(seq, c.seq)
		}
		if m := looseManifest(fsys, path); m != nil {
			seq = max(seq, m.Seq)
		}
	}
	return seq, err
}

// Resolve finds the checkpoint that a user means by "latest", a step, or a
// checkpoint's own folder.
//
// The latest is the newest commit, which is not always the highest step: a run that
// went back to an earlier step commits that step again. If a newer commit is damaged,
// or may be newer because its number cannot be read, Resolve returns an error that
// names it and the newest intact one, because going back silently could lose days of
// work. Without any checkpoint the error is ErrNone.
func Resolve(root, which string) (string, error) { return ResolveIn(vfs.OS{}, root, which) }

// ResolveIn is Resolve in another file system.
func ResolveIn(fsys vfs.FS, root, which string) (string, error) {
	step, err := strconv.ParseInt(which, 10, 64)
	if which != "latest" && err != nil {
		return resolvePath(fsys, which)
	}
	list, err := ListIn(fsys, root)
	if err != nil {
		return "", err
	}
	of := list
	if which != "latest" {
		of = slices.DeleteFunc(slices.Clone(list), func(e Entry) bool { return e.Step != step })
	}
	best, ok := Newest(of)
	switch {
	case !ok && which == "latest":
		return "", fmt.Errorf("%s: %w", root, ErrNone)
	case !ok:
		return "", fmt.Errorf("%s: step %d: %w (have %s)", root, step, ErrNone, steps(list))
	case best.Status == Damaged:
		return "", inTheWay(best, list)
	}
	return best.Path, nil
}

// resolvePath is a checkpoint's own folder.
func resolvePath(fsys vfs.FS, path string) (string, error) {
	e, ok := StatIn(fsys, path)
	if ok && e.Status > Damaged {
		return "", fmt.Errorf("%s: %s", path, e.Why)
	}
	if _, err := fsys.Stat(path); !ok && errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("no such folder; want latest, the step of a checkpoint, or its folder%s", meant(path))
	}
	if _, err := readManifest(fsys, path); err != nil {
		return "", fmt.Errorf("%s: not \"latest\", not a step, not a checkpoint's folder: %w", path, err)
	}
	return path, nil
}

// meant is what a word that names no checkpoint may stand for.
func meant(word string) string {
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

// inTheWay is the error of a list whose newest commit is damaged: it says
// which whole one can be asked for instead.
func inTheWay(bad Entry, list []Entry) error {
	maybe := ""
	if bad.Seq == 0 {
		maybe = " and may be the newest"
	}
	return fmt.Errorf("%s is damaged%s: %s; %s", bad.Path, maybe, bad.Why, instead(list))
}

// instead says which whole checkpoint can be asked for.
func instead(list []Entry) string {
	best, ok := Newest(slices.DeleteFunc(slices.Clone(list), func(e Entry) bool { return e.Status != Complete }))
	if !ok {
		return "there is no whole one"
	}
	return fmt.Sprintf("to go on from an older state, name it: the newest whole one is %s (have %s)", best.Path, steps(list))
}

// Instead says which of the checkpoints beside one, in whose data damage was found
// when they were read, can be asked for instead of it.
func Instead(path string) string {
	list, err := List(filepath.Dir(path))
	if err != nil {
		return err.Error()
	}
	return instead(slices.DeleteFunc(list, func(e Entry) bool { return filepath.Base(e.Path) == filepath.Base(path) }))
}

// Newest is the newest commit of a list; ok is false without any. It is a
// damaged one if that is newer than all whole ones, or if nobody knows: its
// Seq is 0 then.
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

// steps names the complete steps for a message.
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
