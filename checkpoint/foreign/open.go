package foreign

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"zeroth/checkpoint"
	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/torchfile"
	"zeroth/internal/input"
	"zeroth/internal/parallel"
	"zeroth/optim"
	"zeroth/shard"
)

// Checkpoint is an open checkpoint of another program.
type Checkpoint struct {
	Path    string
	Form    string // shown to users, such as "DeepSpeed 0.19.8, ZeRO stage 3"
	Ranks   int    // that wrote it; 0 if unknown
	Step    int64  // completed steps, including skipped ones; 0 if unknown
	Counted bool   // Step is known
	Skipped int64
	Samples int64             // read so far; 0 if unknown
	Epoch   float64           // passes over its data so far; 0 if unknown
	Scale   *optim.LossScale  // of fp16; nil otherwise
	Groups  []Group           // the optimizer's parameter groups; may be empty
	Same    map[string]string // names of shared parameters: alias → owner
	LeftOut []string          // entries that are neither parameters nor known state of an optimizer

	tensors []*tensor // sorted by name and kind
	index   map[[2]string]*tensor
	pairs   []pair // of tensors that must agree
	files   []io.Closer
	bytes   int64 // of files that contain tensors
	left    int64 // bytes of memory; see torchfile.Open
}

// Group holds the settings of one of the optimizer's parameter groups; 0 if unknown.
type Group struct {
	Rate     float64 // of the last step
	Peak     float64 // before any schedule; Rate if unknown
	Decay    float64
	Betas    [2]float64
	Eps      float64
	Momentum float64
	Coupled  bool // Decay is added to the gradient, as in Adam
}

// groupOf returns the settings of a parameter group.
func groupOf(at func(key string) any) Group {
	g := Group{Rate: number(at("lr")), Peak: number(at("initial_lr")), Decay: number(at("weight_decay")), Eps: number(at("eps")), Momentum: number(at("momentum"))}
	g.Peak = cmp.Or(g.Peak, g.Rate)
	if betas := torchfile.Items(at("betas")); len(betas) == 2 {
		g.Betas = [2]float64{number(betas[0]), number(betas[1])}
	}
	g.Coupled = at("decoupled_weight_decay") == false
	return g
}

// pair holds two tensors that must be equal after rounding a to the type of b.
type pair struct {
	a, b *tensor
	why  string
}

// forms lists the layouts. The first one recognized in a folder is opened.
var forms = []struct {
	has  func(folder string) bool
	open func(c *Checkpoint, folder string) error
}{
	{func(f string) bool { return input.Exists(filepath.Join(f, ".metadata")) }, (*Checkpoint).openDCP},
	{func(f string) bool { return input.Exists(filepath.Join(f, "pytorch_model_fsdp_0", ".metadata")) }, (*Checkpoint).openAccelerate},
	{func(f string) bool { return input.Exists(filepath.Join(f, "zero")) && found(f, "*model_states.pt") }, (*Checkpoint).openUniversal},
	{func(f string) bool { return found(f, "*_optim_states.pt") || found(f, "*model_states.pt") }, (*Checkpoint).openZeRO},
	{func(f string) bool { return found(f, "model_world_size_*_rank_*.pt") }, (*Checkpoint).openDTensors},
	{func(f string) bool { return found(f, "shard-*-model-*-of-*.safetensors") }, (*Checkpoint).openSharded},
	{func(f string) bool { return found(filepath.Join(f, "sharded"), "shard-*-model-*-of-*.safetensors") }, (*Checkpoint).openSharded},
	{func(f string) bool { return found(f, "pytorch_model*.bin") }, (*Checkpoint).openBin},
}

// Is reports whether Open recognizes a checkpoint in a folder.
func Is(path string) bool { return formOf(path) != nil }

func formOf(path string) func(c *Checkpoint, folder string) error {
	st, err := os.Stat(path)
	if err != nil {
		return nil
	}
	if !st.IsDir() {
		if torchName.MatchString(path) {
			return (*Checkpoint).openBin
		}
		return nil
	}
	for _, f := range forms {
		if f.has(path) {
			return f.open
		}
	}
	if latest(path) != "" {
		return (*Checkpoint).openZeRO
	}
	return nil
}

var torchName = regexp.MustCompile(`\.(bin|pt|pth)$`)

