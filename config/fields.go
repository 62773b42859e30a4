package config

import (
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"zeroth/device"
	"zeroth/input/s3"
	"zeroth/job/hf"
	"zeroth/pipe"
)

// field describes one key of the job file: where its value is stored, its default and its meaning.
// Reading, checking, writing and the reference are all made from this list.
type field struct {
	key     string // "train.steps"; a top-level key has no dot
	value   value
	initial string // the default, in YAML; empty if rule describes it
	rule    string // how the default is derived from other keys
	doc     string
	also
}

// also holds the optional properties of a field.
type also struct {
	when    string   // the jobs that use the key, if only does not describe them; empty: all
	only    []only   // conditions for using the key
	not     refusal  // conflicts with other keys
	types   []string // update rules that use it; nil: independent of the rule
	then    func()   // sets the default derived from keys above
	like    string   // a sample value, in YAML, if initial is empty
	shape   bool     // describes what the model computes; also stored in checkpoints and read from model.from
	lasts   bool     // inherited by a resumed run unless the job sets it
	follows []string // keys that the default depends on: if the job changes one of them, the default replaces the inherited value
	own     bool     // may differ between the processes of a job
	derived bool     // follows from other keys that are written
	remark  string   // comment written after the value
	flag    string   // equivalent flag of 'zeroth plan'
}

// only is a condition that a job must meet to use a key.
type only struct {
	when         string
	met          bool
	because, why string // the key that violates the condition, and how
}

// refusal is a combination of keys that cannot work.
type refusal struct {
	is           bool
	wrong, right string
	with         []string // the other keys
}

// Program is the value of keys whose meaning the program that runs the job provides, see Own.
const Program = "program"

// mostMuonSteps is the limit of torch.optim.Muon.
const mostMuonSteps = 99

// mostLoRA bounds the rank of adapters.
const mostLoRA = 1 << 14

// The names that a job can use for families, rules and other choices.
var (
	families    = []string{"gpt2", "llama", Program}
	tokenizers  = []string{"bytes", "gpt2", "folder", "none"}
	formats     = []string{"text", "prompt", "chat"}
	learns      = []string{"assistant", "last", "all"}
	idTypes     = []string{"uint16", "uint32", "int32", "int64"}
	rules       = []string{"adamw", "adamw8bit", "adam", "sgd", "lion", "muon", Program}
	Adjusts     = []string{"original", "match_rms_adamw", "spectral_unclamped"} // as optim.Adjust has them
	curves      = []string{"constant", "linear", "cosine", "wsd", "inverse_sqrt"}
	Recomputes  = []string{"none", "block"}
	Transports  = []string{"auto", "local", "unix", "tcp", "mpi"}
	Collectives = []string{"auto", "exact", "nccl"}
	precisions  = []device.DType{device.F32, device.BF16, device.F16}
	devices     = []string{"auto", "cpu", "cuda"}
)

