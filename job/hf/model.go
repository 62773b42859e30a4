package hf

import (
	"cmp"
	"fmt"
	"math"

	"zeroth/device"
	"zeroth/nn"
)

// Model is the shape of the network. A family has no use for the fields of
// another, which are zero.
type Model struct {
	From    string // folder with config.json and model.safetensors to start from; empty: fresh parameters
	Family  string // "gpt2" or "llama": of what blocks the model is made
	Type    string // model_type of its config.json, where that is neither Family nor qwen2
	Layers  int
	Heads   int // divides Width
	Width   int // elements of the residual stream
	Context int // tokens of a sequence
	Longest int // tokens of the longest sequence From was made for; 0: Context
	Vocab   int // different tokens
	NormEps float64
	BOS     string // bos_token_id of From's config.json, as there; empty: it has none, or the family's own
	EOS     string // eos_token_id, alike; it may be a list

	Dropout nn.Dropout // of training

	// GPT-2's.
	Inner  int               // width of the hidden layer; 0: 4 Width
	Act    device.Activation // of it
	Untied bool              // the output layer is a matrix of its own
	// Scores of layer i are divided by i+1; beside Scale, below.
	ByLayer bool

	// Llama's.
	KVHeads int // heads of keys and values; divides Heads
	FFN     int // width of the hidden layer
	Theta   float64
	Scaling device.RopeScaling
	Turned  int  // elements of a head that turn; 0: all
	Tied    bool // the output layer is the token embedding
	Bias    bool // queries, keys and values have biases, as in Qwen2
	Padded  bool // the embedding of token Pad is not trained, but as output layer
	Pad     int

	// Of the families that are made of Llama's blocks; see nn.Llama.
	HeadWidth        int // 0: Width/Heads
	BiasOut, BiasMLP bool
	HeadNorm         nn.HeadNorm
	Norms            nn.Norms
	Fused, Gemma     bool
	Layout           string
	Window           int
	LocalTheta       float64
	Scale            float64

	CapScores, CapLogits float64
}

// Head is the width of a head.
func (m Model) Head() int { return cmp.Or(m.HeadWidth, m.Width/m.Heads) }

// Network is the model the fields describe.
func (m Model) Network() *nn.Model { return m.With(nn.LoRA{}) }

// With is the model with adapters.
func (m Model) With(l nn.LoRA) *nn.Model {
	switch m.Family {
	case "gpt2":
		g := m.GPT2()
		g.LoRA = l
		return g.Model()
	case "llama":
		x := m.Llama()
		x.LoRA = l
		return x.Model()
	}
	panic(fmt.Sprintf("hf: a model of family %q", m.Family))
}

// GPT2 is the shape of a model of family gpt2.
func (m Model) GPT2() nn.GPT2 {
	return nn.GPT2{Layers: m.Layers, Heads: m.Heads, Width: m.Width, Context: max(m.Context, m.Longest), Vocab: m.Vocab, Eps: float32(m.NormEps),
		Inner: m.Inner, Act: m.Act, Untied: m.Untied, Scale: m.Scale, ByLayer: m.ByLayer, Dropout: m.Dropout}
}

// Llama is the shape of a model of family llama.
func (m Model) Llama() nn.Llama {
	return nn.Llama{
		Name: m.family().name, Layers: m.Layers, Width: m.Width, Context: max(m.Context, m.Longest), Vocab: m.Vocab, Heads: m.Heads, KV: m.KVHeads, FFN: m.FFN,
		Eps: float32(m.NormEps), Theta: m.Theta, Scaling: m.Scaling, Turned: m.Turned, Tied: m.Tied, BiasQKV: m.Bias, Padded: m.Padded, Pad: m.Pad,
		Head: m.HeadWidth, BiasOut: m.BiasOut, BiasMLP: m.BiasMLP, HeadNorm: m.HeadNorm, Norms: m.Norms, Fused: m.Fused, Gemma: m.Gemma,
		Layout: m.Layout, Window: m.Window, LocalTheta: m.LocalTheta, Scale: m.Scale, CapScores: m.CapScores, CapLogits: m.CapLogits, Dropout: m.Dropout,
	}
}

// LlamaKeys are the keys of the model section that only Llama has.
var LlamaKeys = []string{"kv_heads", "ffn", "rope_theta", "tied"}

// HeadsFit tells whether a width can be cut into heads, which Llama's positions
// want to be of even width.
func (m Model) HeadsFit(heads int) bool {
	if m.HeadWidth != 0 {
		return m.HeadWidth%2 == 0
	}
	return m.Width%heads == 0 && (m.Family != "llama" || m.Width/heads%2 == 0)
}

// Limits of a model.
const (
	Most       = 1 << 20 // of every count that has no other bound
	MostLayers = 10_000
)

// Positive tells whether a number is above 0 and finite.
func Positive(x float64) bool { return x > 0 && !math.IsInf(x, 0) }
