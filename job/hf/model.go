package hf

import (
	"cmp"
	"fmt"
	"math"

	"zeroth/nn"
)

// Model is a model as described by its config.json. Of GPT2 and Llama, the one of its Family is set,
// except for its Shape: the Model's own Shape is used.
type Model struct {
	From       string  // folder with config.json and model.safetensors to start from; "" for fresh parameters
	Family     string  // "gpt2" or "llama": kind of blocks
	Type       string  // model_type of its config.json, if it is neither Family nor qwen2
	Longest    int     // tokens of the longest sequence that From supports; 0 means Context
	Predicting int     // layers on disk after those of the model, which are not used: they predict further tokens
	RouterAux  float64 // coefficient of the balancing loss that training adds; 0: none
	BOS        string  // bos_token_id of From's config.json, as written there; "" for none or the family's default
	EOS        string  // eos_token_id, likewise; it may be a list
	nn.Shape
	nn.GPT2
	nn.Llama
}

// Head returns the width of a head.
func (m Model) Head() int { return cmp.Or(m.Llama.Head, m.Width/m.Heads) }

// outputLayer is the name of the output layer, if it has parameters of its own.
const outputLayer = "lm_head.weight"

// embeddings are the names of the embeddings of all families.
var embeddings = map[string]bool{"transformer.wte.weight": true, "model.embed_tokens.weight": true}

// tiesOutput reports whether the output layer is the embedding.
func (m Model) tiesOutput() bool { return m.Tied || m.Family == "gpt2" && !m.Untied }

// Network builds the model, with the adapters of l.
func (m Model) Network(l nn.LoRA) *nn.Model {
	shape := m.Shape
	shape.Context, shape.LoRA = max(m.Context, m.Longest), l
	switch m.Family {
	case "gpt2":
		m.GPT2.Shape = shape
		return m.GPT2.Model()
	case "llama":
		m.Llama.Shape, m.Llama.Name = shape, m.family().name
		return m.Llama.Model()
	}
	panic(fmt.Sprintf("hf: a model of family %q", m.Family))
}

// Differ calls f for every difference that affects the computation.
func (m Model) Differ(o Model, f func(name string, m, o any)) {
	for _, part := range [...]struct{ name, m, o string }{{"family", m.Family, o.Family}, {"model_type", m.Type, o.Type}} {
		if part.m != part.o {
			f(part.name, part.m, part.o)
		}
	}
	nn.Differ(m.Shape, o.Shape, f)
	nn.Differ(m.GPT2, o.GPT2, f)
	nn.Differ(m.Llama, o.Llama, f)
}

// HeadsFit reports whether the width divides into heads; Llama's rotary positions need
// heads of even width.
func (m Model) HeadsFit(heads int) bool {
	if m.Llama.Head != 0 {
		return m.Llama.Head%2 == 0
	}
	return m.Width%heads == 0 && (m.Family != "llama" || m.Width/heads%2 == 0)
}

// Limits of a model.
const (
	Most       = 1 << 20 // upper limit of counts without another limit
	MostLayers = 10_000
)

// Positive reports whether a number is above 0 and finite.
func Positive(x float64) bool { return x > 0 && !math.IsInf(x, 0) }
