package job

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// gpt2Config is config.json of Hugging Face's GPT2Config, as far as it decides
// what is computed. Pointers tell a missing key, which has GPT2Config's
// default, from a zero.
type gpt2Config struct {
	ModelType        string          `json:"model_type"`
	Architectures    []string        `json:"architectures,omitempty"`
	VocabSize        *int            `json:"vocab_size"`
	NPositions       *int            `json:"n_positions"`
	NEmbd            *int            `json:"n_embd"`
	NLayer           *int            `json:"n_layer"`
	NHead            *int            `json:"n_head"`
	NInner           *int            `json:"n_inner"` // null: 4 × n_embd
	Activation       *string         `json:"activation_function"`
	NormEps          *float64        `json:"layer_norm_epsilon"`
	Tied             *bool           `json:"tie_word_embeddings"`
	ScaleAttn        *bool           `json:"scale_attn_weights"`
	ScaleByLayer     *bool           `json:"scale_attn_by_inverse_layer_idx"`
	CrossAttention   *bool           `json:"add_cross_attention"`
	InitializerRange *float64        `json:"initializer_range,omitempty"`
	BOS              json.RawMessage `json:"bos_token_id"`
	EOS              json.RawMessage `json:"eos_token_id"` // a number or a list
	TorchDtype       string          `json:"torch_dtype,omitempty"`
}

// endOfText is the id of <|endoftext|> in GPT-2's own vocabulary.
const endOfText = "50256"

// tokenID is bos_token_id or eos_token_id as it is in a file, without spaces:
// a number, a list of numbers, or empty for none and anything else.
func tokenID(raw json.RawMessage) string {
	var one int
	var list []int
	if len(raw) == 0 || json.Unmarshal(raw, &one) != nil && json.Unmarshal(raw, &list) != nil || string(raw) == "null" {
		return ""
	}
	if list != nil {
		return string(mustJSONLine(list))
	}
	return strconv.Itoa(one)
}

func mustJSONLine(list []int) []byte {
	b, err := json.Marshal(list)
	if err != nil {
		panic(fmt.Sprintf("job: JSON of %v: %v", list, err)) // numbers always encode
	}
	return b
}

// known is a token id that a model came with, or what is written without one.
func known(id string, otherwise json.RawMessage) json.RawMessage {
	if id == "" {
		return otherwise
	}
	return json.RawMessage(id)
}

// generationTokens fills in what config.json does not say of the tokens that
// begin and end a text, from generation_config.json if there is one.
func (m *Model) generationTokens(folder string) {
	raw, err := os.ReadFile(filepath.Join(folder, "generation_config.json"))
	var c struct {
		BOS json.RawMessage `json:"bos_token_id"`
		EOS json.RawMessage `json:"eos_token_id"`
	}
	if err != nil || json.Unmarshal(raw, &c) != nil {
		return // it decides nothing that is computed here
	}
	m.BOS, m.EOS = cmp.Or(m.BOS, tokenID(c.BOS)), cmp.Or(m.EOS, tokenID(c.EOS))
	if m.Family == "gpt2" && m.BOS == endOfText && m.EOS == endOfText {
		m.BOS, m.EOS = "", ""
	}
}

// ReadModelConfig reads config.json of a Hugging Face folder, or a file like it.
// Its From is empty. What this runtime would compute differently is refused.
func ReadModelConfig(folder string) (Model, error) {
	path := filepath.Join(folder, "config.json")
	if info, err := os.Stat(folder); err == nil && info.Mode().IsRegular() {
		path = folder
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return Model{}, BadInput(fmt.Errorf("%s cannot be read: %w", path, cause(err)))
	}
	m, err := parseModelConfig(raw)
	if err != nil {
		return Model{}, BadInput(fmt.Errorf("%s: %w", path, err))
	}
	m.generationTokens(filepath.Dir(path))
	return m, nil
}

