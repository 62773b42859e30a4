package job

import (
	"fmt"

	"zeroth/device"
	"zeroth/nn"
)

// Model is the shape of the network. A family has no use for the fields of
// another, which are zero.
type Model struct {
	From    string // folder with config.json and model.safetensors to start from; empty: fresh parameters
	Family  string // "gpt2" or "llama"
	Layers  int
	Heads   int // divides Width
	Width   int // elements of the residual stream
	Context int // tokens of a sequence
	Longest int // tokens of the longest sequence From was made for; 0: Context
	Vocab   int // different tokens
	NormEps float64
	BOS     string // bos_token_id of From's config.json, as there; empty: it has none, or the family's own
	EOS     string // eos_token_id, alike; it may be a list

	// Llama's.
	KVHeads int // heads of keys and values; divides Heads
	FFN     int // width of the hidden layer
	Theta   float64
	Scaling device.RopeScaling
	Tied    bool // the output layer is the token embedding
	Bias    bool // queries, keys and values have biases, as in Qwen2
	Padded  bool // the embedding of token Pad is not trained, but as output layer
	Pad     int
}

// network is the model the fields describe.
func (m Model) network() *nn.Model {
	context, eps := max(m.Context, m.Longest), float32(m.NormEps)
	switch m.Family {
	case "gpt2":
		return nn.GPT2{Layers: m.Layers, Heads: m.Heads, Width: m.Width, Context: context, Vocab: m.Vocab, Eps: eps}.Model()
	case "llama":
		return nn.Llama{
			Layers: m.Layers, Width: m.Width, Context: context, Vocab: m.Vocab, Heads: m.Heads, KV: m.KVHeads, FFN: m.FFN,
			Eps: eps, Theta: m.Theta, Scaling: m.Scaling, Tied: m.Tied, Bias: m.Bias, Padded: m.Padded, Pad: m.Pad,
		}.Model()
	}
	panic(fmt.Sprintf("job: a model of family %q", m.Family))
}

// llamaKeys are the keys of the model section that only Llama has.
var llamaKeys = []string{"kv_heads", "ffn", "rope_theta", "tied"}

// headsFit tells whether a width can be cut into heads, which Llama's positions
// want to be of even width.
func (m Model) headsFit(heads int) bool {
	return m.Width%heads == 0 && (m.Family != "llama" || m.Width/heads%2 == 0)
}

// resolveShape fills in what a model without a folder leaves out, and checks
// that its heads fit.
func (r *reader) resolveShape(makes int) {
	m := &r.config.Model
	m.NormEps = 1e-5
	if !m.headsFit(m.Heads) {
		wrong := fmt.Sprintf("%d heads do not divide width %d", m.Heads, m.Width)
		if m.Width%m.Heads == 0 {
			wrong = fmt.Sprintf("%d heads of width %d: rotary positions turn pairs, so a head's width is even", m.Heads, m.Width/m.Heads)
		}
		want := "want an even width"
		if fits := neighbours(m.Heads, m.headsFit); len(fits) > 0 {
			want = fmt.Sprintf("want %s heads", eitherCount(fits))
		}
		r.refuse(wrong, want, "model.heads", "model.width")
	}
	if !r.has("model.vocab") {
		if m.Vocab = makes; makes > most {
			r.refuse(fmt.Sprintf("a vocabulary of %d tokens is more than %d", makes, most), "want a smaller one", "model.vocab", "data.vocab")
		}
	}
	if m.Family == "llama" {
		r.resolveLlama()
	}
}

func (r *reader) resolveLlama() {
	m := &r.config.Model
	if !r.has("model.kv_heads") {
		m.KVHeads = m.Heads
	}
	if !r.has("model.ffn") {
		m.FFN = (8*m.Width/3 + 63) / 64 * 64
	}
	if !r.has("model.rope_theta") {
		m.Theta = 10000
	}
	if m.Heads%m.KVHeads != 0 {
		r.refuse(fmt.Sprintf("%d key and value heads do not divide %d heads", m.KVHeads, m.Heads),
			fmt.Sprintf("want kv_heads %s", eitherCount(neighbours(m.KVHeads, func(n int) bool { return m.Heads%n == 0 }))), "model.kv_heads", "model.heads")
	}
}

// modelFrom takes the shape of a folder's model, and if the job says so shorter
// sequences than it was made for.
func (r *reader) modelFrom() {
	m := &r.config.Model
	read, kept, err := readConfig(m.From)
	if err != nil {
		r.wrong(r.given["model.from"].at, "model.from", err.Error(), "")
		return
	}
	r.config.carried = kept
	read.From = m.From
	if r.has("model.context") && m.Context > read.Context {
		r.refuse(fmt.Sprintf("sequences of %d tokens, but the model of %s is made for at most %d", m.Context, m.From, read.Context),
			fmt.Sprintf("want a context of at most %d", read.Context), "model.context")
	}
	if r.has("model.context") && m.Context < read.Context {
		read.Context, read.Longest = m.Context, read.Context
	}
	*m = read
}
