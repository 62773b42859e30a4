package hf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"zeroth/input"
	"zeroth/job/show"
)

// endOfText is the id of <|endoftext|> in GPT-2's own vocabulary.
const endOfText = "50256"

// tokens is tokenID of a key.
func (o *object) tokens(key string) string {
	id := tokenID(o.raw(key))
	if id == "" && !o.null(key) {
		o.refuse("%s %s is neither a token's number nor a list of them", key, shown(o.raw(key)))
	}
	return id
}

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
		panic(fmt.Sprintf("hf: JSON of %v: %v", list, err)) // numbers always encode
	}
	return b
}

// generationTokens fills in what config.json does not say of the tokens that
// begin and end a text, from generation_config.json if there is one.
func (m *Model) generationTokens(folder string) {
	raw, err := input.Read(filepath.Join(folder, "generation_config.json"), maxJSON)
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
	m, _, err := ReadConfig(folder)
	return m, err
}

// ReadConfig is ReadModelConfig with what is carried of config.json.
func ReadConfig(folder string) (m Model, c Carried, err error) {
	path := filepath.Join(folder, "config.json")
	if info, err := os.Stat(folder); err == nil && !info.IsDir() {
		path, folder = folder, filepath.Dir(folder)
	}
	if err := adapted(folder); err != nil {
		return m, c, input.BadInput(err)
	}
	c.Config, err = input.Read(path, maxJSON)
	if err != nil {
		return m, c, input.BadInput(fmt.Errorf("%s cannot be read: %w%s", path, input.Cause(err), foreign(folder)))
	}
	m, c.Notes, err = ReadModel(c.Config)
	if err != nil {
		return m, c, input.BadInput(fmt.Errorf("%s: %w", path, err))
	}
	m.generationTokens(folder)
	return m, c, nil
}

func parseModelConfig(raw []byte) (Model, error) {
	m, _, err := ReadModel(raw)
	return m, err
}

// ReadModel reads config.json. What is worth to know about a model that is not
// refused is in notes.
func ReadModel(raw []byte) (m Model, notes []string, err error) {
	o, err := readObject(raw)
	if err != nil {
		return m, nil, fmt.Errorf("not a model's config: %w", err)
	}
	return o.model()
}

func (o *object) model() (m Model, notes []string, err error) {
	family := get(o, "model_type", "")
	switch family {
	case "gpt2":
		m, notes = o.gpt2()
	case "llama", "qwen2":
		m, notes = o.llama(family)
	default:
		o.refuse("model_type \"%s\" is not supported; want gpt2, llama or qwen2", show.Brief(family))
		return m, nil, o.err()
	}
	if m.Layers > MostLayers {
		o.refuse("%d layers are more than %d", m.Layers, MostLayers)
	}
	if m.BOS, m.EOS = o.tokens("bos_token_id"), o.tokens("eos_token_id"); m.Family == "gpt2" && m.BOS == endOfText && m.EOS == endOfText {
		m.BOS, m.EOS = "", "" // what is written where nothing else is known
	}
	for _, key := range []string{"torch_dtype", "dtype"} {
		maybe(o, key, "") // of the parameters; they say it themselves
	}
	if unknown := o.leftOver(family); len(unknown) > 0 {
		notes = append(notes, "config.json has unknown keys, which change nothing here: "+several(unknown))
	}
	return m, notes, o.err()
}

// gpt2 reads Hugging Face's GPT2Config, with its defaults.
func (o *object) gpt2() (m Model, notes []string) {
	m = Model{
		Family: "gpt2",
		Layers: o.count("n_layer", "num_hidden_layers", 12), Heads: o.count("n_head", "num_attention_heads", 12),
		Width: o.count("n_embd", "hidden_size", 768), Context: o.count("n_positions", "max_position_embeddings", 1024),
		Vocab: o.count("vocab_size", "", 50257), NormEps: o.number("layer_norm_epsilon", 1e-5, normEps),
	}
	if m.Width%m.Heads != 0 {
		o.refuse("n_head %d does not divide n_embd %d", m.Heads, m.Width)
	}
	if n := maybe(o, "n_inner", 4*m.Width); n != 4*m.Width {
		o.refuse("n_inner %d is not supported; want 4 × n_embd = %d", n, 4*m.Width)
	}
	if f := get(o, "activation_function", "gelu_new"); f != "gelu_new" {
		o.refuse("activation_function \"%s\" is not supported; want gelu_new", show.Brief(f))
	}
	if !get(o, "tie_word_embeddings", true) {
		o.refuse("tie_word_embeddings false is not supported: the output layer is the token embedding")
	}
	if get(o, "reorder_and_upcast_attn", false) {
		notes = append(notes, "config.json has reorder_and_upcast_attn: attention sums in float32 here in any case")
	}
	return m, append(notes, o.dropout(0.1, "attn_pdrop", "embd_pdrop", "resid_pdrop")...)
}

func normEps(x float64) bool { return x > 0 && x < 1 }