func parseModelConfig(raw []byte) (Model, error) {
	var c struct {
		ModelType string `json:"model_type"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Model{}, fmt.Errorf("not a model's config: %w", err)
	}
	switch c.ModelType {
	case "gpt2":
		return parseGPT2(raw)
	case "llama", "qwen2":
		return parseLlama(raw)
	}
	return Model{}, fmt.Errorf("model_type %q is not supported; want gpt2, llama or qwen2", c.ModelType)
}

func parseGPT2(raw []byte) (Model, error) {
	var c gpt2Config
	if err := json.Unmarshal(raw, &c); err != nil {
		return Model{}, fmt.Errorf("not a model's config: %w", err)
	}
	m := Model{
		Family: "gpt2",
		Layers: or(c.NLayer, 12), Heads: or(c.NHead, 12), Width: or(c.NEmbd, 768),
		Context: or(c.NPositions, 1024), Vocab: or(c.VocabSize, 50257), NormEps: or(c.NormEps, 1e-5),
		BOS: tokenID(c.BOS), EOS: tokenID(c.EOS),
	}
	if m.BOS == endOfText && m.EOS == endOfText { // what is written where nothing else is known
		m.BOS, m.EOS = "", ""
	}
	return m, c.supported(m)
}

// supported refuses variants of GPT-2 that are computed in another way.
func (c gpt2Config) supported(m Model) error {
	err := inRange(map[string]int{"n_layer": m.Layers, "n_head": m.Heads, "n_embd": m.Width, "n_positions": m.Context, "vocab_size": m.Vocab})
	if err != nil {
		return err
	}
	switch {
	case m.Width%m.Heads != 0:
		return fmt.Errorf("n_head %d does not divide n_embd %d", m.Heads, m.Width)
	case m.NormEps <= 0 || m.NormEps >= 1:
		return fmt.Errorf("layer_norm_epsilon %v is out of range", m.NormEps)
	case or(c.NInner, 4*m.Width) != 4*m.Width:
		return fmt.Errorf("n_inner %d is not supported; want 4 × n_embd = %d", *c.NInner, 4*m.Width)
	case or(c.Activation, "gelu_new") != "gelu_new":
		return fmt.Errorf("activation_function %q is not supported; want gelu_new", *c.Activation)
	case !or(c.Tied, true):
		return fmt.Errorf("tie_word_embeddings false is not supported: the output layer is the token embedding")
	case !or(c.ScaleAttn, true):
		return fmt.Errorf("scale_attn_weights false is not supported")
	case or(c.ScaleByLayer, false):
		return fmt.Errorf("scale_attn_by_inverse_layer_idx is not supported")
	case or(c.CrossAttention, false):
		return fmt.Errorf("add_cross_attention is not supported")
	}
	return nil
}

// inRange refuses counts that no model has.
func inRange(counts map[string]int) error {
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[key]; n < 1 || n > most {
			return fmt.Errorf("%s %d is out of range", key, n)
		}
	}
	return nil
}

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// WriteModelConfig writes config.json into a folder that exists, next to
// parameters saved as float32. Under that name there is never half of it.
func WriteModelConfig(folder string, m Model) error {
	path := filepath.Join(folder, "config.json")
	err := os.WriteFile(path+".tmp", m.configJSON(), 0o644)
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		_ = os.Remove(path + ".tmp") // err is the one to report
		return fmt.Errorf("write %s: %w", path, cause(err))
	}
	return nil
}

// configJSON is config.json of the model with parameters in float32.
func (m Model) configJSON() []byte {
	var c any
	switch m.Family {
	case "gpt2":
		c = writtenGPT2(m)
	case "llama":
		c = writtenLlama(m)
	default:
		panic(fmt.Sprintf("job: config.json of family %q", m.Family))
	}
	raw, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("job: config.json: %v", err)) // finite numbers and strings always encode
	}
	return append(raw, '\n')
}

func writtenGPT2(m Model) gpt2Config {
	yes, no, gelu, std, longest := true, false, "gelu_new", 0.02, max(m.Context, m.Longest)
	c := gpt2Config{
		ModelType: "gpt2", Architectures: []string{"GPT2LMHeadModel"},
		VocabSize: &m.Vocab, NPositions: &longest, NEmbd: &m.Width, NLayer: &m.Layers, NHead: &m.Heads,
		Activation: &gelu, NormEps: &m.NormEps, Tied: &yes,
		ScaleAttn: &yes, ScaleByLayer: &no, CrossAttention: &no, InitializerRange: &std, TorchDtype: "float32",
	}
	if m.Vocab > 50256 {
		c.BOS, c.EOS = json.RawMessage(endOfText), json.RawMessage(endOfText)
	}
	c.BOS, c.EOS = known(m.BOS, c.BOS), known(m.EOS, c.EOS)
	return c
}
