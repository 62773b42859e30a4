package tests

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zeroth/input"
	"zeroth/job/config"
)

// A knob is a decision: whoever adds one also adds it here, on purpose.
var configFields = strings.Fields(`
	Model.From Model.Family Model.Type Model.Layers Model.Heads Model.Width Model.Context Model.Longest Model.Vocab Model.NormEps Model.BOS Model.EOS Model.Dropout.Embed Model.Dropout.Residual Model.Dropout.Attention
	Model.Inner Model.Act Model.Untied Model.ByLayer
	Model.KVHeads Model.FFN Model.Theta Model.Scaling.Kind Model.Scaling.Factor Model.Scaling.Low Model.Scaling.High Model.Scaling.Context
	Model.Scaling.Amplitude Model.Scaling.Factors Model.Scaling.Beyond Model.Turned Model.Tied Model.Bias Model.Padded Model.Pad
	Model.HeadWidth Model.BiasOut Model.BiasMLP Model.HeadNorm Model.Norms Model.Fused Model.Gemma Model.Layout Model.Window Model.LocalTheta Model.Scale Model.CapScores Model.CapLogits
	Data.Text Data.Tokens Data.Documents Data.Weights Data.Format Data.Keys.Text Data.Keys.Prompt Data.Keys.Completion Data.Keys.Messages Data.Held Data.Pack Data.DType Data.Tokenizer Data.Vocab Data.Validation
	Train.Steps Train.Epochs Train.Batch Train.MicroBatch Train.Accumulate Train.Clip Train.Seed Train.EvalEvery Train.EvalBatches Train.LossChunk Train.EarlyStop.Metric Train.EarlyStop.Patience
	Train.Freeze Train.LoRA.Rank Train.LoRA.Alpha Train.LoRA.Targets
	Device Parallel.Ranks Parallel.Shard Parallel.Replicate Parallel.Timeout Parallel.GPUs Parallel.Memory
	Parallel.Collective Parallel.Transport Parallel.TokenFile Parallel.TLS.Cert Parallel.TLS.Key Parallel.TLS.CA Parallel.Bind Parallel.Join Parallel.Heartbeat Parallel.DeadAfter
	Parallel.Here.First Parallel.Here.Ranks Parallel.Here.Before Parallel.Here.Beside Parallel.Here.NCCL Parallel.Here.Staged Parallel.Hosts
	Dropout AttentionDropout
	Zero.Stage Zero.Prefetch Zero.Recompute
	Zero.Offload.Optimizer Zero.Offload.Parameters Zero.Offload.Path Zero.Offload.Buffers Zero.Offload.Ratio
	Precision
	Optimizer.Type Optimizer.LR Optimizer.Betas Optimizer.Eps Optimizer.WeightDecay Optimizer.Momentum Optimizer.Nesterov Optimizer.Steps Optimizer.Adjust
	Optimizer.AdamW.LR Optimizer.AdamW.Betas Optimizer.AdamW.Eps Optimizer.AdamW.WeightDecay Optimizer.Groups
	Schedule.Type Schedule.Warmup Schedule.MinLR Schedule.Decay
	Checkpoint.Every Checkpoint.Dir Checkpoint.Keep.Last Checkpoint.Keep.Every Checkpoint.Keep.Best
	Checkpoint.Async Checkpoint.Compress Checkpoint.SaveOnExit Checkpoint.OnError
	Sample.Prompt Sample.Tokens Sample.Temperature Sample.TopK Sample.TopP Sample.Stop Sample.Seed
	Notes Carried.Config Carried.Notes Carried.Files OtherModel`) // the last line and Parallel.Here are no keys, but what reading a job finds out and a run notes

var configKeys = strings.Fields(`
	model.from model.family model.layers model.heads model.kv_heads model.width model.ffn model.context model.vocab model.rope_theta model.tied model.dropout model.attention_dropout
	data.text data.tokens data.documents data.format data.keys.text data.keys.prompt data.keys.completion data.keys.messages data.validation_documents data.pack data.dtype data.tokenizer data.vocab data.validation
	train.steps train.epochs train.batch train.micro_batch train.accumulate train.clip train.seed train.eval_every train.eval_batches train.loss_chunk train.early_stop.metric train.early_stop.patience
	train.freeze train.lora.rank train.lora.alpha train.lora.targets
	device parallel.ranks parallel.shard parallel.replicate parallel.timeout parallel.gpus parallel.memory
	parallel.collective parallel.transport parallel.token_file parallel.tls.cert parallel.tls.key parallel.tls.ca parallel.bind parallel.join parallel.heartbeat parallel.dead_after
	zero.stage zero.prefetch zero.recompute
	zero.offload.optimizer zero.offload.parameters zero.offload.path zero.offload.buffers zero.offload.ratio
	precision
	optimizer.type optimizer.lr optimizer.betas optimizer.eps optimizer.weight_decay optimizer.momentum optimizer.nesterov optimizer.ns_steps optimizer.adjust_lr_fn
	optimizer.adamw.lr optimizer.adamw.betas optimizer.adamw.eps optimizer.adamw.weight_decay optimizer.groups
	schedule.type schedule.warmup schedule.min_lr schedule.decay
	checkpoint.every checkpoint.dir checkpoint.keep checkpoint.async checkpoint.compress checkpoint.save_on_exit checkpoint.on_error
	sample.prompt sample.tokens sample.temperature sample.top_k sample.top_p sample.stop sample.seed`)

func TestConfigFields(t *testing.T) {
	if d := cmp.Diff(configFields, fieldsOf("", reflect.TypeFor[config.Config]())); d != "" {
		t.Errorf("fields of job.Config (-pinned +is):\n%s", d)
	}
	if d := cmp.Diff(configKeys, config.Keys()); d != "" {
		t.Errorf("keys of a job file (-pinned +is):\n%s", d)
	}
}

func fieldsOf(prefix string, t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		if f.Type.Kind() == reflect.Struct {
			out = append(out, fieldsOf(prefix+f.Name+".", f.Type)...)
		} else {
			out = append(out, prefix+f.Name)
		}
	}
	return out
}

// Every job file in testdata/broken is refused with the whole message that
// lies beside it.
func TestBrokenJobs(t *testing.T) {
	files, err := filepath.Glob("testdata/broken/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "testdata/broken/gone.yaml")
	want := []string{"batch", "empty", "gone", "heads", "missing", "nan", "ranks", "stage", "type", "typo", "unreadable"}
	var names []string
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		names = append(names, name)
		t.Run(name, func(t *testing.T) {
			message, err := os.ReadFile(strings.TrimSuffix(file, ".yaml") + ".want")
			if err != nil {
				t.Fatal(err)
			}
			_, err = config.Load(file, nil)
			if err == nil {
				t.Fatal("taken")
			}
			if d := cmp.Diff(string(message), err.Error()+"\n"); d != "" {
				t.Errorf("message (-want +got):\n%s", d)
			}
			if !input.IsInput(err) {
				t.Error("not the user's to mend: the exit code would be 1")
			}
		})
	}
	slices.Sort(names)
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("job files (-want +are):\n%s", d)
	}
}
