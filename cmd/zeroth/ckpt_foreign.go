package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"zeroth/checkpoint"
	"zeroth/input"
	"zeroth/job/hf"
	"zeroth/job/show"
	"zeroth/job/state"
)

// theirs holds the flags for a checkpoint of another program.
type theirs struct{ model, names string }

func (f *theirs) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.model, "model", "", "`folder` with the config.json for a checkpoint of DeepSpeed or PyTorch (default: in it or next to it)")
	cmd.Flags().StringVar(&f.names, "names", "", "JSON `file` that renames the parameters of such a checkpoint: {\"theirs\": \"ours\"}")
	must(cmd.MarkFlagDirname("model"))
}

// inspectForeign shows a checkpoint of another program.
func (a *app) inspectForeign(path string, asJSON bool) error {
	f, err := state.OpenForeign(path, "", "")
	if err != nil {
		return err
	}
	defer f.Close()
	if asJSON {
		return a.writeJSON(foreignInspection(f))
	}
	masters := 0
	for _, t := range f.All() {
		if t.Kind == checkpoint.Master {
			masters++
		}
	}
	a.say("%-10s %s\n", "folder", f.Path)
	a.say("%-10s %s", "format", f.Form)
	switch {
	case f.Ranks == 1:
		a.say(", written by 1 rank")
	case f.Ranks > 1:
		a.say(", written by %d ranks", f.Ranks)
	}
	a.say("\n%-10s %d parameters, %s as float32\n", "size", masters, show.BriefSize(f.Bytes(false)))
	if f.Trained() {
		a.say("%-10s %d steps, %d skipped, %s samples read\n", "trained", f.Step, f.Skipped, show.Grouped(f.Samples))
	}
	if f.Scale != nil {
		a.say("%-10s %v\n", "loss scale", f.Scale.Scale)
	}
	for i, g := range f.Groups {
		a.say("%-10s lr %v, weight decay %v\n", fmt.Sprintf("group %d", i), g.Rate, g.Decay)
	}
	if notes := notesOn(f); notes != "" {
		a.say("%s", notes)
	}
	fmt.Fprintln(a.out)
	t := &show.Columns{Align: "llll"}
	t.Add("tensor", "kind", "type", "shape")
	for _, x := range f.All() {
		t.Add(checkpoint.Plain(x.Name), x.Kind, string(x.DType), fmt.Sprint(x.Shape))
	}
	return a.print(t)
}

// foreignInspected is the JSON of inspect for a checkpoint of another program.
type foreignInspected struct {
	Path    string              `json:"path"`
	Format  string              `json:"format"`
	Ranks   int                 `json:"ranks"`
	Step    int64               `json:"step"`
	Skipped int64               `json:"skipped"`
	Samples int64               `json:"samples"`
	Shared  map[string]string   `json:"shared"`
	LeftOut []string            `json:"left_out"`
	Tensors []checkpoint.Tensor `json:"tensors"`
}

func foreignInspection(f *state.Foreign) foreignInspected {
	return foreignInspected{f.Path, f.Form, f.Ranks, f.Step, f.Skipped, f.Samples, f.Same, append([]string{}, f.LeftOut...), f.All()}
}

// notesOn describes the contents of a checkpoint that are not converted.
func notesOn(f *state.Foreign) string {
	var b strings.Builder
	for _, x := range []struct {
		what  string
		names []string
	}{{"not used here", f.LeftOut}, {"not in the model", f.Spare}} {
		if len(x.names) > 0 {
			shown, more := x.names[:min(10, len(x.names))], ""
			if n := len(x.names) - len(shown); n > 0 {
				more = fmt.Sprintf(" and %d more", n)
			}
			fmt.Fprintf(&b, "left out, %s: %s%s\n", x.what, printable(shown), more)
		}
	}
	return b.String()
}