// Open opens a checkpoint. Errors name the file or the parameter.
func Open(path string) (*Checkpoint, error) {
	c := &Checkpoint{Path: path, index: map[[2]string]*tensor{}, Same: map[string]string{}, left: torchfile.Slack}
	open := formOf(path)
	if open == nil {
		return nil, input.BadInput(fmt.Errorf("%s is not a checkpoint of DeepSpeed, FSDP or torch.save: want a folder global_stepN, one with .metadata, one with pytorch_model.bin, or a .pt file", path))
	}
	err := open(c, path)
	if err == nil {
		if err = c.finish(); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	if err == nil {
		err = c.addBeside()
	}
	if err != nil {
		return nil, input.BadInput(errors.Join(err, c.Close()))
	}
	return c, nil
}

// Close closes all files.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// All returns all tensors, sorted by name and kind.
func (c *Checkpoint) All() []checkpoint.Tensor {
	out := make([]checkpoint.Tensor, len(c.tensors))
	for i, t := range c.tensors {
		out[i] = t.Tensor
	}
	return out
}

// ReadF32 reads the elements r of a flattened tensor, widened to float32.
func (c *Checkpoint) ReadF32(name, kind string, r shard.Range, into []float32, _ int) error {
	t := c.index[[2]string{name, kind}]
	if t == nil {
		return fmt.Errorf("%s has no %s (%s)", c.Path, checkpoint.Plain(name), kind)
	}
	return t.readF32(r, into)
}

// Check compares tensors that the checkpoint stores twice: 16-bit weights with the masters they
// were rounded from, or a universal checkpoint with the ZeRO files it was made from. Its error
// names the parameters that differ.
func (c *Checkpoint) Check() error {
	var bad []string
	why := ""
	differ, err := c.differences()
	if err != nil {
		return err
	}
	for i, p := range c.pairs {
		if differ[i].Load() {
			bad, why = append(bad, checkpoint.Plain(p.a.Name)), p.why
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return input.BadInput(fmt.Errorf("%s: parts of the checkpoint disagree: %s, in %d of %d tensors: %s", c.Path, why, len(bad), len(c.pairs), brief(bad)))
}

// Tied makes Check compare two parameters of the same shape, which must be equal.
func (c *Checkpoint) Tied(name, other string) error {
	a, b := c.index[[2]string{name, checkpoint.Master}], c.index[[2]string{other, checkpoint.Master}]
	if a == nil || b == nil || !slices.Equal(a.Shape, b.Shape) || a.DType != b.DType {
		return input.BadInput(fmt.Errorf("%s: %s and %s are tied, but differ in shape or type", c.Path, checkpoint.Plain(name), checkpoint.Plain(other)))
	}
	c.pairs = append(c.pairs, pair{a, b, checkpoint.Plain(other) + " is tied to it by config.json (tie_word_embeddings), but has other values"})
	return nil
}

// differences reports which pairs differ.
func (c *Checkpoint) differences() ([]atomic.Bool, error) {
	type task struct{ pair, lo int }
	var tasks []task
	for i, p := range c.pairs {
		for lo := 0; lo < p.a.Numel(); lo += comparedAtOnce {
			tasks = append(tasks, task{i, lo})
		}
	}
	differ := make([]atomic.Bool, len(c.pairs))
	memory := sync.Pool{New: func() any { return new(comparison) }}
	return differ, parallel.For(context.Background(), len(tasks), min(8, runtime.GOMAXPROCS(0)), func(_ context.Context, i int) error {
		t := tasks[i]
		if differ[t.pair].Load() {
			return nil
		}
		m := memory.Get().(*comparison)
		defer memory.Put(m)
		p := c.pairs[t.pair]
		same, err := m.equal(p, shard.Range{Lo: t.lo, Hi: min(t.lo+comparedAtOnce, p.a.Numel())})
		if !same {
			differ[t.pair].Store(true)
		}
		return err
	})
}

// comparedAtOnce is the number of elements that a comparison reads at a time.
const comparedAtOnce = 1 << 16

// comparison is the memory of a comparison.
type comparison struct {
	wide [comparedAtOnce]float32
	a, b [4 * comparedAtOnce]byte
}

func (m *comparison) equal(p pair, r shard.Range) (bool, error) {
	a, b := m.a[:r.Len()*p.b.DType.Size()], m.b[:r.Len()*p.b.DType.Size()]
	if err := p.b.read(r, b); err != nil {
		return false, err
	}
	if p.a.DType == p.b.DType {
		err := p.a.read(r, a)
		return bytes.Equal(a, b), err
	}
	err := p.a.readF32(r, m.wide[:r.Len()])
	safetensors.Encode(a, m.wide[:r.Len()], p.b.DType)
	return bytes.Equal(a, b), err
}

// brief joins names, abbreviating long lists.
func brief(names []string) string {
	if len(names) > 5 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:5], ", "), len(names)-5)
	}
	return strings.Join(names, ", ")
}

// put adds a tensor.
func (c *Checkpoint) put(t *tensor) error {
	if !t.DType.Float() {
		c.leave(fmt.Sprintf("%.200s (%s)", t.Name, t.DType))
		return nil
	}
	key := [2]string{t.Name, t.Kind}
	if c.index[key] != nil {
		return fmt.Errorf("%v appears twice", t.Tensor)
	}
	if err := t.covered(); err != nil {
		return err
	}
	c.index[key] = t
	c.tensors = append(c.tensors, t)
	return nil
}

