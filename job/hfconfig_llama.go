package job

import (
	"cmp"
	"encoding/json"
	"fmt"

	"zeroth/device"
)

// llamaConfig is config.json of Hugging Face's LlamaConfig and Qwen2Config, as
// far as it decides what is computed. Pointers tell a missing key, which has the
// class's default, from a zero.
type llamaConfig struct {
	ModelType        string          `json:"model_type"`
	Architectures    []string        `json:"architectures,omitempty"`
	VocabSize        *int            `json:"vocab_size"`
	MaxPositions     *int            `json:"max_position_embeddings"`
	HiddenSize       *int            `json:"hidden_size"`
	IntermediateSize *int            `json:"intermediate_size"`
	Layers           *int            `json:"num_hidden_layers"`
	Heads            *int            `json:"num_attention_heads"`
	KVHeads          *int            `json:"num_key_value_heads"` // null: num_attention_heads
	HeadDim          *int            `json:"head_dim,omitempty"`  // null: hidden_size / num_attention_heads
	Activation       *string         `json:"hidden_act"`
	NormEps          *float64        `json:"rms_norm_eps"`
	Tied             *bool           `json:"tie_word_embeddings"`
	RopeTheta        *float64        `json:"rope_theta"`
	RopeScaling      *ropeConfig     `json:"rope_scaling"`
	RopeParameters   *ropeConfig     `json:"rope_parameters,omitempty"` // transformers 5: theta and scaling in one
	AttentionBias    *bool           `json:"attention_bias,omitempty"`
	MLPBias          *bool           `json:"mlp_bias,omitempty"`
	SlidingWindow    *bool           `json:"use_sliding_window,omitempty"`
	LayerTypes       []string        `json:"layer_types,omitempty"`
	InitializerRange *float64        `json:"initializer_range,omitempty"`
	BOS              json.RawMessage `json:"bos_token_id"`
	EOS              json.RawMessage `json:"eos_token_id"` // a number or a list
	TorchDtype       string          `json:"torch_dtype,omitempty"`
}

// ropeConfig says how rotary positions turn.
type ropeConfig struct {
	Type    string   `json:"rope_type,omitempty"` // "default" or "llama3"
	OldType string   `json:"type,omitempty"`      // the same, in older files
	Theta   *float64 `json:"rope_theta,omitempty"`
	Factor  float64  `json:"factor,omitempty"`
	Low     float64  `json:"low_freq_factor,omitempty"`
	High    float64  `json:"high_freq_factor,omitempty"`
	Context int      `json:"original_max_position_embeddings,omitempty"`
}

func parseLlama(raw []byte) (Model, error) {
	var c llamaConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return Model{}, fmt.Errorf("not a model's config: %w", err)
	}
	vocab, ffn, longest := 32000, 11008, 2048
	if c.ModelType == "qwen2" {
		vocab, ffn, longest = 151936, 22016, 32768
	}
	m := Model{
		Family: "llama",
		Layers: or(c.Layers, 32), Heads: or(c.Heads, 32), Width: or(c.HiddenSize, 4096), FFN: or(c.IntermediateSize, ffn),
		Context: or(c.MaxPositions, longest), Vocab: or(c.VocabSize, vocab), NormEps: or(c.NormEps, 1e-6),
		Tied: or(c.Tied, false), Bias: c.ModelType == "qwen2", BOS: tokenID(c.BOS), EOS: tokenID(c.EOS),
	}
	m.KVHeads = or(c.KVHeads, m.Heads)
	if err := c.rope(&m); err != nil {
		return Model{}, err
	}
	return m, c.supported(m)
}

