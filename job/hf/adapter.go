package hf

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"zeroth/checkpoint/safetensors"
	"zeroth/internal/input/hub"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// ordered is a JSON object of patterns in their order, which decides between them.
type ordered []nn.Pattern

// MarshalJSON writes each pattern's name and value.
func (o ordered) MarshalJSON() ([]byte, error) {
	var pairs []string
	for _, p := range o {
		pairs = append(pairs, string(MustJSON(p.Name))+": "+string(MustJSON(p.Value)))
	}
	return []byte("{" + strings.Join(pairs, ", ") + "}"), nil
}

// Adapters gathers the values of a model's adapters from ranks, which put theirs from any
// goroutine.
type Adapters struct {
	LoRA   nn.LoRA
	Family string // of the model: GPT-2 stores its layers as (in, out)
	Tied   bool   // the model's output layer is its embedding

	mu     sync.Mutex
	params []shard.Param
	values map[string][]float32
}

// NewAdapters returns an empty set of a model's adapters.
func NewAdapters(l nn.LoRA, m Model) *Adapters {
	return &Adapters{LoRA: l, Family: m.Family, Tied: m.tiesOutput()}
}

// Put stores a part of an adapter's parameter.
func (a *Adapters) Put(p zero.Part, src []float32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.values == nil {
		a.values = map[string][]float32{}
	}
	if a.values[p.Param.Name] == nil {
		a.values[p.Param.Name] = make([]float32, p.Param.Numel())
		a.params = append(a.params, p.Param)
	}
	copy(a.values[p.Param.Name][p.At.Lo:p.At.Hi], src)
	return nil
}

// Merge returns elements of a parameter with its adapter's contribution, scale·B·A, added, summed in
// float64; those that were saved whole with the adapters; or src itself.
func (a *Adapters) Merge(p zero.Part, src []float32) []float32 {
	if whole := a.values[p.Param.Name]; whole != nil {
		return whole[p.At.Lo:p.At.Hi]
	}
	name := strings.TrimSuffix(p.Param.Name, ".weight")
	down, up := a.values[name+".lora_A.weight"], a.values[name+".lora_B.weight"]
	if down == nil {
		return src
	}
	rank, scale := a.LoRA.RankOf(name), a.LoRA.Scale(name)
	in, cols := len(down)/rank, p.Param.Shape[1]
	to := slices.Clone(src)
	for i := range to {
		row, col := (p.At.Lo+i)/cols, (p.At.Lo+i)%cols
		if a.Family == "gpt2" {
			row, col = col, row
		}
		var sum float64
		for k := range rank {
			sum += float64(up[row*rank+k]) * float64(down[k*in+col])
		}
		to[i] = float32(float64(to[i]) + scale*sum)
	}
	return to
}

// named returns the names of a parameter in PEFT's file, which has an embedding that is also the
// output layer twice.
func (a *Adapters) named(p shard.Param) []string {
	names := []string{peftPrefix + p.Name}
	if a.Tied && embeddings[p.Name] {
		names = append(names, peftPrefix+outputLayer)
	}
	return names
}

// tied reports whether an embedding is saved that is also the output layer.
func (a *Adapters) tied() bool {
	return a.Tied && slices.ContainsFunc(a.params, func(p shard.Param) bool { return embeddings[p.Name] })
}

// Write writes the adapters in PEFT's format, adapter_model.safetensors and adapter_config.json,
// for the model called base, a folder or a model on the Hub.
func (a *Adapters) Write(folder, base string) error {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	slices.SortFunc(a.params, func(x, y shard.Param) int { return strings.Compare(x.Name, y.Name) })
	var specs []safetensors.Spec
	for _, p := range a.params {
		for _, name := range a.named(p) {
			specs = append(specs, safetensors.Spec{Name: name, DType: safetensors.F32, Shape: p.Shape})
		}
	}
	targets := any(a.LoRA.Targets)
	if len(a.LoRA.Targets) == 1 && a.LoRA.Targets[0] == nn.AllLinear {
		targets = nn.AllLinear
	}
	base, revision := hub.Split(base)
	config := map[string]any{
		"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": a.LoRA.Rank, "lora_alpha": a.LoRA.Alpha,
		"target_modules": targets, "lora_dropout": a.LoRA.Dropout, "bias": "none", "fan_in_fan_out": a.Family == "gpt2", "inference_mode": true,
		"rank_pattern": ordered(a.LoRA.Ranks), "alpha_pattern": ordered(a.LoRA.Alphas), "modules_to_save": a.LoRA.Saved, "use_rslora": a.LoRA.Stabilized, "use_dora": false, "init_lora_weights": true,
	}
	if revision != "" {
		config["revision"] = revision
	}
	if a.tied() { // PEFT sees this by the name of the output layer
		config["ensure_weight_tying"], config["modules_to_save"] = true, append(slices.Clone(a.LoRA.Saved), strings.TrimSuffix(outputLayer, ".weight"))
	}
	w, err := safetensors.Create(filepath.Join(folder, "adapter_model.safetensors"), specs, map[string]string{"format": "pt"})
	if err != nil {
		return err
	}
	for _, p := range a.params {
		for _, name := range a.named(p) {
			if err := w.WriteF32(name, 0, a.values[p.Name]); err != nil {
				_ = w.Abort() // err is the one to report
				return fmt.Errorf("%s: %w", p.Name, err)
			}
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return writeFile(filepath.Join(folder, "adapter_config.json"), append(MustJSON(config), '\n'))
}
