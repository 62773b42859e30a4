package hf

import (
	"cmp"
	"fmt"
	"strings"
)

// family is a model_type: how its config.json is read and written.
type family struct {
	kind    string                            // model_type
	name    string                            // for display
	class   [2]string                         // transformers classes: the causal language model, and the same without its output layer
	ignored map[string]bool                   // keys that do not affect the loss or its gradient, in addition to harmless
	base    decoder                           // defaults of a class made of Llama's blocks; without layers: none
	read    func(o *object, m *Model)         // completes what base has read
	write   func(m Model, all map[string]any) // writes the config of a model that comes from no folder; nil if there are none
}

// families are all supported families.
var families = []family{gpt2, llama, mistral, qwen2, qwen3, olmo2, olmo3, phi3, smollm3, granite, gemma, gemma2, gemma3,
	mixtral, qwen2moe, qwen3moe, olmoe, graniteMoE, graniteMoEShared, glm4MoE, dots1, minimaxM2}

// needs describes what families with experts need that no module has.
var needs = map[string]string{
	"deepseek_v2": latent, "deepseek_v3": latent, "glm4_moe_lite": latent, "kimi_k2": latent,
	"gpt_oss":      "attention sinks, and experts with biases",
	"ernie4_5_moe": "rotary positions of neighbouring elements",
	"phimoe":       "routing that is random in training",
	"llama4_text":  "attention in chunks",
	"minimax":      "linear attention",
	"qwen3_next":   "gated delta networks",
}

const latent = "queries and keys of low rank (multi-head latent attention)"

// familyOf returns the family of a model_type.
func familyOf(kind string) (family, bool) {
	for _, f := range families {
		if f.kind == kind {
			return f, true
		}
	}
	return family{}, false
}

// Families returns the supported model_types.
func Families() (kinds []string) {
	for _, f := range families {
		kinds = append(kinds, f.kind)
	}
	return kinds
}

// family returns the model's family.
func (m Model) family() family {
	kind := cmp.Or(m.Type, m.Family)
	switch {
	case m.Type != "":
	case m.Experts.Count > 0:
		kind = mixtral.kind
	case m.BiasQKV:
		kind = "qwen2"
	}
	f, ok := familyOf(kind)
	if !ok {
		panic(fmt.Sprintf("hf: a model of type %q", kind))
	}
	return f
}

// either lists alternatives.
func either(words []string) string {
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// Describe names the model's family, for display.
func (m Model) Describe() string {
	f := m.family()
	return fmt.Sprintf("%s (model_type %s)", f.name, f.kind)
}