// fields returns the keys in writing order, with values that set c. Ranks compute on the device on;
// "" if it is not known.
func (c *Config) fields(on string) []field {
	m, d, t, p, z := &c.Model, &c.Data, &c.Train, &c.Parallel, &c.Zero
	l := &c.Pipeline
	staged := []only{{"with parallel.pipeline above 1", p.Pipeline > 1, "parallel.pipeline", "parallel.pipeline is 1: there are no stages"}}
	o, s, k, w := &c.Optimizer, &c.Schedule, &c.Checkpoint, &c.Sample
	documents := []only{{"with data.documents", len(d.Documents) > 0, "data.documents", "there are no data.documents"}}
	record := func(key, format string) []only {
		return append(documents, only{"with data.format " + format, d.Format == format, "data.format", "records of the format " + d.Format + " have no " + key})
	}
	llama := func(key string) []only {
		return []only{{"with model.family llama, without model.from", m.Family == "llama", "model.family", m.Family + " has no " + key}}
	}
	modules := []only{{"", m.Family != Program, "model.family", "the program's network has its own"}}
	stops := []only{{"with train.early_stop.patience", t.EarlyStop.Patience > 0, "train.early_stop.patience", "train.early_stop.patience is 0: the run never ends early"}}
	adapters := []only{{"with train.lora.rank or from", t.LoRA.Rank > 0 || t.LoRA.From != "", "train.lora.rank", "train.lora.rank is 0: there are no adapters"}}
	falls := []only{
		{"", s.Type != "constant", "schedule.type", "a constant schedule does not fall"},
		{"with schedule.type linear, cosine and wsd", s.Type != "inverse_sqrt", "schedule.type", "an inverse_sqrt schedule falls by its formula"},
	}
	return []field{
		{"model.from", path{text{&m.From}, models}, "", "fresh parameters", "folder with config.json and model.safetensors to start from, hf://org/name[@revision] on the Hugging Face Hub, or s3://bucket/folder; instead of the other model keys except context", also{when: "instead of the other model keys except context", like: "models/gpt2"}},
		{"model.adapters", patterns{texts{&c.Merged}, nil}, "", "none", "list of folders with LoRA adapters (PEFT's format) to merge into the parameters of model.from, in this order",
			also{only: []only{{"with model.from", m.From != "", "model.from", "fresh parameters have no adapters"}}, like: `["runs/a/adapter"]`}},
		{"model.family", choice{&m.Family, families}, "gpt2", "", "gpt2 | llama | program: architecture; program: the network of the Go program that runs the job (job.Options.Model), without the other model keys except context", also{shape: true}},
		{"model.layers", count{&m.Layers, 1, hf.MostLayers}, "6", "", "number of transformer blocks", also{shape: true}},
		{"model.heads", count{&m.Heads, 1, hf.Most}, "6", "", "attention heads per block; divides width", also{shape: true}},
		{"model.kv_heads", count{&m.KV, 1, hf.Most}, "", "heads", "llama: heads of keys and values; divides heads",
			also{like: "2", shape: true, only: llama("kv_heads"), then: func() { m.KV = pick(m.Family == "llama", m.Heads, 0) }}},
		{"model.width", count{&m.Width, 1, hf.Most}, "384", "", "elements of an embedding and of a block's input (hidden size)", also{shape: true}},
		{"model.ffn", count{&m.FFN, 1, 4 * hf.Most}, "", "8/3 of width, rounded up to a multiple of 64", "llama: width of the feed-forward layer (intermediate size)",
			also{like: "1024", shape: true, only: llama("ffn"), then: func() { m.FFN = pick(m.Family == "llama", (8*m.Width/3+63)/64*64, 0) }}},
		{"model.context", count{&m.Context, 1, hf.Most}, "256", "", "tokens per sequence; with model.from: the model's maximum or, for data.documents, the longest document, rounded up to a multiple of 64", also{flag: "seq"}},
		{"model.vocab", count{&m.Vocab, 2, hf.Most}, "", "the tokenizer's: 256 or 50257", "size of the vocabulary", also{like: "50257", shape: true}},
		{"model.rope_theta", real{&m.Theta, hf.Positive, "a positive number"}, "", "10000", "llama: base of the rotary positions' wavelengths",
			also{like: "500000", shape: true, only: llama("rope_theta"), then: func() { m.Theta = pick(m.Family == "llama", 10000.0, 0) }}},
		{"model.tied", flag{&m.Tied}, "", "false", "llama: the output layer is the token embedding", also{like: "true", shape: true, only: llama("tied")}},
		{"model.dropout", perhaps{&c.Dropout, device.Droppable, "0, or a number from 1/65536 to below 1"}, "", "0; with model.from, that of its config.json", "dropout probability of the embedding and of the outputs of attention and MLP", also{like: "0.1", lasts: true, only: modules}},
		{"model.weights", choice{&c.Weights, device.Codes[:]}, "full", "", "full | nf4 | int8: frozen matrices of blocks are stored in precision, or in 4 or 8 bits and decoded for use (QLoRA)", also{lasts: true}},
		{"model.attention_dropout", real{&c.AttentionDropout, device.Droppable, "0, or a number from 1/65536 to below 1"}, "0", "", "dropout probability of attention weights", also{lasts: true, only: modules}},

		{"data.text", patterns{texts{&d.Text}, objects}, "", "none", "list of text files or patterns, also s3://bucket/pattern; ** matches any number of folders, and variables such as ${GOROOT} are expanded", also{when: "instead of data.tokens", like: `["docs/**/*.md"]`}},
		{"data.tokens", patterns{texts{&d.Tokens}, objects}, "", "none", "list of token files, also s3://bucket/pattern, in the format of llm.c or nanoGPT, or only ids; instead of text",
			also{when: "instead of data.text", like: `["train.bin"]`, not: refusal{len(d.Documents) == 0 && len(d.Text) > 0 && len(d.Tokens) > 0, "text and tokens are both given", "want one of the two", []string{"data.text"}}}},
		{"data.documents", sources{patterns{texts{&d.Documents}, objects}, &d.Weights}, "", "none", "list of files with records, also s3://bucket/pattern: JSON Lines, plain or compressed with gzip or zstd, or Parquet; instead of text. Weights, as in {path: a.jsonl, weight: 0.7}, set each item's share of the samples",
			also{when: "instead of data.text", like: `["chats-*.jsonl"]`, not: refusal{len(d.Documents) > 0 && len(d.Text)+len(d.Tokens) > 0, "documents and text or tokens are given", "want one of the three", []string{"data.text", "data.tokens"}}}},
		{"data.program", flag{&d.Program}, "false", "", "the Go program that runs the job provides the data (job.Options.Data); instead of text, tokens and documents",
			also{when: "instead of data.text", not: refusal{d.Program && len(d.Text)+len(d.Tokens)+len(d.Documents) > 0, "the program provides the data, and files are given", "want one of the two", []string{"data.text", "data.tokens", "data.documents"}}}},
		{"data.format", choice{&d.Format, formats}, "text", "", "text | prompt | chat: what a record of documents contains, and which of its tokens are learned", also{only: documents, lasts: true}},
		{"data.keys.text", text{&d.Keys.Text}, "text", "", "key of a record's text", also{only: record("text", "text")}},
		{"data.keys.prompt", text{&d.Keys.Prompt}, "prompt", "", "key of a record's prompt", also{only: record("prompt", "prompt")}},
		{"data.keys.completion", text{&d.Keys.Completion}, "completion", "", "key of a record's completion", also{only: record("completion", "prompt")}},
		{"data.keys.messages", text{&d.Keys.Messages}, "messages", "", "key of a record's list of messages, each with role and content", also{only: record("messages", "chat")}},
		{"data.learn", choice{&d.Learn, learns}, "assistant", "", "assistant | last | all: learn all answers of a chat, the last one, or every token", also{only: record("answers", "chat"), lasts: true}},
		{"data.date", day{&d.Date}, "", "the day the run begins", "date that chat templates get from strftime_now", also{only: record("date", "chat"), lasts: true, like: `"2026-01-31"`, then: func() { d.Date = pick(d.Format == "chat", time.Now().Format(time.DateOnly), "") }}},
		{"data.validation_documents", patterns{texts{&d.Held}, objects}, "", "a fraction of documents", "list of files with the documents to validate on", also{only: documents, like: `["dev.jsonl"]`}},
		{"data.pack", flag{&d.Pack}, "false", "", "put several whole documents into one sequence; they do not attend to each other", also{only: documents, lasts: true}},
		{"data.too_long", choice{&d.TooLong, []string{"cut", "skip"}}, "cut", "", "cut | skip: cut or skip documents longer than model.context", also{only: documents, lasts: true}},
		{"data.dtype", choice{&d.DType, idTypes}, "", "llm.c's header, or uint16", "uint16 | uint32 | int32 | int64: type of the ids in token files without a header",
			also{only: []only{{"with data.tokens", len(d.Tokens) > 0, "data.text", "text has no ids yet"}}, like: "uint16"}},
		{"data.tokenizer", choice{&d.Tokenizer, tokenizers}, "", "bytes for text, gpt2 for tokens", "bytes | gpt2 | folder (data.vocab) | none; for token files, the tokenizer that made them, or none; with model.from, by default its own", also{like: "gpt2", lasts: true, only: []only{{"", !d.Program, "data.program", "the program provides the data"}}}},
		{"data.vocab", path{text{&d.Vocab}, models}, "", "built in", "folder with a tokenizer: tokenizer.json, or vocab.json and merges.txt; or hf://org/name[@revision], or s3://bucket/folder",
			also{only: []only{{"with data.tokenizer gpt2 and folder", d.Tokenizer == "gpt2" || d.Tokenizer == "folder", "data.tokenizer", "tokenizer " + d.Tokenizer + " has no vocabulary of its own"}}, like: "models/gpt2", lasts: true}},
		{"data.validation", real{&d.Validation, atMostHalf, "a fraction from 0 to 0.5"}, "0.01", "", "fraction of the data held out for evaluation",
			also{only: []only{{"", len(d.Held) == 0, "data.validation_documents", "data.validation_documents already lists the data to validate on"}, {"", !d.Program, "data.program", "the program provides the data for validation (job.Options.Validation)"}}, lasts: true}},

		{"train.steps", count{&t.Steps, 1, MostSteps}, "200", "", "updates of the parameters", also{when: "instead of train.epochs", lasts: true, follows: []string{"train.epochs"}, derived: t.Epochs > 0}},
		{"train.epochs", some{real{&t.Epochs, hf.Positive, "a positive number"}}, "", "none", "passes over the data, such as 2 or 0.5, instead of steps; the last step is filled up",
			also{when: "instead of train.steps", like: "2", lasts: true, follows: []string{"train.steps"}, remark: pick(t.Steps > 0, fmt.Sprintf("steps: %d", t.Steps), "")}},
		{"train.batch", count{&t.Batch, 1, MostBatch}, "", "micro_batch × accumulate × shard × replicate", "sequences per step over all ranks; any two of batch, micro_batch and accumulate determine the third", also{like: "32", lasts: true, derived: true}},
		{"train.micro_batch", count{&t.MicroBatch, 1, MostBatch}, "", "4, or as batch requires", "sequences that a rank processes at a time", also{like: "4", then: func() { t.MicroBatch = 4 }, flag: "micro-batch"}},
		{"train.accumulate", count{&t.Accumulate, 1, MostBatch}, "", "1, or as batch requires", "micro-batches of a rank per update",
			also{like: "2", then: func() { t.Accumulate = 1 }, remark: fmt.Sprintf("batch: %d = micro_batch × accumulate × %s", t.Batch, p.DataName()), flag: "accumulate"}},
		{"train.clip", real{&t.Clip, atLeast0, "a number of at least 0, where 0 is off"}, "1.0", "", "maximum global norm of the gradient; 0: off", also{lasts: true}},
		{"train.delayed_update", flag{&t.Delayed}, "false", "", "steps use the parameters from before the last update instead of waiting for it; docs/training.md describes the cost",
			also{lasts: true, not: refusal{t.Delayed && (c.Precision == device.F16 || o.Type == "muon" || z.Offload.Optimizer == "disk" || z.Offload.Parameters != "none" || z.Offload.Any() && on == "cuda"), "updates are delayed, " + undelayed(c), "want delayed_update: false, or another of the two", []string{"precision", "optimizer.type", "zero.offload.optimizer", "zero.offload.parameters"}}}},
		{"train.seed", seed{&t.Seed}, "1", "", "seed of the initial parameters and the order of the data", also{lasts: true}},
		{"train.eval_every", count{&t.EvalEvery, 0, MostSteps}, "", "50; 0 without validation", "steps between evaluations; 0: never",
			also{like: "100"}},
		{"train.eval_batches", count{&t.EvalBatches, 1, hf.Most}, "8", "", "batches per evaluation, each with train.batch sequences; the same ones on any number of ranks, each once", also{}},
		{"train.loss_chunk", count{&t.LossChunk, 1, MostBatch}, "", "1024; on GPUs 4 × the model's width, from 1024 to 4096", "tokens whose logits are in memory at a time", also{like: "1024", flag: "loss-chunk"}},
		{"train.early_stop.metric", measure{&t.EarlyStop.Metric}, "val_loss", "", "metric of evaluations that must improve: val_loss, or one of a program's network (Model.Metrics)",
			also{only: stops, lasts: true}},
		{"train.early_stop.mode", choice{&t.EarlyStop.Mode, []string{"min", "max"}}, "min", "", "min | max: whether a lower or a higher metric is better",
			also{only: stops, lasts: true, follows: []string{"train.early_stop.metric"}, not: refusal{t.EarlyStop.Metric == "val_loss" && t.EarlyStop.Mode == "max", "a higher validation loss is not better", "want mode: min, or another metric", []string{"train.early_stop.metric"}}}},
		{"train.early_stop.patience", count{&t.EarlyStop.Patience, 0, MostSteps}, "0", "", "stop after this many evaluations in a row without improvement; 0: never",
			also{like: "3", lasts: true, not: refusal{t.EarlyStop.Patience > 0 && t.EvalEvery == 0, "early stopping needs evaluations, but the job has none", "want train.eval_every of at least 1 and data.validation above 0", []string{"train.eval_every"}}}},
		{"train.freeze", texts{&t.Freeze}, "", "none", "patterns of names, such as model.embed_tokens.*, of parameters that are used but not trained", also{like: `["model.embed_tokens.*"]`, lasts: true}},
		{"train.lora.from", path{text{&t.LoRA.From}, nil}, "", "fresh adapters", "folder of a LoRA adapter (PEFT's format) to continue training; it sets the other keys of lora", also{like: "runs/a/adapter"}},
		{"train.lora.rank", count{&t.LoRA.Rank, 0, mostLoRA}, "0", "", "rank of the LoRA adapters; only these and modules_to_save are trained; 0: no adapters", also{lasts: true}},
		{"train.lora.alpha", real{&t.LoRA.Alpha, hf.Positive, "a positive number"}, "", "rank", "adapters are multiplied by alpha / rank",
			also{only: adapters, like: "32", lasts: true, then: func() { t.LoRA.Alpha = float64(t.LoRA.Rank) }}},
		{"train.lora.rslora", flag{&t.LoRA.RSLoRA}, "false", "", "adapters are multiplied by alpha / √rank instead (rsLoRA)", also{only: adapters, lasts: true}},
		{"train.lora.targets", texts{&t.LoRA.Targets}, "", "PEFT's: q_proj and v_proj, or c_attn, or qkv_proj", "linear layers with adapters, by the ends of their names, or [all-linear]",
			also{only: adapters, like: `["q_proj", "v_proj"]`, lasts: true}},
		{"train.lora.dropout", real{&t.LoRA.Dropout, device.Droppable, "0, or a number from 1/65536 to below 1"}, "0", "", "dropout probability of the inputs of adapters", also{only: adapters, lasts: true}},
		{"train.lora.rank_pattern", perLayer{&t.LoRA.Ranks, func(x float64) bool { return x == math.Trunc(x) && x >= 1 && x <= mostLoRA }, fmt.Sprintf("a whole number from 1 to %d", mostLoRA)}, "", "none", "ranks of some layers, by the ends of their names or regular expressions for these; the first match applies",
			also{only: adapters, like: `{q_proj: 8, layers.0.mlp.down_proj: 32}`, lasts: true}},
		{"train.lora.alpha_pattern", perLayer{&t.LoRA.Alphas, hf.Positive, "a positive number"}, "", "none", "alphas of some layers, like rank_pattern", also{only: adapters, like: `{q_proj: 16}`, lasts: true}},
		{"train.lora.modules_to_save", texts{&t.LoRA.Saved}, "", "none", "modules without adapters that are trained and saved whole, by the ends of their names", also{only: adapters, like: `["embed_tokens", "lm_head"]`, lasts: true}},

		{"device", choice{&c.Device, devices}, "auto", "", "auto | cpu | cuda: device of the ranks; auto: GPUs if this binary supports them and finds any, else the CPU", also{}},

		{"parallel.ranks", count{&p.Ranks, 1, MostRanks}, "", "4, or pipeline × shard × replicate × context × tensor; on GPUs, one per GPU", "number of ranks, which share the state and the batch", also{like: "4"}},
		{"parallel.pipeline", count{&p.Pipeline, 1, MostRanks}, "1", "", "ranks that divide the model's layers (pipeline parallelism); train.accumulate micro-batches pass from rank to rank", also{flag: "pipeline"}},
		{"parallel.shard", shards{&p.Shard}, "-1", "", "ranks that together hold one copy of the state; -1 is ranks / replicate / pipeline / context / tensor", also{remark: fmt.Sprintf("%d = ranks / replicate%s%s%s", p.Shard, pick(p.Pipeline > 1, " / pipeline", ""), pick(p.Context > 1, " / context", ""), pick(p.Tensor > 1, " / tensor", "")), flag: "shard"}},
		{"parallel.replicate", count{&p.Replicate, 1, MostRanks}, "1", "", "copies of the sharded state; above 1: hybrid sharding (HSDP)",
			also{when: "at zero.stage 1, 2 and 3", flag: "replicate", not: refusal{z.Stage == 0 && p.Replicate > 1, fmt.Sprintf("stage 0 shards nothing, so there are no shards to replicate %d times: every rank is a full replica already", p.Replicate), "want replicate: 1, or stage 1, 2 or 3", []string{"zero.stage"}}}},
		{"parallel.context", count{&p.Context, 1, MostRanks}, "1", "", "ranks that divide the positions of each sequence (context parallelism); attention gathers all keys and values", also{flag: "context"}},
		{"parallel.tensor", count{&p.Tensor, 1, MostRanks}, "1", "", "ranks that divide every layer's heads and hidden units, and the vocabulary (tensor parallelism); best within a host", also{flag: "tensor"}},
		{"parallel.master", flag{&p.Master}, "false", "", "like torch.nn.DataParallel, rank 0 alone sums gradients, updates, and sends the parameters to the others: a baseline for measurements, slower than every stage; only at zero.stage 0", also{}},
		{"parallel.timeout", duration{&p.Timeout}, "5m", "", "how long to wait for a silent rank before the run fails", also{}},
		{"parallel.gpus", ordinals{&p.GPUs}, "auto", "", "cuda: list of the GPUs to use, such as [0, 2], by the driver's numbers; auto: all; ranks are spread evenly",
			also{only: []only{{"with device cuda, or auto on a machine with GPUs", on != "cpu", "device", "ranks compute on the CPU"}}, like: "[0, 2]"}},
		{"parallel.memory", bound{&p.Memory}, "auto", "", "device memory that a rank may allocate, such as 512MiB; auto: an equal share of the free memory", also{like: "4GiB"}},
		{"parallel.collective", choice{&p.Collective, Collectives}, "auto", "", "auto | exact | nccl: how ranks on GPUs sum; exact: in rank order, with the same bits as one process; nccl: faster, in NCCL's own order; auto: nccl for several processes if each rank has its own GPU and NCCL is installed, else exact",
			also{not: refusal{on != "cuda" && p.Collective == "nccl", "NCCL sums on GPUs, but ranks compute on the CPU", "want auto, or device: cuda", []string{"device"}}}},
		{"parallel.algorithms", path{text{&p.Algorithms}, nil}, "", "cuBLAS chooses", "file written by 'zeroth bench gpu --write-algorithms': algorithms of matrix products for this GPU model and cuBLAS version",
			also{only: []only{{"with device cuda, or auto on a machine with GPUs", on != "cpu", "device", "ranks compute on the CPU"}}, like: "algorithms.json"}},
		{"parallel.transport", choice{&p.Transport, Transports}, "auto", "", "auto | local | unix | tcp | mpi: transport of collectives between processes; auto: MPI if mpirun started a binary built with -tags mpi, else Unix sockets within a host and TCP between hosts",
			also{}},
		{"parallel.token_file", path{text{&p.TokenFile}, nil}, "", "none", "file with the secret with which the job's processes authenticate each other; or set ZEROTH_TOKEN_FILE or ZEROTH_TOKEN", also{like: "/run/secrets/zeroth", own: true}},
		{"parallel.tls.cert", path{text{&p.TLS.Cert}, nil}, "", "none", "this process's certificate (PEM), for mutual TLS 1.3 of control messages and TCP data between processes",
			also{when: "with parallel.tls.key and parallel.tls.ca", like: "/run/tls/tls.crt", own: true, not: refusal{p.TLS != (TLS{}) && (p.TLS.Cert == "" || p.TLS.Key == "" || p.TLS.CA == ""), "cert, key and ca are only used together", "want all three, or none", []string{"parallel.tls.key", "parallel.tls.ca"}}}},
		{"parallel.tls.key", path{text{&p.TLS.Key}, nil}, "", "none", "private key of parallel.tls.cert (PEM)", also{when: "with parallel.tls.cert and parallel.tls.ca", like: "/run/tls/tls.key", own: true}},
		{"parallel.tls.ca", path{text{&p.TLS.CA}, nil}, "", "none", "certificate of the authority that signs the certificates of the job's processes, and no others", also{when: "with parallel.tls.cert and parallel.tls.key", like: "/run/tls/ca.crt", own: true}},
		{"parallel.bind", text{&p.Bind}, "", "that of the route to process 0", "address, interface (eth0) or network (10.0.0.0/16) at which other processes reach this host", also{like: "10.0.0.7", own: true}},
		{"parallel.join", duration{&p.Join}, "1m", "", "how long to wait for all processes to join, and then for their connections", also{}},
		{"parallel.heartbeat", duration{&p.Heartbeat}, "5s", "", "interval at which each process reports that it is alive", also{}},
		{"parallel.dead_after", duration{&p.DeadAfter}, "15s", "", "a process that is silent for this long counts as lost; at least twice heartbeat",
			also{not: refusal{p.DeadAfter < 2*p.Heartbeat, fmt.Sprintf("a process counts as lost after %v, but reports that it is alive only every %v", p.DeadAfter, p.Heartbeat), "want dead_after of at least twice heartbeat", []string{"parallel.heartbeat"}}}},

		{"pipeline.schedule", choice{&l.Schedule, pipe.Schedules}, "1F1B", "", "GPipe | 1F1B | Interleaved1F1B | ZBH1: order in which ranks process micro-batches", also{only: staged}},
		{"pipeline.virtual", count{&l.Virtual, 1, hf.MostLayers}, "", "1; 2 with Interleaved1F1B", "stages per rank",
			also{only: staged, like: "2", then: func() { l.Virtual = pick(l.Schedule == string(pipe.Interleaved), 2, 1) }}},
		{"pipeline.layers", counts{&l.Layers}, "", "balanced by cost", "list of blocks per stage; the first stage also has the embedding, the last the output layer", also{only: staged, like: "[7, 5]"}},

		{"zero.stage", stage{&z.Stage}, "", "3; 0 with parallel.master", "what is sharded: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters",
			also{like: "2", flag: "stage", then: func() { z.Stage = pick(p.Master, 0, 3) }}},
		{"zero.prefetch", count{&z.Prefetch, 0, hf.MostLayers}, "1", "", "units gathered ahead of the one in use", also{flag: "prefetch"}},
		{"zero.recompute", choice{&z.Recompute, Recomputes}, "none", "", "none | block: recompute a block's activations in the backward pass instead of storing them", also{flag: "recompute"}},

		{"zero.offload.optimizer", choice{&z.Offload.Optimizer, TierNames}, "none", "", "none | host | disk: where to store master copies and optimizer states between updates; the gradients are then in host memory", also{}},
		{"zero.offload.parameters", choice{&z.Offload.Parameters, TierNames}, "none", "", "none | host | disk: where to store parameter shards between uses; needs stage 3",
			also{when: "at zero.stage 3", not: refusal{z.Stage < 3 && z.Offload.Parameters != "none", fmt.Sprintf("at stage %d every rank has all parameters: there are no shards to offload", z.Stage), "want stage: 3, or parameters: none", []string{"zero.stage"}}}},
		{"zero.offload.path", path{text{&z.Offload.Path}, nil}, "", "needed for disk", "existing folder for the ranks' files, on the disk to use",
			also{only: []only{{"with offloading to disk", z.Offload.Disk(), "zero.offload.optimizer", "nothing is offloaded to disk"}}, like: "/mnt/nvme", not: refusal{z.Offload.Disk() && z.Offload.Path == "", "no folder to offload to", OffloadPath, []string{"zero.offload.optimizer", "zero.offload.parameters"}}}},
		{"zero.offload.buffers", count{&z.Offload.Buffers, 1, 1 << 10}, "4", "", "pieces of up to 2^20 elements in transfer at once, in each direction",
			also{only: []only{{"with offloading", z.Offload.Any(), "zero.offload.optimizer", "nothing is offloaded"}}}},
		{"zero.offload.ratio", real{&z.Offload.Ratio, fraction, "a fraction from 0 to 1"}, "1.0", "", "share of the optimizer state to offload, beginning with the last units",
			also{only: []only{{"with zero.offload.optimizer", z.Offload.Optimizer != "none", "zero.offload.optimizer", "no optimizer state is offloaded"}}}},

		{"precision", dtype{&c.Precision, precisions}, "bf16", "", "fp32 | bf16 | fp16: type of gathered parameters and activations", also{lasts: true, flag: "precision"}},

		{"optimizer.type", choice{&o.Type, rules}, "adamw", "", "adamw | adamw8bit | adam | sgd | lion | muon | program; adamw8bit: moments in 8 bits; muon: for the matrices of blocks, with AdamW for the rest; program: the rule of the Go program that runs the job (job.Options.Rule)", also{lasts: true, flag: "optimizer"}},
		{"optimizer.lr", real{&o.LR, hf.Positive, "a positive number"}, "6e-4; muon 1e-3", "", "highest learning rate", also{like: "6e-4", lasts: true}},
		{"optimizer.betas", reals{&o.Betas, within(0, 1), "two numbers of at least 0 and below 1"}, "[0.9, 0.95]; lion [0.9, 0.99]", "", "decay rates of the moments; not for sgd and muon",
			also{types: []string{"adamw", "adamw8bit", "adam", "lion"}, like: "[0.9, 0.95]", lasts: true, follows: []string{"optimizer.type"}, only: []only{{"", o.Type != "muon", "optimizer.type", "muon has none; its AdamW uses optimizer.adamw.betas"}}}},
		{"optimizer.eps", real{&o.Eps, hf.Positive, "a positive number"}, "1e-8; muon 1e-7", "", "added to the denominator of adamw, adamw8bit and adam; minimum norm for muon", also{types: []string{"adamw", "adamw8bit", "adam", "muon"}, like: "1e-8", lasts: true, follows: []string{"optimizer.type"}}},
		{"optimizer.weight_decay", real{&o.WeightDecay, atLeast0, "a number of at least 0"}, "0.1", "", "weight decay of matrices; biases and norms have none", also{lasts: true}},
		{"optimizer.momentum", real{&o.Momentum, within(0, 1), "a number of at least 0 and below 1"}, "0.9; muon 0.95", "", "momentum of sgd and muon", also{types: []string{"sgd", "muon"}, like: "0.9", lasts: true, follows: []string{"optimizer.type"}}},
		{"optimizer.nesterov", flag{&o.Nesterov}, "true", "", "muon: use Nesterov momentum", also{types: []string{"muon"}, like: "false", lasts: true, follows: []string{"optimizer.type"}}},
		{"optimizer.ns_steps", count{&o.Steps, 1, mostMuonSteps}, "5", "", "muon: steps of the Newton-Schulz iteration", also{types: []string{"muon"}, like: "6", lasts: true, follows: []string{"optimizer.type"}}},
		{"optimizer.adjust_lr_fn", choice{&o.Adjust, Adjusts}, "original", "", "muon: factor of a matrix's learning rate: original: sqrt(max(1, rows/columns)); match_rms_adamw: 0.2 sqrt(max(rows, columns)); spectral_unclamped: sqrt(rows/columns)", also{types: []string{"muon"}, like: "match_rms_adamw", lasts: true, follows: []string{"optimizer.type"}}},
		{"optimizer.adamw.lr", real{&o.AdamW.LR, hf.Positive, "a positive number"}, "", "6e-4; lr with match_rms_adamw", "muon: highest learning rate of embeddings, output layer, norms and biases",
			also{types: []string{"muon"}, like: "3e-4", lasts: true, follows: []string{"optimizer.type", "optimizer.adjust_lr_fn", "optimizer.lr"}, then: func() { o.AdamW.LR = pick(o.Adjust == "match_rms_adamw", o.LR, 6e-4) }}},
		{"optimizer.adamw.betas", reals{&o.AdamW.Betas, within(0, 1), "two numbers of at least 0 and below 1"}, "[0.9, 0.95]", "", "muon: decay rates of the moments of its AdamW", also{types: []string{"muon"}, like: "[0.9, 0.95]", lasts: true, follows: []string{"optimizer.type"}}},
		{"optimizer.adamw.eps", real{&o.AdamW.Eps, hf.Positive, "a positive number"}, "1e-8", "", "muon: added to the denominator of its AdamW", also{types: []string{"muon"}, like: "1e-8", lasts: true, follows: []string{"optimizer.type"}}},
		{"optimizer.adamw.weight_decay", real{&o.AdamW.WeightDecay, atLeast0, "a number of at least 0"}, "", "optimizer.weight_decay", "muon: weight decay of embeddings and output layer",
			also{types: []string{"muon"}, like: "0", lasts: true, follows: []string{"optimizer.type", "optimizer.weight_decay"}, then: func() { o.AdamW.WeightDecay = o.WeightDecay }}},
		{"optimizer.groups", listOf(&o.Groups, "group of parameters", "groups of parameters", MostGroups, (*Group).fields), "", "none", "settings for parameters selected by name; the first matching group applies", also{like: `[{match: "*.bias", lr: 1e-4, weight_decay: 0}]`, lasts: true}},

		{"schedule.type", choice{&s.Type, curves}, "cosine", "", "constant | linear | cosine | wsd | inverse_sqrt: the learning rate after the warmup", also{lasts: true}},
		{"schedule.warmup", count{&s.Warmup, 0, MostSteps}, "", "20, or steps if fewer", "steps of linear warmup from 0; a shorter run never reaches the highest rate, and reports that", also{like: "100", lasts: true}},
		{"schedule.min_lr", real{&s.MinLR, atLeast0, "a number of at least 0"}, "", "lr / 10", "learning rate at the last step; not for constant and inverse_sqrt",
			also{only: falls, like: "6e-5", lasts: true, follows: []string{"optimizer.lr", "schedule.type"}, then: func() { s.MinLR = pick(s.Type == "constant" || s.Type == "inverse_sqrt", o.LR, tenth(o.LR)) }, not: refusal{s.Type != "constant" && s.Type != "inverse_sqrt" && s.MinLR > o.LR, fmt.Sprintf("min_lr %s is above lr %s", FormatReal(s.MinLR), FormatReal(o.LR)), "want a min_lr of at most lr", []string{"optimizer.lr"}}}},
		{"schedule.decay", count{&s.Decay, 1, MostSteps}, "", "a tenth of steps, at least 1", "wsd: steps at the end in which the learning rate falls",
			also{only: []only{{"with schedule.type wsd", s.Type == "wsd", "schedule.type", "a " + s.Type + " schedule has no decay of its own"}}, like: "100", lasts: true, follows: []string{"train.steps", "train.epochs", "schedule.type"}}},
		{"schedule.lag", count{&s.Lag, 0, 2}, "0", "", "steps by which warmup and decay are later: 0 as in llm.c, where the first step has a rate above 0 and the last min_lr; 1 as in transformers; 2 as in DeepSpeed", also{lasts: true}},

		{"checkpoint.every", count{&k.Every, 0, MostSteps}, "0", "", "steps between checkpoints; 0: none", also{like: "100", lasts: true}},
		{"checkpoint.dir", path{text{&k.Dir}, objects}, "", "ckpt in the run folder", "folder of checkpoints, also s3://bucket/folder", also{like: "/data/ckpt", not: refusal{s3.Is(k.Dir) && badBucket(k.Dir), "it names no folder in object storage", "want s3://BUCKET/FOLDER", nil}}},
		{"checkpoint.local", path{text{&k.Local}, nil}, "", "ckpt in the run folder", "with a checkpoint.dir in object storage: folder on each host's disk to save checkpoints to before uploading them",
			also{like: "/scratch/ckpt", own: true, only: []only{{"with a checkpoint.dir in object storage", s3.Is(k.Dir), "checkpoint.dir", "checkpoint.dir is on disk already"}}}},
		{"checkpoint.keep", retention{&k.Keep}, "3", "", "checkpoints to keep: the number of newest ones, or {last: 3, every_steps: 1000, best: val_loss}",
			also{like: "{last: 3, best: val_loss}", lasts: true, not: refusal{k.Keep.Best == "val_loss" && t.EvalEvery == 0, "keeping the best val_loss needs evaluations, but the job has none", "want train.eval_every of at least 1 and data.validation above 0, or best: loss", nil}}},
		{"checkpoint.async", flag{&k.Async}, "true", "", "continue training while a checkpoint is written", also{}},
		{"checkpoint.compress", choice{&k.Compress, []string{"auto", "always", "never"}}, "auto", "", "auto | always | never: compress data files; auto: if it pays off, as measured by the first save", also{}},
		{"checkpoint.save_on_exit", flag{&k.SaveOnExit}, "", "true with every, else false", "save after the last step and when the run is stopped",
			also{like: "true", lasts: true, follows: []string{"checkpoint.every"}, then: func() { k.SaveOnExit = k.Every > 0 }}},
		{"checkpoint.on_error", choice{&k.OnError, []string{"stop", "continue"}}, "stop", "", "stop | continue: stop or continue training when a checkpoint or metrics.jsonl cannot be written", also{}},

		{"sample.prompt", text{&w.Prompt}, "", "a line feed", "text to continue after training", also{like: `"Once upon a time"`}},
		{"sample.tokens", count{&w.Tokens, 0, hf.Most}, "", "200 with a prompt, else 0", "tokens to generate; 0: no sample", also{like: "200", then: func() { w.Tokens = pick(w.Prompt != "", 200, 0) }}},
		{"sample.temperature", real{&w.Temperature, atLeast0, "a number of at least 0"}, "0.8", "", "randomness of the choices; 0 always chooses the likeliest token", also{}},
		{"sample.top_k", count{&w.TopK, 0, hf.Most}, "0", "", "choose among the k likeliest tokens; 0: all", also{}},
		{"sample.top_p", real{&w.TopP, probable, "a number above 0 and at most 1"}, "1.0", "", "choose among the likeliest tokens with this total probability, after top_k; 1: all", also{}},
		{"sample.stop", texts{&w.Stop}, "", "none", "end the sample before the first of these texts",
			also{like: `["\n\n"]`, not: refusal{slices.Contains(w.Stop, ""), "a stop text is empty", "want at least one character in each", nil}}},
		{"sample.seed", seed{&w.Seed}, "", "train.seed", "seed of the random choices", also{like: "1", then: func() { w.Seed = t.Seed }}},

		{"report.every", count{&c.Report.Every, 0, MostSteps}, "50", "", "steps between measurements of computing, exposed communication and idle time; 0: never", also{}},
		{"report.tensorboard", flag{&c.Report.TensorBoard}, "false", "", "also write TensorBoard events to the run folder", also{}},
		{"report.mlflow", text{&c.Report.MLflow}, "", "nothing", "address of an MLflow tracking server that gets the numbers of each step; credentials come from MLFLOW_TRACKING_TOKEN, or _USERNAME and _PASSWORD", also{like: "http://127.0.0.1:5000",
			not: refusal{is: c.Report.MLflow != "" && wrongServer(c.Report.MLflow) != "", wrong: wrongServer(c.Report.MLflow), right: "want for example http://127.0.0.1:5000, with credentials in MLFLOW_TRACKING_TOKEN or MLFLOW_TRACKING_USERNAME and _PASSWORD"}}},
		{"report.experiment", text{&c.Report.Experiment}, "zeroth", "", "experiment of report.mlflow, created if missing", also{only: []only{{when: "with report.mlflow", met: c.Report.MLflow != "", because: "report.mlflow", why: "there is no report.mlflow"}}}},
		{"report.listen", text{&c.Report.Listen}, "", "nothing", "address for the live page, Prometheus and health checks: HOST:PORT, or unix:PATH; from other machines, everything except /healthz needs the token", also{like: "127.0.0.1:9400"}},
		{"report.token_file", path{text{&c.Report.TokenFile}, nil}, "", "watch.token in the run folder", "file with the token of report.listen, mode 0600; created if missing", also{like: "/run/secrets/watch"}},
		{"report.stall", duration{&c.Report.Stall}, "10m", "", "/healthz fails if no step, evaluation or checkpoint completes for this long", also{}},
		{"report.machine", path{text{&c.Report.Machine}, nil}, "", "the GPU, if it is an H100 or H200", "h100 | h200 | a file like examples/machine.json: the peak rate for MFU", also{like: "machine.json"}},
	}
}

