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
	"slices"
	"strconv"
	"strings"

	"zeroth/checkpoint/safetensors"
	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/input/jsonread"
	"zeroth/internal/show"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// Adapter is an open folder of an adapter as PEFT saves it: adapter_config.json and
// adapter_model.safetensors.
type Adapter struct {
	*safetensors.Reader
	LoRA nn.LoRA

	folder string
	params []shard.Param // of the model's adapters and of modules saved with them: the tensors of the folder
	twice  bool          // the folder also has the embedding as the output layer, which it is
}

// peftPrefix precedes the names of parameters in PEFT's files.
const peftPrefix = "base_model.model."

// adapterConfig holds the keys of an adapter_config.json that are used.
type adapterConfig struct {
	Type       string   `json:"peft_type"`
	Rank       int      `json:"r"`
	Alpha      *float64 `json:"lora_alpha"`
	Stabilized bool     `json:"use_rslora"`
	Targets    any      `json:"target_modules"`
	Init       any      `json:"init_lora_weights"`
	Bias       string   `json:"bias"`
	Dropout    float64  `json:"lora_dropout"`
	Saved      []string `json:"modules_to_save"`
	Ties       bool     `json:"ensure_weight_tying"`

	Ranks  json.RawMessage `json:"rank_pattern"`
	Alphas json.RawMessage `json:"alpha_pattern"`
}

// peftIgnored lists the keys of adapter_config.json that do not change what a saved adapter
// computes: its tensors show which layers it has.
var peftIgnored = []string{"auto_mapping", "base_model_name_or_path", "inference_mode", "revision", "task_type", "peft_version", "fan_in_fan_out",
	"exclude_modules", "layers_to_transform", "layers_pattern", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core", "qalora_group_size",
	"runtime_config"}

// readAdapterConfig parses an adapter_config.json and refuses, by name, all settings that would
// change the computation.
func readAdapterConfig(raw []byte) (c adapterConfig, err error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil || all == nil {
		return c, fmt.Errorf("%.40q is not an object (%v)", raw, err)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, err
	}
	for _, key := range []string{"peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "init_lora_weights", "bias", "lora_dropout", "modules_to_save", "ensure_weight_tying", "rank_pattern", "alpha_pattern"} {
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
	case !device.Droppable(c.Dropout):
		return c, fmt.Errorf("lora_dropout: %v; want 0, or a number from 1/65536 to below 1", c.Dropout)
	case len(c.Saved) > mostPatterns:
		return c, fmt.Errorf("modules_to_save: %d names; want at most %d", len(c.Saved), mostPatterns)
	}
	return c, nil
}

// mostPatterns is the maximum number of patterns of layers in an adapter_config.json, and their
// length in bytes.
const mostPatterns = 256

