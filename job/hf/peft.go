package hf

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"zeroth/checkpoint/safetensors"
	"zeroth/input"
	"zeroth/job/show"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// Adapter is an open folder of an adapter as PEFT saves it: adapter_config.json and
// adapter_model.safetensors.
type Adapter struct {
	*safetensors.Reader
	LoRA    nn.LoRA
	Dropout float64 // of the adapters' inputs when PEFT trained it

	folder string
	params []shard.Param // of the model's adapters, all of which are in the folder
}

// peftPrefix precedes the names of parameters in PEFT's files.
const peftPrefix = "base_model.model."

// adapterConfig is what is used of an adapter_config.json.
type adapterConfig struct {
	Type       string   `json:"peft_type"`
	Rank       int      `json:"r"`
	Alpha      *float64 `json:"lora_alpha"`
	Stabilized bool     `json:"use_rslora"`
	Targets    any      `json:"target_modules"`
	Init       any      `json:"init_lora_weights"`
	Bias       string   `json:"bias"`
	Dropout    float64  `json:"lora_dropout"`
}

// peftIgnored lists the keys of adapter_config.json that do not change what a saved adapter
// computes: its tensors show which layers it has.
var peftIgnored = []string{"auto_mapping", "base_model_name_or_path", "inference_mode", "revision", "task_type", "peft_version", "fan_in_fan_out",
	"exclude_modules", "layers_to_transform", "layers_pattern", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core", "qalora_group_size",
	"ensure_weight_tying", "runtime_config"}

// readAdapterConfig parses an adapter_config.json and refuses, by name, everything that would
// compute something else.
func readAdapterConfig(raw []byte) (c adapterConfig, err error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil || all == nil {
		return c, fmt.Errorf("%.40q is not an object (%v)", raw, err)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, err
	}
	for _, key := range []string{"peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "init_lora_weights", "bias", "lora_dropout"} {
		delete(all, key)
	}
	for _, key := range peftIgnored {
		delete(all, key)
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if value := string(bytes.TrimSpace(all[key])); !slices.Contains([]string{"null", "false", "{}", "[]", `""`, "0"}, value) {
			return c, fmt.Errorf("%s: %s is not supported; want an adapter without it", show.Brief(key), show.Brief(value))
		}
	}
	switch init := c.Init.(type) {
	case string:
		if !slices.Contains([]string{"gaussian", "eva", "orthogonal"}, init) {
			return c, fmt.Errorf("init_lora_weights: %s changes the base model; want an adapter that PEFT converted to an ordinary one", show.Brief(init))
		}
	}
	switch {
	case c.Type != "LORA":
		return c, fmt.Errorf("peft_type: %q is not supported; want LORA", show.Brief(c.Type))
	case c.Bias != "" && c.Bias != "none":
		return c, fmt.Errorf("bias: %s is not supported; want none", show.Brief(c.Bias))
	case c.Rank < 1 || c.Rank > Most:
		return c, fmt.Errorf("r: %d; want 1 to %d", c.Rank, Most)
	case c.Alpha == nil || !Positive(*c.Alpha):
		return c, fmt.Errorf("lora_alpha is missing or not positive")
	}
	return c, nil
}

// OpenAdapter opens an adapter of a model. Its LoRA gives every layer of the folder, and no other,
// an adapter.
func OpenAdapter(folder string, m Model) (a *Adapter, err error) {
	path := filepath.Join(folder, "adapter_config.json")
	raw, err := input.Read(path, maxJSON)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("%s cannot be read: %w; want a folder with adapter_config.json and adapter_model.safetensors, as PEFT saves an adapter", path, input.Cause(err)))
	}
	c, err := readAdapterConfig(raw)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("%s: %w", path, err))
	}
	r, err := safetensors.Open(filepath.Join(folder, "adapter_model.safetensors"))
	if err != nil {
		return nil, input.BadInput(err)
	}
	a = &Adapter{Reader: r, folder: folder, Dropout: c.Dropout, LoRA: nn.LoRA{Rank: c.Rank, Alpha: *c.Alpha, Stabilized: c.Stabilized}}
	if err := a.find(m, c.Targets); err != nil {
		_ = r.Close() // only read from
		return nil, input.BadInput(fmt.Errorf("%s is not an adapter of the model: %w", folder, err))
	}
	return a, nil
}