// rope reads the rotary positions of either generation of files.
func (c llamaConfig) rope(m *Model) error {
	m.Theta = or(c.RopeTheta, 10000)
	for _, r := range []*ropeConfig{c.RopeScaling, c.RopeParameters} {
		if r == nil {
			continue
		}
		m.Theta = or(r.Theta, m.Theta)
		switch kind := cmp.Or(r.Type, r.OldType, "default"); kind {
		case "default":
		case "llama3":
			m.Scaling = device.RopeScaling{Factor: r.Factor, Low: r.Low, High: r.High, Context: r.Context}
			if !(r.Factor >= 1 && r.Low > 0 && r.High > r.Low && r.Context > 0) {
				return fmt.Errorf("rope_type llama3 with factor %v, low_freq_factor %v, high_freq_factor %v, original_max_position_embeddings %d; want a factor of at least 1, 0 < low < high, and positions",
					r.Factor, r.Low, r.High, r.Context)
			}
		default:
			return fmt.Errorf("rope_type %q is not supported; want default or llama3", kind)
		}
	}
	if !positive(m.Theta) {
		return fmt.Errorf("rope_theta %v is out of range", m.Theta)
	}
	return nil
}

// supported refuses variants that are computed in another way.
func (c llamaConfig) supported(m Model) error {
	err := inRange(map[string]int{"num_hidden_layers": m.Layers, "num_attention_heads": m.Heads, "num_key_value_heads": m.KVHeads,
		"hidden_size": m.Width, "intermediate_size": m.FFN, "max_position_embeddings": m.Context, "vocab_size": m.Vocab})
	if err != nil {
		return err
	}
	for _, kind := range c.LayerTypes {
		if kind != "full_attention" {
			return fmt.Errorf("layer_types with %q is not supported; want full_attention", kind)
		}
	}
	switch {
	case m.Width%m.Heads != 0:
		return fmt.Errorf("num_attention_heads %d does not divide hidden_size %d", m.Heads, m.Width)
	case !m.headsFit(m.Heads):
		return fmt.Errorf("hidden_size %d / num_attention_heads %d is odd; rotary positions turn pairs", m.Width, m.Heads)
	case m.Heads%m.KVHeads != 0:
		return fmt.Errorf("num_key_value_heads %d does not divide num_attention_heads %d", m.KVHeads, m.Heads)
	case or(c.HeadDim, m.Width/m.Heads) != m.Width/m.Heads:
		return fmt.Errorf("head_dim %d is not supported; want hidden_size / num_attention_heads = %d", *c.HeadDim, m.Width/m.Heads)
	case m.NormEps <= 0 || m.NormEps >= 1:
		return fmt.Errorf("rms_norm_eps %v is out of range", m.NormEps)
	case or(c.Activation, "silu") != "silu":
		return fmt.Errorf("hidden_act %q is not supported; want silu", *c.Activation)
	case or(c.AttentionBias, false) && !m.Bias:
		return fmt.Errorf("attention_bias is not supported; biases of queries, keys and values alone are model_type qwen2")
	case or(c.MLPBias, false):
		return fmt.Errorf("mlp_bias is not supported")
	case or(c.SlidingWindow, false):
		return fmt.Errorf("use_sliding_window is not supported")
	}
	return nil
}

// writtenLlama describes rotary positions as transformers 4 does, which 5 reads
// too.
func writtenLlama(m Model) llamaConfig {
	no, silu, std, longest := false, "silu", 0.02, max(m.Context, m.Longest)
	c := llamaConfig{
		ModelType: "llama", Architectures: []string{"LlamaForCausalLM"},
		VocabSize: &m.Vocab, MaxPositions: &longest, HiddenSize: &m.Width, IntermediateSize: &m.FFN,
		Layers: &m.Layers, Heads: &m.Heads, KVHeads: &m.KVHeads, Activation: &silu, NormEps: &m.NormEps, Tied: &m.Tied,
		RopeTheta: &m.Theta, InitializerRange: &std, TorchDtype: "float32", BOS: known(m.BOS, nil), EOS: known(m.EOS, nil),
	}
	if s := m.Scaling; s.Factor != 0 {
		c.RopeScaling = &ropeConfig{Type: "llama3", Factor: s.Factor, Low: s.Low, High: s.High, Context: s.Context}
	}
	if m.Bias {
		c.ModelType, c.Architectures, c.SlidingWindow = "qwen2", []string{"Qwen2ForCausalLM"}, &no
	} else {
		c.AttentionBias, c.MLPBias = &no, &no
	}
	return c
}
