package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
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
	if i := strings.LastIndexByte(name, '-'); ok && i > 0 {
		return parseStepName(name[:i])
	}
	return 0, false
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
	Seq     int64              `json:"seq"`   // of the commit: later ones have higher numbers; 0 unknown
	Bytes   int64              `json:"bytes"` // of all files
	Created time.Time          `json:"created,omitzero"`
	Writers int                `json:"writers"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
}

// ErrNone means that a folder has no checkpoint.
var ErrNone = errors.New("no checkpoint")

// List is what is in a folder of checkpoints, in the order of commits; partial
// ones and trash come last. A folder that does not exist is an empty one. It
// looks at names and sizes; Verify looks at every byte.
func List(root string) ([]Entry, error) { return ListIn(vfs.OS{}, root) }

// ListIn is List in another file system.
func ListIn(fsys vfs.FS, root string) ([]Entry, error) {
	in, err := fsys.List(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Entry
	for _, d := range in {
		e := Entry{Path: filepath.Join(root, d.Name)}
		if d.Dir && e.is(d.Name) {
			if e.Status == Complete {
				e.look(fsys)
			}
			out = append(out, e)
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].before(out[j]) })
	return out, nil
}

// Stat is what a checkpoint's folder, or what looks like one, is by itself; ok
// is false for any other folder or file. A checkpoint may have been renamed.
func Stat(path string) (e Entry, ok bool) { return StatIn(vfs.OS{}, path) }

// StatIn is Stat in another file system.
func StatIn(fsys vfs.FS, path string) (e Entry, ok bool) {
	if d, err := fsys.Stat(path); err != nil || !d.Dir {
		return e, false
	}
	abs, err := filepath.Abs(path)
	if err != nil { // there is no current folder
		abs = path
	}
	e.Path = path
	if ok = e.is(filepath.Base(abs)); !ok {
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
	if strings.HasPrefix(name, trashPrefix) {
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

func (e Entry) before(o Entry) bool {
	if a, b := e.Status > Damaged, o.Status > Damaged; a != b {
		return b
	}
	return e.Seq < o.Seq
}

// look fills in what a committed folder says of itself.
func (e *Entry) look(fsys vfs.FS) {
	e.Seq = seqOf(fsys, e.Path)
	m, err := readManifest(fsys, e.Path)
	if err == nil && m.Step != e.Step {
		err = fmt.Errorf("the folder is named as step %d, the manifest is of %d", e.Step, m.Step)
	}
	if err == nil {
		e.Seq, e.Bytes, e.Created, e.Writers, e.Metrics = m.Seq, m.bytes(), m.Created, m.Writers, m.Metrics
		err = sizes(fsys, e.Path, m)
	}
	if err != nil {
		e.Status, e.Why = Damaged, err.Error()
	}
}

// sizes checks that the files of a manifest are there in their size.
func sizes(fsys vfs.FS, dir string, m *manifest) error {
	for _, f := range m.Files {
		st, err := fsys.Stat(filepath.Join(dir, f.Name))
		if errors.Is(err, fs.ErrNotExist) {
			return &Damage{File: f.Name, Why: "is missing"}
		}
		if err != nil {
			return err
		}
		if st.Bytes != f.Bytes {
			return &Damage{File: f.Name, Why: fmt.Sprintf("has %d bytes, the manifest says %d", st.Bytes, f.Bytes)}
		}
	}
	return nil
}

// seqOf is the number of a folder's commit, 0 if it cannot be read.
func seqOf(fsys vfs.FS, dir string) int64 {
	b, err := vfs.ReadFile(fsys, filepath.Join(dir, commitName), 1024)
	if err != nil {
		return 0
	}
	c, err := parseMarker(b)
	if err != nil {
		return 0
	}
	return c.seq
}

// lastSeq is the highest number of a commit in a folder, 0 without any.
func lastSeq(fsys vfs.FS, root string) (seq int64, err error) {
	in, err := fsys.List(root)
	for _, d := range in {
		if _, ok := parseStepName(d.Name); ok && d.Dir {
			seq = max(seq, seqOf(fsys, filepath.Join(root, d.Name)))
		}
	}
	return seq, err
}

// Latest is the folder of the newest commit, which is not always that of the
// highest step: a run that went back to an earlier step commits that again. If
// a newer commit is damaged it is an error that names both, because to go back
// silently could lose days. Without any checkpoint it is ErrNone.
func Latest(root string) (string, error) { return Resolve(root, "latest") }

// Resolve finds the checkpoint that a user means by "latest", a step, or a
// checkpoint's own folder.
func Resolve(root, which string) (string, error) { return ResolveIn(vfs.OS{}, root, which) }

// ResolveIn is Resolve in another file system.
func ResolveIn(fsys vfs.FS, root, which string) (string, error) {
	list, err := ListIn(fsys, root)
	if err != nil {
		return "", err
	}
	if which == "latest" {
		return latest(root, list)
	}
	step, err := strconv.ParseInt(which, 10, 64)
	if err != nil {
		if _, err := readManifest(fsys, which); err != nil {
			return "", fmt.Errorf("%s: not \"latest\", not a step, not a checkpoint's folder: %w", which, err)
		}
		return which, nil
	}
	best := Entry{}
	for _, e := range list {
		if e.Status <= Damaged && e.Step == step && e.Seq >= best.Seq {
			best = e
		}
	}
	switch {
	case best.Path == "":
		return "", fmt.Errorf("%s: step %d: %w (have %s)", root, step, ErrNone, steps(list))
	case best.Status == Damaged:
		return "", fmt.Errorf("%s is damaged: %s", best.Path, best.Why)
	}
	return best.Path, nil
}

func latest(root string, list []Entry) (string, error) {
	best, ok := Newest(list)
	switch {
	case !ok:
		return "", fmt.Errorf("%s: %w", root, ErrNone)
	case best.Status == Damaged:
		return "", fmt.Errorf("%s is damaged: %s; ask for another step to go on from there (have %s)", best.Path, best.Why, steps(list))
	}
	return best.Path, nil
}

// Newest is the newest commit of a list, which may be a damaged one; ok is
// false without any. Of one whose number is lost the step decides.
func Newest(list []Entry) (best Entry, ok bool) {
	best.Step = -1
	for _, e := range list {
		if e.Status == Complete && e.Seq > best.Seq {
			best = e
		}
	}
	for _, e := range list {
		if e.Status == Damaged && (e.Seq > best.Seq || e.Seq == 0 && e.Step > best.Step) {
			best = e
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