// patternsOf reads an object of numbers of layers that ok accepts, in its order.
func patternsOf(key string, raw json.RawMessage, ok func(float64) bool) (list []nn.Pattern, err error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	err = jsonread.All(raw, func(r *jsonread.Reader) error {
		return r.Object(func(name string) error {
			number, err := r.Number()
			if err != nil {
				return err
			}
			x, err := strconv.ParseFloat(number, 64)
			if err != nil || !ok(x) || len(name) > mostPatterns || len(list) == mostPatterns {
				return fmt.Errorf("%s: %s; want at most %d names of up to %d bytes, with positive numbers", show.Brief(name), show.Brief(number), mostPatterns, mostPatterns)
			}
			p, err := nn.NewPattern(name, x)
			list = append(list, p)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return list, nil
}

// lora returns the adapters without their layers.
func (c adapterConfig) lora() (l nn.LoRA, err error) {
	l = nn.LoRA{Rank: c.Rank, Alpha: *c.Alpha, Stabilized: c.Stabilized, Dropout: c.Dropout, Saved: slices.Sorted(slices.Values(c.Saved))}
	if l.Ranks, err = patternsOf("rank_pattern", c.Ranks, func(x float64) bool { return x == math.Trunc(x) && x >= 1 && x <= Most }); err == nil {
		l.Alphas, err = patternsOf("alpha_pattern", c.Alphas, Positive)
	}
	return l, err
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
	var l nn.LoRA
	if err == nil {
		l, err = c.lora()
	}
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("%s: %w", path, err))
	}
	r, err := safetensors.Open(filepath.Join(folder, "adapter_model.safetensors"))
	if err != nil {
		return nil, input.BadInput(err)
	}
	a = &Adapter{Reader: r, folder: folder, LoRA: l}
	if err := a.find(m, c); err != nil {
		_ = r.Close() // only read from
		return nil, input.BadInput(fmt.Errorf("%s is not an adapter of the model: %w", folder, err))
	}
	return a, nil
}

// find sets the targets and the parameters, and compares these with the tensors.
func (a *Adapter) find(m Model, c adapterConfig) error {
	var layers []string
	for _, t := range a.Tensors() {
		name, ours := strings.CutPrefix(t.Name, peftPrefix)
		if name == outputLayer && m.tiesOutput() && c.Ties {
			a.twice = true
			continue
		}
		layer, down := strings.CutSuffix(name, ".lora_A.weight")
		if down {
			layers = append(layers, layer)
		}
		if !ours || !a.LoRA.Trains(name) {
			return fmt.Errorf("%s is neither a matrix of a LoRA adapter nor in modules_to_save; only such tensors are supported", show.Brief(t.Name))
		}
	}
	slices.Sort(layers)
	a.LoRA.Targets = layers
	if ends := texts(c.Targets); len(ends) > 0 && a.only(m, ends, layers) {
		a.LoRA.Targets = ends
	}
	for _, p := range Parameters(m.Network(a.LoRA)) {
		if !a.LoRA.Trains(p.Name) {
			continue
		}
		a.params = append(a.params, p)
		t, ok := a.Tensor(peftPrefix + p.Name)
		if !ok || !slices.Equal(t.Shape, p.Shape) || !t.DType.Float() {
			return fmt.Errorf("%s has shape %v and type %s, want %v of floats", p.Name, t.Shape, t.DType, p.Shape)
		}
		if embeddings[p.Name] && m.tiesOutput() && !c.Ties {
			return fmt.Errorf("%s is trained, but the output layer of the model, which has the same parameters, is not; want ensure_weight_tying: true", p.Name)
		}
	}
	a.LoRA.Saved = slices.DeleteFunc(a.LoRA.Saved, func(name string) bool { // PEFT ignores a name that matches nothing
		one := nn.LoRA{Rank: 1, Saved: []string{name}}
		return !slices.ContainsFunc(a.params, func(p shard.Param) bool { return one.Saves(p.Name) })
	})
	tensors := len(a.Tensors())
	if a.twice && slices.ContainsFunc(a.params, func(p shard.Param) bool { return embeddings[p.Name] }) {
		tensors--
	}
	if len(a.params) != tensors {
		for _, layer := range layers {
			if !slices.ContainsFunc(a.params, func(p shard.Param) bool { return p.Name == layer+".lora_A.weight" }) {
				return fmt.Errorf("%s has an adapter, which only the linear layers of the model's blocks can have", show.Brief(layer))
			}
		}
		return fmt.Errorf("%d tensors for %d parameters of the model", tensors, len(a.params))
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

// Check reads all values, which must be finite, and returns a digest of the values and their settings.
func (a *Adapter) Check(ctx context.Context) (string, error) {
	var names []string
	for _, p := range a.params {
		names = append(names, peftPrefix+p.Name)
	}
	if a.twice {
		names = append(names, peftPrefix+outputLayer)
	}
	sums, err := a.Finite(ctx, names)
	if err != nil {
		return "", input.BadInput(fmt.Errorf("%s: %w", a.folder, err))
	}
	all := sha256.New()
	for i, p := range a.params {
		if a.twice && embeddings[p.Name] && sums[i] != sums[len(a.params)] {
			return "", input.BadInput(fmt.Errorf("%s: %s differs from %s, with which the model shares its parameters", a.folder, outputLayer, p.Name))
		}
	}
	names = names[:len(a.params)]
	plain := a.LoRA
	plain.Ranks, plain.Alphas = nil, nil
	fmt.Fprintf(all, "%x\n", math.Float64bits(plain.Scale("")))
	for i, name := range names {
		t, _ := a.Tensor(name)
		fmt.Fprintf(all, "%s %s %v %08x\n", name, t.DType, t.Shape, sums[i])
		layer := strings.TrimSuffix(a.params[i].Name, ".lora_A.weight")
		if scale := a.LoRA.Scale(layer); scale != plain.Scale("") {
			fmt.Fprintf(all, "%x\n", math.Float64bits(scale))
		}
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
func (a *Adapter) load(m Model) (*Adapters, error) {
	to := NewAdapters(a.LoRA, m)
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
		values, err := a.load(m)
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