// find sets the targets and the parameters, and compares these with the tensors.
func (a *Adapter) find(m Model, said any) error {
	var layers []string
	for _, t := range a.Tensors() {
		name, ours := strings.CutPrefix(t.Name, peftPrefix)
		layer, down := strings.CutSuffix(name, ".lora_A.weight")
		if down {
			layers = append(layers, layer)
		}
		if !ours || !nn.IsAdapter(name) {
			return fmt.Errorf("%s is no matrix of a LoRA adapter; only such tensors are supported", show.Brief(t.Name))
		}
	}
	slices.Sort(layers)
	a.LoRA.Targets = layers
	if ends := texts(said); len(ends) > 0 && a.only(m, ends, layers) {
		a.LoRA.Targets = ends
	}
	for _, p := range Parameters(m.Network(a.LoRA)) {
		if !nn.IsAdapter(p.Name) {
			continue
		}
		a.params = append(a.params, p)
		t, ok := a.Tensor(peftPrefix + p.Name)
		if !ok || !slices.Equal(t.Shape, p.Shape) || !t.DType.Float() {
			return fmt.Errorf("%s has shape %v and type %s, want %v of floats", p.Name, t.Shape, t.DType, p.Shape)
		}
	}
	if len(a.params) != len(a.Tensors()) {
		for _, layer := range layers {
			if !slices.ContainsFunc(a.params, func(p shard.Param) bool { return p.Name == layer+".lora_A.weight" }) {
				return fmt.Errorf("%s has an adapter, which only the linear layers of the model's blocks can have", show.Brief(layer))
			}
		}
		return fmt.Errorf("%d tensors for %d matrices", len(a.Tensors()), len(a.params))
	}
	return nil
}

// only reports whether ends of names select exactly the layers of the folder.
func (a *Adapter) only(m Model, ends, layers []string) bool {
	l := a.LoRA
	l.Targets = ends
	var has []string
	for _, p := range Parameters(m.Network(l)) {
		if layer, down := strings.CutSuffix(p.Name, ".lora_A.weight"); down {
			has = append(has, layer)
		}
	}
	slices.Sort(has)
	return slices.Equal(has, layers)
}

// texts returns a sorted list of texts in JSON, or nil for any other value.
func texts(x any) (list []string) {
	all, _ := x.([]any)
	for _, x := range all {
		if s, ok := x.(string); ok {
			list = append(list, s)
		}
	}
	slices.Sort(list)
	return list
}

// Check reads all values, which must be finite, and returns a digest of them and of what they mean.
func (a *Adapter) Check(ctx context.Context) (string, error) {
	var names []string
	for _, p := range a.params {
		names = append(names, peftPrefix+p.Name)
	}
	sums, err := a.Finite(ctx, names, runtime.GOMAXPROCS(0))
	if err != nil {
		return "", input.BadInput(fmt.Errorf("%s: %w", a.folder, err))
	}
	all := sha256.New()
	fmt.Fprintf(all, "%x\n", math.Float64bits(a.LoRA.Scale()))
	for i, name := range names {
		t, _ := a.Tensor(name)
		fmt.Fprintf(all, "%s %s %v %08x\n", name, t.DType, t.Shape, sums[i])
	}
	return fmt.Sprintf("%x", all.Sum(nil)), nil
}

// Fill reads a part of one of its matrices.
func (a *Adapter) Fill(p zero.Part, dst []float32) error {
	for tensor, local := range p.Param.Runs(p.At) {
		if err := a.ReadF32(peftPrefix+p.Param.Name, tensor.Lo, tensor.Hi, dst[local.Lo-p.At.Lo:local.Hi-p.At.Lo]); err != nil {
			return err
		}
	}
	return nil
}

// load reads all values, to be merged.
func (a *Adapter) load(family string) (*Adapters, error) {
	to := &Adapters{LoRA: a.LoRA, Family: family}
	for _, p := range a.params {
		part := zero.Part{Param: p, Kind: zero.Master, At: shard.Range{Hi: p.Numel()}}
		values := make([]float32, p.Numel())
		if err := a.Fill(part, values); err != nil {
			return nil, err
		}
		if err := to.Put(part, values); err != nil {
			return nil, err
		}
	}
	return to, nil
}

// Merge adds adapters, one after the other, to the parameters as they are read from now on, as
// PEFT's merge_and_unload does.
func (t *ModelTensors) Merge(ctx context.Context, folders []string, m Model) error {
	for _, folder := range folders {
		a, err := OpenAdapter(folder, m)
		if err != nil {
			return err
		}
		defer a.Close() // only read from
		digest, err := a.Check(ctx)
		if err != nil {
			return err
		}
		values, err := a.load(m.Family)
		if err != nil {
			return err
		}
		t.merged, t.digests = append(t.merged, values), append(t.digests, digest)
	}
	return nil
}

// read reads elements of a parameter and merges adapters into them.
func (t *ModelTensors) read(p shard.Param, at shard.Range, dst []float32) error {
	if err := t.ReadF32(t.Names[p.Name], at.Lo, at.Hi, dst); err != nil {
		return err
	}
	whole := shard.Param{Name: p.Name, Shape: p.Tensor()}
	for _, a := range t.merged {
		copy(dst, a.Merge(zero.Part{Param: whole, Kind: zero.Master, At: at}, dst))
	}
	return nil
}
