//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/job/hf"
	"zeroth/job/jobtest"
	"zeroth/job/spec/spectest"
	"zeroth/nn"
	"zeroth/tests/nightly"
)

// TestTunedModelStops checks that a model tuned for chat ends its texts in other programs, too, however
// it is written: its tokenizer's tokens, and the end of an answer, are in config.json and in
// generation_config.json. A resumed run has the bits of one that is not interrupted.
func TestTunedModelStops(t *testing.T) {
	nightly.Long(t)
	base := spectest.ModelFolder(t, hf.Model{Family: "llama", Shape: nn.Shape{Layers: 1, Heads: 2, Width: 8, Context: 64, Vocab: 424, Eps: 1e-5}, Llama: nn.Llama{KV: 2, FFN: 16, Theta: 1e4}, EOS: "2"})
	jobtest.WriteTokenizer(t, base, "qwen", `{"eos_token": "<|endoftext|>", "pad_token": "<tool_call>"}`)
	jobtest.Write(t, filepath.Join(base, "chat_template.jinja"), "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
	jobtest.Write(t, filepath.Join(base, "generation_config.json"), `{"eos_token_id": 2, "temperature": 0.5}`)
	inFolder(t)
	write(t, "c.jsonl", strings.Repeat(`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`+"\n", 8))
	job := "model: {from: %s}\ndata: {documents: [c.jsonl], format: chat, validation: 0}\ntrain: {steps: 4, batch: 2, micro_batch: 2%s}\nparallel: {ranks: 1}\ncheckpoint: {every: 2}\n"
	write(t, "full.yaml", fmt.Sprintf(job, base, ""))
	write(t, "lora.yaml", fmt.Sprintf(job, base, ", lora: {rank: 2}"))
	ends := func(folder string) {
		t.Helper()
		for name, want := range map[string]string{"config.json": "421 <nil> 420", "generation_config.json": "[421 2 423] <nil> 420"} {
			raw, err := os.ReadFile(filepath.Join(folder, name))
			if err != nil {
				t.Fatal(err)
			}
			var c map[string]any
			if err := json.Unmarshal(raw, &c); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(c["eos_token_id"], " ", c["bos_token_id"], " ", c["pad_token_id"]); got != want {
				t.Errorf("%s: %s: %s, want %s", folder, name, got, want)
			}
		}
	}
	for _, kind := range []string{"full", "lora"} {
		out, errs := zeroth(t, 0, "train", kind+".yaml", "--out", kind)
		contains(t, out+errs, "eos_token_id 421 (was 2), pad_token_id 420 (was none), 423, which ends an answer in the chat template, also ends a text")
		ends(kind + "/model")
		_, errs = zeroth(t, 0, "ckpt", "export", kind, "--to", kind+"-hf")
		contains(t, errs, "eos_token_id 421")
		ends(kind + "-hf")
		sameFiles(t, kind+"-hf", kind+"/model", append(modelFiles, "generation_config.json")...)
	}
	zeroth(t, 0, "ckpt", "export", "full", "--to", "torch", "--format", "torch")
	ends("torch")
	_, errs := zeroth(t, 0, "ckpt", "export", "torch", "--model", base, "--to", "foreign")
	contains(t, errs, "eos_token_id 421 (was 2)")
	zeroth(t, 0, "train", "full.yaml", "--out", "again", "--resume", "full/ckpt/step-00000002")
	sameFiles(t, "again/model", "full/model", append(modelFiles, "generation_config.json")...)
}
