package job

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"zeroth/checkpoint"
)

// FindCheckpoints is the folder of checkpoints that a user means by a path:
// that folder, or the folder of a run which has made some.
func FindCheckpoints(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", BadInput(fmt.Errorf("%s cannot be read: %w", path, cause(err)))
	}
	if !st.IsDir() {
		return "", BadInput(fmt.Errorf("%s is a file; want a folder of checkpoints or a run folder", path))
	}
	list, err := checkpoint.List(path)
	if err != nil {
		return "", err
	}
	if len(list) > 0 {
		return path, nil
	}
	for _, dir := range []string{filepath.Join(path, checkpointFolder), checkpointDir(filepath.Join(path, "job.yaml"))} {
		if dir != "" && exists(dir) {
			return dir, nil
		}
	}
	return "", BadInput(fmt.Errorf("%s has no checkpoints; want a checkpoint's folder, a folder of them, or the folder of a run that made some (checkpoint.every)", path))
}

// checkpointFolder is where in a run folder its checkpoints are, unless the
// job says otherwise.
const checkpointFolder = "ckpt"

// checkpointDir is checkpoint.dir of a job file, or "". What else is wrong
// with the file does not matter here.
func checkpointDir(file string) string {
	root, problems := readFile(file)
	if problems.fatal() {
		return ""
	}
	r := newReader(file, root)
	r.read()
	return r.config.Checkpoint.Dir
}

// Holds says in a word or two what a folder of a run has that is whole: its
// name and, of checkpoints, the newest step. It is empty for nothing.
func Holds(folder string) string {
	name := filepath.Base(folder)
	if list, err := checkpoint.List(folder); err == nil {
		if e, ok := checkpoint.Newest(list); ok {
			return fmt.Sprintf("%s (up to step %d)", name, e.Step)
		}
	}
	if m, err := OpenModelFolder(folder); err == nil {
		_ = m.Close() // only read from
		return name
	}
	return ""
}

// FindCheckpoint is the checkpoint that a user means by a path: its own
// folder, or the newest commit of a folder of checkpoints or of a run. That
// may be a damaged one.
func FindCheckpoint(path string) (checkpoint.Entry, error) {
	if e, ok := checkpoint.Stat(path); ok {
		if e.Status > checkpoint.Damaged {
			return e, BadInput(fmt.Errorf("%s: %s", path, e.Why))
		}
		return e, nil
	}
	root, err := FindCheckpoints(path)
	if err != nil {
		return checkpoint.Entry{}, err
	}
	list, err := checkpoint.List(root)
	if err != nil {
		return checkpoint.Entry{}, err
	}
	e, ok := checkpoint.Newest(list)
	if !ok {
		return e, BadInput(fmt.Errorf("%s has no checkpoint that was committed", root))
	}
	return e, nil
}

// OpenCheckpoint opens what FindCheckpoint finds. A damaged one is an error,
// which says which older one could be named.
func OpenCheckpoint(path string) (*checkpoint.Checkpoint, error) {
	e, err := FindCheckpoint(path)
	if err != nil {
		return nil, err
	}
	if e.Path == path {
		return checkpoint.Open(path)
	}
	return checkpoint.Find(filepath.Dir(e.Path), "latest")
}

// ParseKeep reads rules of retention as checkpoint.keep of a job file has
// them: 3, or {last: 3, every_steps: 1000, best: val_loss}.
func ParseKeep(s string) (k checkpoint.Keep, err error) {
	n, problems := parse([]byte(s), place{})
	v := retention{&k}
	if len(problems) > 0 || n == nil {
		return k, BadInput(fmt.Errorf("%q; want %s", s, v.want()))
	}
	if wrong := v.set(n); wrong != "" {
		return k, BadInput(fmt.Errorf("%s; want %s", wrong, v.want()))
	}
	return k, nil
}

// Fact is something to know about a checkpoint: a word and what it is.
type Fact [2]string

// Facts are what state.json of a checkpoint tells people.
func Facts(ck *checkpoint.Checkpoint) ([]Fact, error) {
	p, err := readProgress(ck)
	if err != nil {
		return nil, err
	}
	if !p.trained() {
		return []Fact{{"trained", "not yet: an imported model"}, {"written by", checkpoint.Plain(p.Version)}}, nil
	}
	facts := []Fact{
		{"trained", fmt.Sprintf("%s steps, %s tokens, %d skipped", grouped(int64(p.Step)), grouped(p.Tokens), p.Skipped)},
		{"data", fmt.Sprintf("fingerprint %s, seed %d, %s samples read", checkpoint.Plain(p.Data[:min(12, len(p.Data))]), p.Seed, grouped(p.Samples))},
		{"written by", checkpoint.Plain(p.Version)},
	}
	if err := p.goesOnFrom(ck); err != nil {
		facts = append(facts, Fact{"no resume", "state.json: " + checkpoint.Plain(err.Error())})
	}
	return facts, nil
}

// describes is the model of a config.json, which must be that of the parameters
// of a checkpoint.
func describes(config []byte, ck *checkpoint.Checkpoint) (Model, error) {
	m, err := parseModelConfig(config)
	if err != nil {
		return m, err
	}
	masters := 0
	for _, t := range ck.Tensors {
		if t.Kind != checkpoint.Master {
			continue
		}
		masters++
		if !t.DType.Float() {
			return m, fmt.Errorf("%v is %s, which is no type of a parameter", t, t.DType)
		}
	}
	if m.Layers > masters {
		return m, fmt.Errorf("it has %d layers, there are %d parameters", m.Layers, masters)
	}
	params := parameters(m.network())
	for _, p := range params {
		t, ok := ck.Tensor(p.Name, checkpoint.Master)
		if !ok || !slices.Equal(t.Shape, p.Shape) {
			return m, fmt.Errorf("it has a parameter %s of shape %v, the checkpoint has shape %v", p.Name, p.Shape, t.Shape)
		}
	}
	if len(params) != masters {
		return m, fmt.Errorf("it has %d parameters, the checkpoint %d", len(params), masters)
	}
	return m, nil
}
