package job

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"zeroth/job/hf"
	"zeroth/job/jobtest"
	"zeroth/job/spec/spectest"
	"zeroth/job/state"
	"zeroth/tests/nightly"
)

// TestForgedState checks that nothing in a state.json whose digests do not fit is trusted: each
// number has limits, and all records of the step and the tensors must agree.
func TestForgedState(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	trainedRun(t)
	ck, _ := opened(t, "run/ckpt/step-00000007")
	defer ck.Close()
	good := string(ck.State)
	set := func(key string, v any) string {
		var s map[string]any
		if err := json.Unmarshal([]byte(good), &s); err != nil {
			t.Fatal(err)
		}
		in, name := s, key
		if k, ok := strings.CutPrefix(key, "loss_scale."); ok {
			in, name = s["loss_scale"].(map[string]any), k
			in["Dynamic"] = true
		}
		if in[name] = v; v == nil {
			delete(in, name)
		}
		return string(hf.MustJSON(s))
	}
	raw := func(v string) any { return json.RawMessage(v) }
	dynamic := set("loss_scale", raw(`{"Dynamic": true, "Scale": 65536, "Min": 1, "Window": 1000, "Hysteresis": 2, "Left": 2, "Clean": 5}`))
	for state, want := range map[string]string{
		"null": "is not a JSON object", "[]": "is not a JSON object", "7": "is not a JSON object", `"x"`: "is not a JSON object", "{": "is not a JSON object", "\x1b[31m": "is not a JSON object", " ": "is not a JSON object",
		"{}":                        "it has step 0, but the manifest has step 7",
		`{"step": 7, "updates": 7}`: "0 samples and 0 tokens in 7 steps",
		set("step", 8):              "7 updates and 0 skipped steps are not 8 steps",
		set("step", -7):             "step is -7; want 0 to 1099511627776",
		set("step", 7.5):            "cannot unmarshal number 7.5",
		set("step", "7"):            "cannot unmarshal string",
		set("step", raw("1e300")):   "cannot unmarshal number 1e300",
		set("updates", -1):          "updates is -1; want 0 to 7",
		set("updates", 8):           "updates is 8; want 0 to 7",
		set("skipped", 1):           "7 updates and 1 skipped steps are not 7 steps",
		set("samples", -28):         "samples is -28; want 0 to 1152921504606846976",
		set("samples", raw("9223372036854775807")): "samples is 9223372036854775807",
		set("samples", 3):                          "3 samples and 224 tokens in 7 steps",
		set("tokens", -1):                          "tokens is -1",
		set("tokens", 1):                           "28 samples and 1 tokens in 7 steps",
		set("context", -8):                         "context is -8",
		set("context", 0):                          "samples without tokens",
		set("context", 1<<30):                      "context is 1073741824",
		set("seed", -1):                            "cannot unmarshal number -1",
		set("data", ""):                            "224 tokens, but no data",
		set("model", 5):                            `model is "5"; want an object`,
		set("model", raw("null")):                  `model is "null"; want an object`,
		set("model", raw(`[{}]`)):                  "want an object",
		set("model", raw(`{}`)):                    "the model in state.json does not match the parameters: ",
		set("model", raw(`{"model_type": "gpt2", "n_layer": 1000000, "n_head": 1, "n_embd": 8}`)):                                 "the model in state.json does not match the parameters: ",
		set("model", raw(`{"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 16, "n_positions": 8, "vocab_size": 256}`)): "the model in state.json does not match the parameters: it has a parameter transformer.wte.weight of shape [256 16], but the checkpoint has shape [256 8]",
		set("loss_scale", nil):                                        "a loss scale of ",
		set("loss_scale.Scale", 0):                                    "a loss scale of ",
		set("loss_scale.Window", 0):                                   "a loss scale of ",
		strings.Replace(dynamic, `"Left": 2`, `"Left": 3`, 1):         "a loss scale of ",
		strings.Replace(dynamic, `"Clean": 5`, `"Clean": 1000`, 1):    "a loss scale of ",
		strings.Replace(dynamic, `"Min": 1`, `"Min": -1`, 1):          "a loss scale of ",
		strings.Replace(dynamic, `"Scale": 65536`, `"Scale": 0.5`, 1): "a loss scale of ",
		`{"step": 0, "data": ""}`:                                     "it has step 0, but the manifest has step 7",
		strings.Repeat(" ", state.MaxState) + good:                    "bytes, at most 4194304 expected",
	} {
		withState(t, ck, "forged", state)
		h := &heard{}
		err := Run(t.Context(), spectest.MustLoad(t, "train.steps=9"), Options{Out: t.TempDir(), Resume: "forged/step-00000007", Observer: h})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "state.json") || len(h.steps) > 0 {
			t.Errorf("%.200s\ngot  %v\nwant %s", state, err, want)
		}
		if strings.ContainsRune(fmt.Sprint(err), '\x1b') {
			t.Errorf("%v has an escape", err)
		}
	}
	withState(t, ck, "fine", dynamic)
	if err := Run(t.Context(), spectest.MustLoad(t, "train.steps=9", "precision=fp16"), Options{Out: t.TempDir(), Resume: "fine/step-00000007", Observer: &heard{}}); err != nil {
		t.Error(err)
	}
	withState(t, ck, "empty", "")
	if err := Run(t.Context(), spectest.MustLoad(t, "train.steps=9"), Options{Out: t.TempDir(), Resume: "empty/step-00000007", Observer: &heard{}}); err == nil || !strings.Contains(err.Error(), "state.json: it is empty, so the position in the data is unknown") {
		t.Errorf("without a state: %v", err)
	}
}
