package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zeroth/checkpoint"
	"zeroth/checkpoint/foreign"
	"zeroth/internal/input"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/optim"
	"zeroth/shard"
)

// Foreign is a checkpoint of DeepSpeed or PyTorch, and the model that it is of.
type Foreign struct {
	*foreign.Checkpoint
	Model   *hf.Model // nil if there is no config.json
	Carried hf.Carried
	Spare   []string // parameters that the model does not have

	names map[string]string // of the model's parameters, by those in the checkpoint; nil without a model
}

// IsForeign reports whether a path has a checkpoint of another program.
func IsForeign(path string) bool {
	for _, own := range []string{"model.safetensors", "model.safetensors.index.json", "MANIFEST.json"} {
		if input.Exists(filepath.Join(path, own)) {
			return false
		}
	}
	return foreign.Is(path)
}

// foreignIn returns the paths of at most ten checkpoints of other programs in a folder.
func foreignIn(folder string) (paths []string) {
	entries, _ := os.ReadDir(folder) // an unreadable folder has none
	for _, e := range entries {
		if path := filepath.Join(folder, e.Name()); e.IsDir() && len(paths) < 10 && IsForeign(path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// OpenForeign opens a checkpoint of another program. model is the folder of its config.json, or "" to
// look in the checkpoint and next to it; names is a JSON file of names of parameters, theirs → ours, or "".
func OpenForeign(path, model, names string) (*Foreign, error) {
	ck, err := foreign.Open(path)
	if err != nil {
		return nil, err
	}
	f := &Foreign{Checkpoint: ck}
	if err := f.open(path, model, names); err != nil {
		return nil, errors.Join(err, ck.Close())
	}
	return f, nil
}

func (f *Foreign) open(path, model, names string) error {
	if names != "" {
		raw, err := input.Read(names, 32<<20)
		if err != nil {
			return input.BadInput(fmt.Errorf("--names: %w", err))
		}
		var to map[string]string
		if err := json.Unmarshal(raw, &to); err != nil {
			return input.BadInput(fmt.Errorf(`--names %s: %w; want an object such as {"their.name": "our.name"}`, names, err))
		}
		if err := f.Rename(to); err != nil {
			return err
		}
	}
	if model == "" {
		for _, near := range []string{".", "..", "huggingface", "../huggingface"} {
			if folder := filepath.Join(path, near); input.Exists(filepath.Join(folder, "config.json")) {
				model = folder
				break
			}
		}
	}
	if model == "" {
		return nil
	}
	m, kept, err := hf.ReadConfig(model)
	if err == nil {
		err = kept.ReadFiles(model)
	}
	if err != nil {
		return input.BadInput(err)
	}
	f.Model, f.Carried = &m, kept
	return f.match(model)
}

// match finds the model's parameters in the checkpoint.
func (f *Foreign) match(model string) error {
	have := map[string]checkpoint.Tensor{}
	for _, t := range f.All() {
		if t.Kind == checkpoint.Master {
			have[t.Name] = t
		}
	}
	f.names = map[string]string{}
	var wrong []string
	params := hf.Parameters(f.Model.Network(nn.LoRA{}))
	for _, p := range params {
		t, ok := have[p.Name]
		if owner := f.Same[p.Name]; !ok && !slices.ContainsFunc(params, func(q shard.Param) bool { return q.Name == owner }) {
			t, ok = have[owner] // of two names for one tensor, the model has this one
		}
		if !ok { // files of a model without its head omit the first part
			t, ok = have[strings.TrimPrefix(strings.TrimPrefix(p.Name, "transformer."), "model.")]
		}
		switch {
		case !ok:
			wrong = append(wrong, f.missing(p.Name))
		case !slices.Equal(t.Shape, p.Shape):
			wrong = append(wrong, fmt.Sprintf("%s has shape %v, but config.json implies %v", checkpoint.Plain(t.Name), t.Shape, p.Shape))
		default:
			f.names[t.Name] = p.Name
		}
	}
	for name := range have {
		if f.names[name] == "" {
			f.Spare = append(f.Spare, name)
		}
	}
	slices.Sort(f.Spare)
	if head := "lm_head.weight"; len(wrong) == 0 && (f.Model.Tied || f.Model.Family == "gpt2") && slices.Contains(f.Spare, head) {
		f.Spare = slices.DeleteFunc(f.Spare, func(s string) bool { return s == head })
		words := hf.Parameters(f.Model.Network(nn.LoRA{}))[0].Name // the embedding, in all families
		for name, to := range f.names {
			if to == words {
				return f.Tied(name, head)
			}
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	more := ""
	if len(f.Spare) > 0 {
		more = fmt.Sprintf("; it also has %s: if these are the missing ones, name them with --names FILE", checkpoint.Plain(strings.Join(f.Spare[:min(5, len(f.Spare))], ", ")))
	}
	if n := len(wrong); n > 5 {
		wrong = append(wrong[:5], fmt.Sprintf("and %d more", n-5))
	}
	return input.BadInput(fmt.Errorf("%s does not contain the model of %s: %s%s", f.Path, filepath.Join(model, "config.json"), strings.Join(wrong, "; "), more))
}

// missing describes why the checkpoint does not have a parameter.
func (f *Foreign) missing(name string) string {
	if owner := f.Same[name]; owner != "" {
		return fmt.Sprintf("%s shares its memory with %s, but config.json does not tie them", name, checkpoint.Plain(owner))
	}
	if i := slices.IndexFunc(f.LeftOut, func(s string) bool { return strings.HasPrefix(s, name+" (") }); i >= 0 {
		return f.LeftOut[i] + " has a type that is not supported"
	}
	return name + " is missing"
}

// NeedsModel returns an error if there is no config.json.
func (f *Foreign) NeedsModel() error {
	if f.Model == nil {
		return input.BadInput(fmt.Errorf("%s: no config.json in or next to it describes the model; name the model's folder with --model", f.Path))
	}
	return nil
}

// name returns a parameter's name in the model, and false if it has no such parameter.
func (f *Foreign) name(s string) (string, bool) {
	if f.names == nil {
		return s, true
	}
	to, ok := f.names[s]
	return to, ok
}

// Bytes returns the size of all parameters, and of their state if states is set, as float32.
func (f *Foreign) Bytes(states bool) (n int64) {
	for _, t := range f.All() {
		if states || t.Kind == checkpoint.Master {
			n += 4 * int64(t.Numel())
		}
	}
	return n
}

// Trained reports whether the checkpoint has an optimizer's state.
func (f *Foreign) Trained() bool {
	return slices.ContainsFunc(f.All(), func(t checkpoint.Tensor) bool { return t.Kind != checkpoint.Master })
}

// Export writes the parameters as a Hugging Face folder, with config.json if there is one. note is that
// of hf.Carried.Aligned.
func (f *Foreign) Export(ctx context.Context, folder string, e checkpoint.Export) (note string, err error) {
	kept, note, err := f.carried(e.DType)
	if err != nil {
		return "", err
	}
	e.Name = f.name
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return "", err
	}
	err = kept.Write(folder, kept.Config)
	if err == nil {
		err = e.Write(ctx, f, f.Path, folder)
	}
	if err != nil {
		kept.Remove(folder)
	}
	return note, err
}

// carried checks the checkpoint, and returns the content of an export other than the parameters.
func (f *Foreign) carried(t checkpoint.DType) (kept hf.Carried, note string, err error) {
	if err := f.Check(); err != nil || f.Model == nil {
		return f.Carried, "", err
	}
	return f.Carried.Aligned(hf.ExportedConfig(f.Carried.Config, t), -1)
}

// Import makes a checkpoint in a folder of checkpoints, from which a run goes on: parameters, the
// optimizer's state, step and loss scale. Without an optimizer's state it is of step 0.
func (f *Foreign) Import(ctx context.Context, root string, o checkpoint.Options, progressed func(add int64)) (string, error) {
	if err := f.Check(); err != nil {
		return "", err
	}
	if biased := func(t checkpoint.Tensor) bool { return t.Kind == "exp_avg" }; !f.Counted && slices.ContainsFunc(f.All(), biased) {
		return "", input.BadInput(fmt.Errorf("%s has moments of AdamW, but no step, so their bias correction is unknown. Write only the parameters with 'zeroth ckpt export' and start from them with model.from", f.Path))
	}
	p := Progress{Model: f.Carried.Config, Version: Version()}
	if f.Trained() {
		p.Origin, p.Step, p.Skipped = f.Form, int(f.Step), int(f.Skipped)
		p.Updates = p.Step - p.Skipped
		p.Samples, p.Epoch, p.Config = max(f.Samples, f.Step), f.Epoch, f.Settings()
		p.Tokens = p.Samples
		p.Scale = optim.StaticLossScale(1)
		if f.Scale != nil {
			p.Scale = *f.Scale
		}
	}
	if err := p.Check(); err != nil {
		return "", input.BadInput(fmt.Errorf("%s: %w", f.Path, err))
	}
	im := checkpoint.Import{Step: int64(p.Step), State: p.JSON(), Files: f.Carried.Files, Name: f.name, Options: o, Progress: progressed}
	return im.Import(ctx, f, root)
}

// Settings returns the optimizer's settings as far as they are the same for all parameters, in the
// form of a job, or "".
func (f *Foreign) Settings() string {
	if len(f.Groups) == 0 || !f.Trained() {
		return ""
	}
	g := f.Groups[0]
	same := func(what func(foreign.Group) any) bool {
		return !slices.ContainsFunc(f.Groups, func(o foreign.Group) bool { return what(o) != what(g) })
	}
	decay, decays := g.Decay, true
	for _, o := range f.Groups { // vectors usually have none
		decays = decays && (decay == 0 || o.Decay == 0 || o.Decay == decay)
		decay = max(decay, o.Decay)
	}
	fraction := func(x float64) bool { return x >= 0 && x < 1 }
	positive := func(x float64) bool { return x > 0 && !math.IsInf(x, 0) }
	sgd := slices.ContainsFunc(f.All(), func(t checkpoint.Tensor) bool { return t.Kind == "momentum_buffer" })
	var b strings.Builder
	for _, x := range []struct {
		use  bool
		line string
	}{
		{sgd, "type: sgd"},
		{!sgd && g.Coupled && decay > 0, "type: adam"},
		{positive(g.Peak) && same(func(g foreign.Group) any { return g.Peak }), fmt.Sprint("lr: ", g.Peak)},
		{!sgd && g.Betas[0]+g.Betas[1] > 0 && fraction(g.Betas[0]) && fraction(g.Betas[1]) && same(func(g foreign.Group) any { return g.Betas }), fmt.Sprintf("betas: [%v, %v]", g.Betas[0], g.Betas[1])},
		{!sgd && positive(g.Eps) && same(func(g foreign.Group) any { return g.Eps }), fmt.Sprint("eps: ", g.Eps)},
		{decays && decay >= 0 && !math.IsInf(decay, 0), fmt.Sprint("weight_decay: ", decay)},
		{sgd && fraction(g.Momentum) && same(func(g foreign.Group) any { return g.Momentum }), fmt.Sprint("momentum: ", g.Momentum)},
	} {
		if x.use {
			b.WriteString("  " + x.line + "\n")
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "optimizer:\n" + b.String()
}

// WriteTorch writes the checkpoint in a form of PyTorch; see ExportTorch.
func (f *Foreign) WriteTorch(ctx context.Context, form, folder string, t checkpoint.DType, progressed func(int64)) (note string, err error) {
	kept, note, err := f.carried(t)
	if err != nil {
		return "", err
	}
	w := foreign.Writer{Source: f, Name: f.name, Step: f.Step - f.Skipped, DType: t, Progress: progressed}
	return note, writeTorch(ctx, form, w, folder, kept)
}

// ExportTorch writes a checkpoint in a form of PyTorch: "torch" is pytorch_model.bin, "dcp" a folder
// of torch.distributed.checkpoint with the optimizer's state. note is that of hf.Carried.Aligned.
func ExportTorch(ctx context.Context, form string, ck *checkpoint.Checkpoint, folder string, t checkpoint.DType, progressed func(int64)) (note string, err error) {
	p, m, _, err := described(ck)
	if err != nil {
		return "", err
	}
	kept, note, err := carriedBy(ck, p, t)
	if err != nil {
		return "", err
	}
	w := foreign.Writer{Source: hf.DecodedOf(ck, m), Name: func(s string) (string, bool) { return s, true }, Step: int64(p.Updates), DType: t, Progress: progressed}
	return note, writeTorch(ctx, form, w, folder, kept)
}

// writeTorch writes the parameters and the settings of a model, without its tokenizer.
func writeTorch(ctx context.Context, form string, w foreign.Writer, folder string, kept hf.Carried) error {
	var err error
	if form == "dcp" {
		err = w.DCP(ctx, folder)
	} else {
		err = w.Torch(ctx, filepath.Join(folder, "pytorch_model.bin"))
	}
	if err != nil || kept.Config == nil {
		return err
	}
	return kept.Settings().Write(folder, kept.Config)
}