// exportForeign writes a checkpoint of another program as a Hugging Face folder, or in a form of PyTorch.
func (a *app) exportForeign(cmd *cobra.Command, path, to, form string, e checkpoint.Export, names theirs, asJSON bool) error {
	begin := time.Now()
	f, err := state.OpenForeign(path, names.model, names.names)
	if err != nil {
		return err
	}
	defer f.Close()
	leave, err := newFolder("--to", to)
	if err != nil {
		return err
	}
	defer leave()
	total := f.Bytes(false) / 4 * int64(e.DType.Size())
	if form == "dcp" { // moments stay float32
		total += f.Bytes(true) - f.Bytes(false)
	}
	var note string
	speed, err := a.long(cmd, "export", total, func(ctx context.Context, done func(int64)) (err error) {
		if e.Progress = done; form == "hf" {
			note, err = f.Export(ctx, to, e)
			return err
		}
		note, err = f.WriteTorch(ctx, form, to, e.DType, done)
		return err
	})
	if err != nil {
		return err
	}
	a.note(note)
	if asJSON {
		x := exported{Checkpoint: path, Step: f.Step, Folder: to, DType: e.DType, Seconds: time.Since(begin).Seconds()}
		x.Files, x.Bytes, err = written(to)
		return cmp.Or(err, a.writeJSON(x))
	}
	a.say("%s", notesOn(f))
	if f.Model == nil && form == "hf" {
		a.say("without config.json: there is none in or next to the checkpoint; name the model's folder with --model\n")
	}
	a.say("exported %s (%s, step %d) to %s (%s)\n", path, f.Form, f.Step, to, speed)
	return nil
}

// importForeign converts another program's checkpoint to ours.
func (a *app) importForeign(cmd *cobra.Command, path, to string, names theirs, asJSON bool) error {
	begin := time.Now()
	f, err := state.OpenForeign(path, names.model, names.names)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.NeedsModel(); err != nil {
		return err
	}
	step := f.Step
	if !f.Trained() {
		step = 0
	}
	hold, undo, err := newCheckpoint(to, step)
	if err != nil {
		return err
	}
	var made string
	speed, err := a.long(cmd, "import", f.Bytes(true), func(ctx context.Context, done func(int64)) error {
		made, err = f.Import(ctx, to, checkpoint.Options{Hold: hold}, done)
		return errors.Join(err, undo())
	})
	if err != nil {
		return err
	}
	if asJSON {
		x := imported{Folder: path, Checkpoint: made, Step: step, LeftOut: append(append([]string{}, f.LeftOut...), f.Spare...), Seconds: time.Since(begin).Seconds()}
		_, x.Bytes, err = written(made)
		return cmp.Or(err, a.writeJSON(x))
	}
	for _, note := range f.Carried.Notes {
		a.say("%v\n", note)
	}
	a.say("%s", notesOn(f))
	if f.Trained() {
		settings := strings.Split(strings.TrimSpace(f.Settings()), "\n  ")
		a.say("a job that resumes from it uses, unless it sets them, its %s %s; its schedule is not imported\n", settings[0], cmp.Or(strings.Join(settings[1:], ", "), "settings: none are known"))
	}
	a.say("imported %s (%s, step %d) as %s (%s)\n", path, f.Form, step, made, speed)
	return nil
}

// exportTorch writes one of our checkpoints in a form of PyTorch.
func (a *app) exportTorch(cmd *cobra.Command, dir, to, form string, e checkpoint.Export) error {
	ck, err := state.OpenCheckpoint(dir)
	if err != nil {
		return err
	}
	defer ck.Close()
	if hf.Adapted(ck) {
		return input.BadInput(errors.New("--format hf merges adapters; the other formats cannot contain them"))
	}
	leave, err := newFolder("--to", to)
	if err != nil {
		return err
	}
	defer leave()
	total := int64(0)
	for _, t := range ck.Tensors {
		if t.Kind == checkpoint.Master || form == "dcp" && t.Kind != checkpoint.Attached {
			total += int64(t.Numel() * e.DType.Size())
		}
	}
	var note string
	speed, err := a.long(cmd, "export", total, func(ctx context.Context, done func(int64)) (err error) {
		note, err = state.ExportTorch(ctx, form, ck, to, e.DType, done)
		return err
	})
	if err != nil {
		return err
	}
	a.note(note)
	a.say("exported %s to %s (%s)\n", ck.Path, to, speed)
	return nil
}
