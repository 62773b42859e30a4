package hf

import (
	"cmp"
	"fmt"
	"strings"
)

// family is a kind of model: what its config.json says, and where that is written
// down again.
type family struct {
	kind  string                                  // model_type
	name  string                                  // for people
	class [2]string                               // whose parameters are the family's: the causal language model, and the same without its output layer
	own   map[string]bool                         // keys that decide nothing about a loss or its gradient, beside harmless
	read  func(*object) (m Model, notes []string) // with the defaults of the class
	write func(m Model, all map[string]any)       // of a model that comes from no folder; nil: there is none
}

// families are all that are read.
var families = []family{gpt2, llama, mistral, qwen2, qwen3, olmo2, olmo3, phi3, smollm3, gemma, gemma2, gemma3}

// familyOf is the family of a model_type.
func familyOf(kind string) (family, bool) {
	for _, f := range families {
		if f.kind == kind {
			return f, true
		}
	}
	return family{}, false
}

// Families are the model_types that are read.
func Families() (kinds []string) {
	for _, f := range families {
		kinds = append(kinds, f.kind)
	}
	return kinds
}

// family is the model's.
func (m Model) family() family {
	kind := cmp.Or(m.Type, m.Family)
	if m.Type == "" && m.BiasQKV {
		kind = "qwen2"
	}
	f, ok := familyOf(kind)
	if !ok {
		panic(fmt.Sprintf("hf: a model of type %q", kind))
	}
	return f
}

// either lists words as a choice.
func either(words []string) string {
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// Describe is the model's family, for people.
func (m Model) Describe() string {
	f := m.family()
	return fmt.Sprintf("%s (model_type %s)", f.name, f.kind)
}
