package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"zeroth/checkpoint"
	"zeroth/internal/show"
	"zeroth/job/report"
	"zeroth/job/state"
)

func (a *app) ckptLs() *cobra.Command {
	var asJSON bool
	cmd := a.onFolders(1, "ls DIR", "List checkpoints with their sizes, ages and status", func(_ *cobra.Command, args []string) error {
		list, err := entries(args[0])
		switch {
		case err != nil:
			return err
		case asJSON:
			return a.writeJSON(markBest(list))
		}
		return a.list(list)
	})
	cmd.Long = `List the checkpoints of a folder, the newest last, including those that cannot be
loaded, with the reason. The best is that with the best evaluation. It checks names and sizes; 'zeroth ckpt verify' reads every
byte.`
	cmd.Example = "  zeroth ckpt ls run1\n  zeroth ckpt ls run1/ckpt --json"
	jsonFlag(cmd, &asJSON)
	return cmd
}

// The JSON of ls.
type marked struct {
	checkpoint.Entry
	Best bool `json:"best,omitempty"`
}

func markBest(list []checkpoint.Entry) []marked {
	out := []marked{} // [] in JSON, not null
	best, _ := state.Best(list)
	for _, e := range list {
		out = append(out, marked{e, e.Path == best.Path})
	}
	return out
}

// entries returns the checkpoints of a folder, or the one checkpoint that path is.
func entries(path string) ([]checkpoint.Entry, error) {
	if e, ok := checkpoint.Stat(path); ok {
		return []checkpoint.Entry{e}, nil
	}
	root, err := state.FindCheckpoints(path)
	if err != nil {
		return nil, err
	}
	return checkpoint.List(root)
}

func (a *app) list(list []checkpoint.Entry) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(a.out, "no checkpoints yet")
		return err
	}
	latest, _ := checkpoint.Newest(list)
	best, _ := state.Best(list)
	t := &show.Columns{Align: "rrrrlll"}
	t.Add("step", "size", "age", "ranks", "metrics", "status", "folder")
	for _, e := range list {
		row := []string{fmt.Sprint(e.Step), "-", "-", "-", metricsText(e.Metrics), e.Status.String(), filepath.Base(e.Path)}
		if !e.Created.IsZero() {
			row[1], row[2], row[3] = show.BriefSize(e.Bytes), report.Age(e.Created), fmt.Sprint(e.Writers)
		}
		if e.Status == checkpoint.Complete && e.Path == latest.Path {
			row[5] += ", latest"
		}
		if e.Path == best.Path {
			row[5] += ", best"
		}
		if e.Why != "" {
			row[5] = fmt.Sprintf("%v: %s", e.Status, e.Why)
		}
		t.Add(row...)
	}
	if err := a.print(t); err != nil {
		return err
	}
	for i, e := range list {
		same := func(o checkpoint.Entry) bool { return o.Base == e.Base }
		if e.Base != "" && !slices.ContainsFunc(list[:i], same) {
			a.say("%s: %s of frozen parameters and files, stored once for these checkpoints\n", e.Base, show.BriefSize(e.BaseBytes))
		}
	}
	return nil
}

// metricsText returns metrics as text, sorted by name.
func metricsText(m map[string]float64) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		words = append(words, fmt.Sprintf("%s %.4f", checkpoint.Plain(name), m[name]))
	}
	return strings.Join(words, ", ")
}

