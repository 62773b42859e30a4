package spec

import (
	"strings"
	"testing"

	"zeroth/tests/nightly"
)

// TestSuggestions checks that words of other programs lead to our equivalents or to nothing, never
// to an unrelated name with a similar spelling.
func TestSuggestions(t *testing.T) {
	nightly.Long(t)
	for set, want := range map[string]string{
		"device=gpu": "cuda", "device=GPU": "cuda", "device=cuda:0": "cuda", "device=mps": "", "device=tpu": "", "device=cup": "cpu",
		"zero.offload.optimizer=nvme": "disk", "zero.offload.parameters=NVMe": "disk", "zero.offload.optimizer=cpu": "host", "zero.offload.optimizer=nnoe": "none",
		"precision=f16": "fp16", "precision=bfloat16": "bf16", "precision=half": "fp16", "precision=fp8": "", "precision=fp64": "", "precision=tf32": "", "precision=FP32": "fp32",
		"optimizer.type=adamw_torch": "adamw", "optimizer.type=paged_adamw_8bit": "adamw8bit", "optimizer.type=AdamW": "adamw", "optimizer.type=adamax": "", "optimizer.type=nadam": "",
		"schedule.type=warmup_stable_decay": "wsd", "schedule.type=inverse-sqrt": "inverse_sqrt", "schedule.type=cosin": "cosine",
		"parallel.transport=http": "", "parallel.transport=ucx": "", "checkpoint.on_error=skip": "", "data.tokenizer=gpt4": "", "model.family=opt": "", "data.dtype=uint8": "",

		"seed=1": "train.seed or sample.seed", "tokens=1": "data.tokens or sample.tokens", "vocab=1": "model.vocab or data.vocab", "dtype=bf16": "precision", "path=x": "",
		"lr=1": "optimizer.lr", "steps=1": "train.steps", "optimizer.seed=1": "train.seed or sample.seed",
		"model.num_heads=1": "heads", "model.n_kv_heads=1": "kv_heads", "model.n_layer=1": "layers", "train.max_steps=1": "steps", "train.micro_batch_size=1": "micro_batch",
		"train.loss=1": "", "train.log=1": "", "train.port=1": "", "train.eval_iters=1": "", "checkpoint.addr=1": "", "data.quantization=1": "", "data.workers=1": "",
		"optimizer.eval_steps=1": "", "optimizer.fp8=1": "", "parallel.train_file=1": "", "compile=1": "", "train.stesp=1": "steps", "model.widht=1": "width",
	} {
		_, err := Draft("", []string{set})
		if err == nil {
			t.Errorf("%s is no error", set)
			continue
		}
		_, got, _ := strings.Cut(err.Error(), "did you mean ")
		if got, _, _ = strings.Cut(got, "?"); got != want {
			t.Errorf("%s: %q, want %q: %v", set, got, want, err)
		}
	}
}