// finish gives parameters the names of their model and checks that state belongs to parameters.
func (c *Checkpoint) finish() error {
	if len(c.tensors) == 0 && len(c.LeftOut) > 0 {
		return fmt.Errorf("it has no tensors of floats of at most 32 bits, only %s", brief(c.LeftOut))
	}
	if len(c.tensors) == 0 {
		return errors.New("it has no tensors of floats")
	}
	clear(c.index)
	prefix, bytes := c.prefix(), int64(0)
	for _, t := range c.tensors {
		if bytes += int64(t.Numel() * t.DType.Size()); bytes > 2*c.bytes { // two views of the same elements may be saved
			return fmt.Errorf("its tensors have more than twice as many bytes as its files, %d: they use the same elements again and again", c.bytes)
		}
		t.Name = plainName(t.Name, prefix)
		key := [2]string{t.Name, t.Kind}
		if c.index[key] != nil {
			return fmt.Errorf("%v appears under two names", t.Tensor)
		}
		c.index[key] = t
	}
	same := map[string]string{}
	for alias, owner := range c.Same {
		same[plainName(alias, prefix)] = plainName(owner, prefix)
	}
	c.Same = same
	for _, t := range c.tensors {
		if t.Kind == checkpoint.Master {
			continue
		}
		p := c.index[[2]string{t.Name, checkpoint.Master}]
		if p == nil || !slices.Equal(p.Shape, t.Shape) {
			return fmt.Errorf("%v has shape %v, but the checkpoint has no such parameter of that shape", t.Tensor, t.Shape)
		}
	}
	slices.SortFunc(c.tensors, func(a, b *tensor) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Kind, b.Kind))
	})
	return nil
}

// Rename renames parameters: old → new.
func (c *Checkpoint) Rename(names map[string]string) error {
	for _, old := range slices.Sorted(maps.Keys(names)) {
		if c.index[[2]string{old, checkpoint.Master}] == nil {
			return input.BadInput(fmt.Errorf("%s has no parameter %s", c.Path, checkpoint.Plain(old)))
		}
		if names[old] == "" {
			return input.BadInput(fmt.Errorf("the new name of %s is empty", checkpoint.Plain(old)))
		}
	}
	for _, t := range c.tensors { // in one pass, since names may be swapped
		if to, ok := names[t.Name]; ok {
			t.Name = to
		}
	}
	for alias, owner := range c.Same {
		if to, ok := names[owner]; ok {
			c.Same[alias] = to
		}
	}
	if err := c.finish(); err != nil {
		return input.BadInput(fmt.Errorf("%s: %w", c.Path, err))
	}
	return nil
}

// outer and inner list what wrapper modules insert before and within the names of parameters.
var (
	outer = []string{"module.", "base_model.model."}
	inner = []string{"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."}
)

// prefix returns the outer wrapper's name if all parameters begin with it, or "".
func (c *Checkpoint) prefix() string {
	for _, w := range outer {
		if !slices.ContainsFunc(c.tensors, func(t *tensor) bool { return !strings.HasPrefix(plainName(t.Name, ""), w) }) {
			return w
		}
	}
	return ""
}

func plainName(name, prefix string) string {
	for _, w := range inner {
		name = strings.ReplaceAll(name, w, "")
	}
	return strings.TrimPrefix(name, prefix)
}

// leave records an entry that is not used.
func (c *Checkpoint) leave(name string) {
	c.LeftOut = append(c.LeftOut, checkpoint.Plain(fmt.Sprintf("%.300s", name)))
}

// leaveOut records all entries of a dictionary but one.
func (c *Checkpoint) leaveOut(d *torchfile.Dict, used string) {
	for _, key := range d.Keys {
		if key != used {
			c.leave(shown(key))
		}
	}
}

// shown returns a key of a dictionary as text for messages.
func shown(key any) string {
	if s, ok := key.(string); ok {
		return s
	}
	return torchfile.Kind(key)
}

// load opens a torch.save file, which is closed with the checkpoint, and returns its dictionary.
func (c *Checkpoint) load(path string) (*torchfile.Dict, error) {
	f, err := torchfile.Open(path, &c.left)
	if err != nil {
		return nil, err
	}
	c.files, c.bytes = append(c.files, f), c.bytes+f.Size
	d, ok := f.Object.(*torchfile.Dict)
	if !ok {
		return nil, fmt.Errorf("%s is %s, not a dictionary", path, torchfile.Kind(f.Object))
	}
	return d, nil
}

// found reports whether any name in a folder matches a pattern.
func found(folder, pattern string) bool { return len(matching(folder, pattern)) > 0 }

// matching returns the names in a folder that match a pattern, sorted.
func matching(folder, pattern string) (names []string) {
	in, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	for _, e := range in {
		if ok, _ := filepath.Match(pattern, e.Name()); ok {
			names = append(names, e.Name())
		}
	}
	return names
}

// numel returns the number of elements of a shape, and whether it is valid.
func numel(shape []int) (int, bool) { return safetensors.Numel(shape) }