func (a *app) ckptInspect() *cobra.Command {
	var asJSON bool
	var step string
	cmd := a.onFolders(1, "inspect DIR", "Show the tensors of a checkpoint, and which rank wrote which elements", func(_ *cobra.Command, args []string) error {
		if state.IsForeign(args[0]) {
			return a.inspectForeign(args[0], asJSON)
		}
		ck, err := openAt(args[0], step)
		if err != nil {
			return err
		}
		defer ck.Close()
		if !asJSON {
			return a.inspect(ck)
		}
		out, err := inspected(ck)
		if err != nil {
			return err
		}
		return a.writeJSON(out)
	})
	cmd.Long = `Show the tensors of a checkpoint: kind (master is the parameter, the others belong to
the optimizer), type, shape, and which rank wrote which elements. --json adds files,
offsets, codecs and the state that a resume needs. Checkpoints of DeepSpeed, FSDP and
torch.save are shown with their origin, version, stage, ranks, step and tensors.`
	cmd.Example = "  zeroth ckpt inspect run1\n  zeroth ckpt inspect run1/ckpt/step-00001000 --json | jq .state.tokens"
	stepFlag(cmd, &step, "latest")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// maxRanges is how many of a tensor's ranges inspect prints; --json lists all.
const maxRanges = 4

func (a *app) inspect(ck *checkpoint.Checkpoint) error {
	facts, err := state.Facts(ck)
	if err != nil {
		return err
	}
	files := 0
	for _, x := range ck.Tensors {
		if x.Kind == checkpoint.Attached {
			files++
		}
	}
	head := []state.Fact{
		{"folder", ck.Path},
		{"step", fmt.Sprintf("%d, saved %s (%s ago), commit %d", ck.Step, ck.Created.Local().Format(time.DateTime), report.Age(ck.Created), ck.Seq)},
		{"size", fmt.Sprintf("%s in %d tensors and %d files, written by %d ranks", show.BriefSize(ck.Bytes()), len(ck.Tensors)-files, files, ck.Writers())},
	}
	if ck.Base != nil {
		head = append(head, state.Fact{"shares", fmt.Sprintf("%d of these tensors and files with other checkpoints, %s in %s", len(ck.Base.Tensors), show.BriefSize(ck.Base.Bytes()), filepath.Base(ck.Base.Path))})
	}
	if len(ck.Metrics) > 0 {
		head = append(head, state.Fact{"metrics", metricsText(ck.Metrics)})
	}
	for _, f := range append(head, facts...) {
		a.say("%-10s %s\n", f[0], f[1])
	}
	fmt.Fprintln(a.out)
	t := &show.Columns{Align: "lllll"}
	t.Add("tensor", "kind", "type", "shape", "elements by rank")
	for _, x := range ck.Tensors {
		t.Add(checkpoint.Plain(x.Name), fmt.Sprint(x.Kind), fmt.Sprint(x.DType), fmt.Sprint(x.Shape), byRank(ck.Pieces(x.Name, x.Kind)))
	}
	return a.print(t)
}

// byRank describes which rank wrote which elements. It joins adjacent ranges of a rank.
func byRank(ps []checkpoint.Piece) string {
	var joined []checkpoint.Piece
	for _, p := range ps {
		if n := len(joined); n > 0 && joined[n-1].Writer == p.Writer && joined[n-1].Part == p.Part {
			joined[n-1].Range.Hi = p.Range.Hi
			continue
		}
		joined = append(joined, p)
	}
	var words []string
	for _, p := range joined[:min(maxRanges, len(joined))] {
		words = append(words, fmt.Sprintf("%d: %s[%d, %d)", p.Writer, p.Part, p.Range.Lo, p.Range.Hi))
	}
	if more := len(joined) - maxRanges; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, "  ")
}

// The JSON of inspect.
type (
	inspection struct {
		Path    string             `json:"path"`
		Step    int64              `json:"step"`
		Seq     int64              `json:"seq"`
		Created time.Time          `json:"created"`
		Writers int                `json:"writers"`
		Bytes   int64              `json:"bytes"`
		Metrics map[string]float64 `json:"metrics,omitempty"`
		State   json.RawMessage    `json:"state,omitempty"`
		Tensors []inspectedTensor  `json:"tensors"`
	}
	inspectedTensor struct {
		checkpoint.Tensor
		Pieces []checkpoint.Piece `json:"pieces"`
	}
)

// Limits of the state.json that inspect prints: bytes, and levels of nesting, because each
// level indents everything in it.
const (
	maxStateBytes = 4 << 20
	maxStateDepth = 16
)

// depth returns how deeply the objects and lists of a JSON text are nested. It stops
// counting above maxStateDepth.
func depth(raw []byte) (most int) {
	d, now := json.NewDecoder(bytes.NewReader(raw)), 0
	for most <= maxStateDepth {
		t, err := d.Token()
		if err != nil {
			break
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			now++
			most = max(most, now)
		case json.Delim('}'), json.Delim(']'):
			now--
		}
	}
	return most
}

func inspected(ck *checkpoint.Checkpoint) (inspection, error) {
	out := inspection{ck.Path, ck.Step, ck.Seq, ck.Created, ck.Writers(), ck.Bytes(), ck.Metrics, nil, []inspectedTensor{}}
	if n := len(ck.State); n > maxStateBytes {
		return out, fmt.Errorf("%s: state.json has %d bytes, more than the limit of %d", ck.Path, n, maxStateBytes)
	}
	if depth(ck.State) > maxStateDepth {
		return out, fmt.Errorf("%s: state.json is nested more than %d levels deep", ck.Path, maxStateDepth)
	}
	if json.Valid(ck.State) {
		out.State = ck.State
	}
	for _, x := range ck.Tensors {
		out.Tensors = append(out.Tensors, inspectedTensor{x, ck.Pieces(x.Name, x.Kind)})
	}
	return out, nil
}
