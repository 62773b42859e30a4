package hf

import (
	"reflect"
	"strings"
	"testing"
	"unicode"

	"zeroth/checkpoint"
)

// Any config.json is accepted or refused with a short printable message, and an accepted model is
// unchanged by export and import.
func FuzzModelConfig(f *testing.F) {
	for _, raw := range []string{gpt2JSON, llama31JSON, qwen2JSON, newJSON, `{"model_type": "gpt2", "num_attention_heads": 3, "n_head": 3}`,
		`{"model_type": "llama", "pad_token_id": -1, "architectures": ["LlamaModel"], "auto_map": {"AutoTokenizer": "a"}, "dtype": null}`} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, notes, err := ReadModel(raw)
		message := strings.Join(notes, " ")
		if err != nil {
			message += err.Error()
		}
		if len(message) > 1<<14 || strings.ContainsFunc(message, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%d bytes of %q", len(message), message)
		}
		if err != nil {
			return
		}
		if m.Width%m.Heads != 0 || m.Family == "llama" && (m.Heads%m.KV != 0 || m.Padded && (m.Pad < 0 || m.Pad >= m.Vocab)) {
			t.Errorf("read %+v", m)
		}
		if again, _, err := ReadModel(ExportedConfig(raw, checkpoint.BF16)); err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("%s is %+v, exported and read again %+v (%v)", raw, m, again, err)
		}
	})
}