// undelayed returns why the job does not support delayed updates.
func undelayed(c *Config) string {
	switch {
	case c.Precision == device.F16:
		return "which fp16 does not support: the loss scale would follow a step late"
	case c.Optimizer.Type == "muon":
		return "which muon does not support"
	case c.Zero.Offload.Optimizer == "disk":
		return "which optimizer state on disk does not support"
	case c.Zero.Offload.Parameters != "none":
		return "which offloaded parameters do not support"
	}
	return "which GPUs with offloaded state do not support"
}

// pick returns yes if a condition holds, else no.
func pick[T any](holds bool, yes, no T) T {
	if holds {
		return yes
	}
	return no
}

func atLeast0(x float64) bool { return x >= 0 && !math.IsInf(x, 0) }

func probable(x float64) bool { return x > 0 && x <= 1 }

func atMostHalf(x float64) bool { return x >= 0 && x <= 0.5 }

func within(lo, hi float64) func(float64) bool {
	return func(x float64) bool { return x >= lo && x < hi }
}

var trailing = regexp.MustCompile(`(?m)[ \t]+$`)

// Keys returns the keys of a job file in order, such as "model.layers".
func Keys() []string { return keysOf(func(field) bool { return true }) }

// Shape returns the keys that describe what a model computes.
func Shape() []string { return keysOf(func(f field) bool { return f.shape }) }

