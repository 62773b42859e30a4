package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"zeroth/checkpoint"
	"zeroth/internal/show"
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
	f, err := state.OpenForeign(path, names.model, names.names)
	if err != nil {
		return err
	}
	defer f.Close()
	x := exporting{from: path, about: fmt.Sprintf("%s (%s, step %d)", path, f.Form, f.Step), step: f.Step, dtype: e.DType, notes: notesOn(f)}
	if f.Model == nil && form == "hf" {
		x.notes += "without config.json: there is none in or next to the checkpoint; name the model's folder with --model\n"
	}
	x.total = f.Bytes(false) / 4 * int64(e.DType.Size())
	if form == "dcp" { // moments stay float32
		x.total += f.Bytes(true) - f.Bytes(false)
	}
	x.write = func(ctx context.Context, done func(int64)) (string, error) {
		if e.Progress = done; form == "hf" {
			return f.Export(ctx, to, e)
		}
		return f.WriteTorch(ctx, form, to, e.DType, done)
	}
	return a.exportTo(cmd, to, &x, asJSON)
}

// importForeign converts another program's checkpoint to ours.
func (a *app) importForeign(cmd *cobra.Command, path, to string, names theirs, asJSON bool) error {
	f, err := state.OpenForeign(path, names.model, names.names)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.NeedsModel(); err != nil {
		return err
	}
	x := importing{from: path, total: f.Bytes(true)}
	if f.Trained() {
		x.step = f.Step
	}
	x.about = fmt.Sprintf("%s (%s, step %d)", path, f.Form, x.step)
	x.do = func(ctx context.Context, o checkpoint.Options, done func(int64)) (string, error) {
		return f.Import(ctx, to, o, done)
	}
	x.leftOut = func() []string { return slices.Concat(f.LeftOut, f.Spare) }
	x.notes = func() string {
		notes := strings.Join(append(slices.Clone(f.Carried.Notes), notesOn(f)), "\n")
		if f.Trained() {
			settings := strings.Split(strings.TrimSpace(f.Settings()), "\n  ")
			notes += fmt.Sprintf("a job that resumes from it uses, unless it sets them, its %s %s; its schedule is not imported\n", settings[0], cmp.Or(strings.Join(settings[1:], ", "), "settings: none are known"))
		}
		return notes
	}
	return a.importTo(cmd, to, &x, asJSON)
}
