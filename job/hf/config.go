package hf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"zeroth/internal/input"
	"zeroth/internal/show"
)

// endOfText is the id of <|endoftext|> in GPT-2's own vocabulary.
const endOfText = "50256"

// tokens returns the tokenID of a key.
func (o *object) tokens(key string) string {
	id := tokenID(o.raw(key))
	if id == "" && !o.null(key) {
		o.refuse("%s %s is neither a token's number nor a list of them", key, shown(o.raw(key)))
	}
	return id
}

// tokenID returns a bos_token_id or eos_token_id as JSON without spaces, if it is a number or a
// list of numbers, otherwise "".
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

// generationTokens reads the tokens that begin and end a text from generation_config.json, if it
// exists and config.json does not give them.
func (m *Model) generationTokens(folder string) {
	raw, err := input.Read(filepath.Join(folder, "generation_config.json"), maxJSON)
	var c struct {
		BOS json.RawMessage `json:"bos_token_id"`
		EOS json.RawMessage `json:"eos_token_id"`
	}
	if err != nil || json.Unmarshal(raw, &c) != nil {
		return // the file does not affect training
	}
	m.BOS, m.EOS = cmp.Or(m.BOS, tokenID(c.BOS)), cmp.Or(m.EOS, tokenID(c.EOS))
	if m.Family == "gpt2" && m.BOS == endOfText && m.EOS == endOfText {
		m.BOS, m.EOS = "", ""
	}
}

// ReadModelConfig reads the config.json in a Hugging Face folder, or a file in that format. From is
// empty in the result. It refuses anything that this runtime would compute differently.
func ReadModelConfig(folder string) (Model, error) {
	m, _, err := ReadConfig(folder)
	return m, err
}

// ReadConfig is ReadModelConfig, also returning config.json to be carried.
func ReadConfig(folder string) (m Model, c Carried, err error) {
	path := filepath.Join(folder, "config.json")
	if info, err := os.Stat(folder); err == nil && !info.IsDir() {
		path, folder = folder, filepath.Dir(folder)
		if info.Mode().IsRegular() && filepath.Ext(path) != ".json" {
			return m, c, input.BadInput(fmt.Errorf("%s is a file; want the folder with a model's config.json and model.safetensors, such as %s", path, folder))
		}
	}
	if err := refuseAdapter(folder); err != nil {
		return m, c, input.BadInput(err)
	}
	c.Config, err = input.Read(path, maxJSON)
	if err != nil {
		return m, c, input.BadInput(fmt.Errorf("%s cannot be read: %w%s", path, input.Cause(err), describeForeign(folder)))
	}
	config, wrapped, err := languageModel(c.Config)
	if err == nil {
		c.Config = config
		m, c.Notes, err = ReadModel(config)
	}
	if err != nil {
		return m, c, input.BadInput(fmt.Errorf("%s: %w", path, err))
	}
	if wrapped {
		c.Notes = append(c.Notes, wrapperNote)
	}
	m.generationTokens(folder)
	return m, c, nil
}

// ReadModel parses a config.json. notes contains remarks about an accepted model.
func ReadModel(raw []byte) (m Model, notes []string, err error) {
	o, err := readObject(raw)
	if err != nil {
		return m, nil, fmt.Errorf("not a model's config: %w", err)
	}
	return o.model()
}

func (o *object) model() (m Model, notes []string, err error) {
	kind := get(o, "model_type", "")
	f, ok := familyOf(kind)
	if what := needs[kind]; what != "" {
		o.refuse("model_type \"%s\" is not supported: it needs %s", kind, what)
		return m, nil, o.err()
	}
	if !ok {
		o.refuse("model_type \"%s\" is not supported; want %s", show.Brief(kind), either(Families()))
		return m, nil, o.err()
	}
	if f.base.layers > 0 {
		m = f.base.read(o)
	}
	f.read(o, &m)
	if f.write == nil {
		m.Type = kind // not derivable from the other fields
	}
	if m.Layers > MostLayers {
		o.refuse("%d layers exceed the limit of %d", m.Layers, MostLayers)
	}
	if m.BOS, m.EOS = o.tokens("bos_token_id"), o.tokens("eos_token_id"); m.Family == "gpt2" && m.BOS == endOfText && m.EOS == endOfText {
		m.BOS, m.EOS = "", "" // the default written by ConfigJSON
	}
	for _, key := range []string{"torch_dtype", "dtype"} {
		maybe(o, key, "") // of the parameters; their files give it, too
	}
	if unknown := o.unknownKeys(f); len(unknown) > 0 {
		o.note("config.json has unknown keys, which are ignored: %s", several(unknown))
	}
	return m, o.notes, o.err()
}

func normEps(x float64) bool { return x > 0 && x < 1 }