// Lasting returns the keys that a resumed run inherits unless the job sets them: keys that change
// results, except the model's, and keys that control saving and deleting.
func Lasting() []string { return keysOf(func(f field) bool { return f.lasts }) }

// Follows returns the keys on which the default of an inherited key depends.
func Follows(key string) []string { return new(Config).field(key, "").follows }

// Default returns the default of a key, in YAML; "" if it depends on other keys.
func Default(key string) string { return new(Config).field(key, "").initial }

func keysOf(some func(field) bool) (keys []string) {
	for _, f := range new(Config).fields("") {
		if some(f) {
			keys = append(keys, f.key)
		}
	}
	return keys
}

// Shortcuts returns the keys that have flags in 'zeroth plan', by flag.
func Shortcuts() map[string]string {
	keys := map[string]string{}
	for _, f := range new(Config).fields("") {
		if f.flag != "" {
			keys[f.flag] = f.key
		}
	}
	return keys
}

// Reference returns a table of all keys with their defaults and meanings.
func Reference() string { return reference(new(Config).fields("")) }

func reference(fields []field) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	last := ""
	for _, f := range fields {
		section, _, _ := strings.Cut(f.key, ".")
		if section != last && last != "" {
			fmt.Fprintln(w, "\t\t")
		}
		last = section
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.key, f.initial+f.rule, f.doc)
	}
	w.Flush()
	return trailing.ReplaceAllString(b.String(), "")
}

// wrongServer describes why a text is not the address of an MLflow server; "" if it is.
func wrongServer(text string) string {
	switch u, err := url.Parse(text); {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		return "it is not the address of a server"
	case u.User != nil:
		return "it contains a password, which would be written to job.yaml"
	}
	return ""
}

// tenth returns x/10 in decimal: a tenth of 6e-4 is exactly 6e-5.
func tenth(x float64) float64 {
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(x, 'e', -1, 64), "e")
	e, _ := strconv.Atoi(exponent)
	y, _ := strconv.ParseFloat(fmt.Sprintf("%se%d", mantissa, e-1), 64)
	return y
}
