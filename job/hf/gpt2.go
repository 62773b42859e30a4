package hf

import (
	"encoding/json"
	"maps"
	"slices"

	"zeroth/device"
	"zeroth/internal/show"
	"zeroth/nn"
)

var gpt2 = family{
	kind: "gpt2", name: "GPT-2", class: [2]string{"GPT2LMHeadModel", "GPT2Model"},
	ignored: words(`n_ctx pad_token_id summary_activation summary_first_dropout summary_proj_to_labels summary_type
		summary_use_proj predict_special_tokens`),
	read: readGPT2, write: writeGPT2,
}

// activations maps transformers' names to the supported activations.
var activations = map[string]device.Activation{
	"gelu_new": device.GeluTanh, "gelu_pytorch_tanh": device.GeluTanh, "gelu_fast": device.GeluTanh, "gelu_accurate": device.GeluTanh, "gelu_python_tanh": device.GeluTanh,
	"gelu": device.GeluErf, "gelu_python": device.GeluErf,
	"relu": device.Relu, "silu": device.Silu, "swish": device.Silu, "tanh": device.Tanh,
}

// readGPT2 reads Hugging Face's GPT2Config.
func readGPT2(o *object, m *Model) {
	*m = Model{
		Family: "gpt2",
		Shape: nn.Shape{
			Layers: o.count("n_layer", "num_hidden_layers", 12), Heads: o.count("n_head", "num_attention_heads", 12),
			Width: o.count("n_embd", "hidden_size", 768), Context: o.count("n_positions", "max_position_embeddings", 1024),
			Vocab: o.count("vocab_size", "", 50257), Eps: o.number("layer_norm_epsilon", 1e-5, normEps),
		},
	}
	if m.Width%m.Heads != 0 {
		o.refuse("n_head %d does not divide n_embd %d", m.Heads, m.Width)
	}
	if !o.null("n_inner") {
		m.Inner = o.count("n_inner", "", 4*m.Width)
	}
	if m.Inner == 4*m.Width {
		m.Inner = 0
	}
	f := get(o, "activation_function", "gelu_new")
	act, ok := activations[f]
	if m.Act = act; !ok {
		o.refuse("activation_function \"%s\" is not supported; want %s", show.Brief(f), either(slices.Sorted(maps.Keys(activations))))
	}
	if !get(o, "scale_attn_weights", true) {
		m.Scale = 1
	}
	m.ByLayer = get(o, "scale_attn_by_inverse_layer_idx", false)
	m.Untied = !get(o, "tie_word_embeddings", true)
	if get(o, "reorder_and_upcast_attn", false) {
		o.note("config.json has reorder_and_upcast_attn: attention always sums in float32")
	}
	o.weights(0.1, "attn_pdrop")
	o.residual(m, 0.1, "embd_pdrop", "resid_pdrop")
}

// WithoutDropout returns a config.json in which missing keys of GPT2Config's dropout are set to 0,
// instead of getting GPT2Config's default.
func WithoutDropout(config []byte) []byte {
	o, err := readObject(config)
	if err != nil || string(o.raw("model_type")) != `"gpt2"` {
		return config
	}
	for _, key := range []string{"attn_pdrop", "embd_pdrop", "resid_pdrop"} {
		if o.null(key) {
			o.values[key] = json.RawMessage("0")
		}
	}
	return MustJSON(o.values)
}

// writeGPT2 always writes the dropout, because GPT2Config's default is not 0.
func writeGPT2(m Model, all map[string]any) {
	maps.Copy(all, map[string]any{
		"tie_word_embeddings": true,
		"n_positions":         max(m.Context, m.Longest), "n_embd": m.Width, "n_layer": m.Layers, "n_head": m.Heads, "n_inner": nil,
		"activation_function": "gelu_new", "layer_norm_epsilon": m.Eps, "scale_attn_weights": true,
		"scale_attn_by_inverse_layer_idx": false, "add_cross_attention": false, "attn_pdrop": m.Dropout.Attention, "embd_pdrop": m.Dropout.Embed, "resid_pdrop": m.Dropout.Residual,
	})
	if m.Vocab > 50256 {
		all["bos_token_id"], all["eos_token_id"] = json.RawMessage(endOfText), json.RawMessage(endOfText)
	}
}
