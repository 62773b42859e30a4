package hf

import (
	"bytes"
	"encoding/json"
	"fmt"

	"zeroth/checkpoint"
	"zeroth/internal/input"
)

// writeFile writes a file atomically.
func writeFile(path string, content []byte) error {
	if err := input.WriteBytes(path, content); err != nil {
		return fmt.Errorf("write %s: %w", path, input.Cause(err))
	}
	return nil
}

// ConfigJSON returns the config.json of a model that comes from no folder, with float32 parameters.
func (m Model) ConfigJSON() []byte {
	all := map[string]any{
		"tie_word_embeddings": m.Tied, "vocab_size": m.Vocab, "initializer_range": 0.02, "torch_dtype": "float32",
		"bos_token_id": nil, "eos_token_id": nil,
	}
	f := m.family()
	all["model_type"], all["architectures"] = f.kind, []string{f.class[0]}
	f.write(m, all)
	for key, id := range map[string]string{"bos_token_id": m.BOS, "eos_token_id": m.EOS} {
		if id != "" {
			all[key] = json.RawMessage(id)
		}
	}
	return append(MustJSON(all), '\n')
}

// torchNames maps element types to PyTorch's names.
var torchNames = map[checkpoint.DType]string{checkpoint.F32: "float32", checkpoint.BF16: "bfloat16", checkpoint.F16: "float16"}

// ExportedConfig returns a model's config.json for exporting its parameters with their full
// names and an element type. All keys are unchanged, except the element type, torch_dtype or
// the newer dtype, and the class, which has an output layer.
func ExportedConfig(config []byte, t checkpoint.DType) []byte {
	var all map[string]json.RawMessage
	var kind string
	err := json.Unmarshal(config, &all)
	if err == nil {
		err = json.Unmarshal(all["model_type"], &kind)
	}
	if err != nil {
		panic(fmt.Sprintf("hf: config.json: %v", err)) // it was parsed before
	}
	if have := all["architectures"]; len(have) > 0 && string(have) != "null" {
		f, _ := familyOf(kind)
		all["architectures"] = MustJSON([]string{f.class[0]})
	}
	name := MustJSON(torchNames[t])
	for _, key := range []string{"torch_dtype", "dtype"} {
		if all[key] != nil {
			all[key] = name
		}
	}
	if all["torch_dtype"] == nil && all["dtype"] == nil {
		all["torch_dtype"] = name
	}
	return append(MustJSON(all), '\n')
}

// MustJSON returns one of our values as indented JSON, without a newline at the end.
func MustJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("hf: JSON of %T: %v", v, err)) // ours always encode
	}
	return bytes.TrimSpace(b.Bytes())
}
