package config

import (
	"strconv"
	"time"

	"zeroth/data"
	"zeroth/device"
	"zeroth/input/hub"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// Config is a complete job: Load has filled in every default and derived the settings that depend
// on other keys. The table in fields.go lists the keys of the job file with their defaults and
// meanings.
type Config struct {
	Model            hf.Model
	Merged           []string // folders of adapters that are added to the parameters of Model.From
	Data             Data
	Train            Training
	Device           string // "auto", "cpu" or "cuda", as in the job file; see On
	Parallel         Parallel
	Pipeline         Pipeline
	Dropout          *float64 // dropout probability of embeddings and residuals in training; nil: the value in the model's config.json
	Weights          string   // how frozen matrices of blocks are stored: one of device.Codes
	AttentionDropout float64  // dropout probability of attention weights in training
	Zero             Zero
	Precision        device.DType // of working parameters, activations and gathers: F32, BF16 or F16
	Optimizer        Optimizer
	Schedule         Schedule

	Checkpoint Checkpointing
	Sample     Sampling
	Report     Reporting

	on        string              // see On
	Notes     []string            // what a user may not expect of it
	Folder    hf.Carried          // what model.from has beside its shape
	awaits    bool                // its model is that of the checkpoint to resume from, which is not known yet
	resumes   bool                // it goes on from a checkpoint, which says the length of sequences
	own       Own                 // of the program that runs it
	env       Environment         // that it was loaded for
	found     *data.Found         // the files of Data
	file      string              // name of the job file
	root      *node               // the job file merged with the sets; read-only
	positions map[string]position // of the given keys: "zero", "zero.stage", "data.text[2]"; "" is the file itself
}

// Data selects the training data. One of Text, Tokens, Documents and Program is set.
type Data struct {
	Text       []string  // patterns of text files, as written in the job file
	Tokens     []string  // patterns of token files, as written in the job file
	Documents  []string  // patterns of files of JSON records, as written in the job file
	Weights    []float64 // one for each of Documents; none: each document counts alike
	Program    bool      // the program that runs the job provides it
	Format     string    // of Documents: "text", "prompt" or "chat"
	Keys       RecordKeys
	TooLong    string   // "cut" or "skip": what happens to documents that are longer than a sequence
	Learn      string   // of chats: "assistant", "last" or "all"
	Date       string   // that chat templates see, as in 2026-01-31
	Held       []string // patterns of Documents to validate on; empty: the fraction Validation
	Pack       bool     // put several Documents into one sequence, without attention between them
	DType      string   // of ids in token files without a header; empty: uint16 if unambiguous
	Tokenizer  string   // "bytes", "gpt2", "folder" or, for Tokens, "none"; for Tokens, the tokenizer they were made with
	Vocab      string   // folder with a tokenizer; empty: the embedded one
	Validation float64  // fraction held out, in [0, 0.5]
}

// RecordKeys names the keys of a record that differ from the default, the field's own name.
type RecordKeys struct{ Text, Prompt, Completion, Messages string }

// Training is the length of a run and the size of its steps. Batch = MicroBatch × Accumulate ×
// Shard × Replicate of Parallel.
type Training struct {
	Steps       int     // with Epochs, 0 until Settled
	Epochs      float64 // 0: Steps is given
	Batch       int     // sequences per step, over all ranks
	MicroBatch  int     // sequences per micro-batch of a rank
	Accumulate  int     // micro-batches per step
	Clip        float64 // largest global gradient norm; 0 is off
	Delayed     bool    // forward and backward use the parameters from before the last update
	Seed        uint64  // of initial parameters and data order
	EvalEvery   int     // steps between evaluations; 0: never
	EvalBatches int     // batches of Batch sequences per evaluation
	LossChunk   int     // tokens whose logits are in memory at the same time
	EarlyStop   EarlyStop
	Freeze      []string // patterns of parameters that are not trained
	LoRA        LoRA
}

// EarlyStop ends a run when its evaluations stop improving.
type EarlyStop struct {
	Metric   string // of evaluations: "val_loss", or one of a program's network
	Mode     string // "min" or "max": whether lower or higher is better
	Patience int    // consecutive evaluations without improvement before the run ends; 0 is never
}

// LoRA is low-rank adapters. With them, only the adapters are trained; see nn.LoRA.
type LoRA struct {
	From    string // folder of the adapter to begin with; "" for fresh ones
	Rank    int    // 0: no adapters
	Alpha   float64
	RSLoRA  bool         // adapters are multiplied by Alpha/√Rank, not Alpha/Rank
	Dropout float64      // of the inputs of adapters
	Targets []string     // suffixes of the names of linear layers
	Ranks   []nn.Pattern // of layers with another rank
	Alphas  []nn.Pattern // of layers with another alpha
	Saved   []string     // suffixes of the names of modules that are trained and saved whole
}

// Parallel is the arrangement of the ranks. Ranks = Pipeline × Context × Tensor × Replicate ×
// Shard.
type Parallel struct {
	Ranks      int
	Pipeline   int           // ranks that divide the model's layers
	Shard      int           // ranks that together hold one copy of the state
	Replicate  int           // replicas of each shard group; more than 1 is hybrid sharding
	Context    int           // ranks that divide the positions of a sequence
	Tensor     int           // ranks that divide the model's matrices
	Master     bool          // only rank 0 holds the optimizer state and updates
	Timeout    time.Duration // how long a rank waits for another before declaring it lost
	GPUs       []int         // driver's numbers of the GPUs to use; empty: all visible ones
	Memory     int64         // device memory limit of a rank in bytes; 0: all ranks share the free memory
	Collective string        // implementation of reductions between GPUs: one of Collectives
	Algorithms string        // file of GPU matrix-product algorithms; "" is none
	Transport  string        // transport of collectives between processes: one of Transports
	TokenFile  string        // file with the secret that authenticates processes; "" is none
	TLS        TLS           // for control messages and TCP between processes; off if its fields are empty
	Bind       string        // address at which other processes reach this one; "" is the one it uses to reach process 0
	Join       time.Duration // how long processes wait for the others to join
	Heartbeat  time.Duration // interval of a process's heartbeats
	DeadAfter  time.Duration // a process without a heartbeat for this long is lost
}

// TLS names the PEM files by which processes authenticate each other: this process's certificate
// and key, and the authority that signed all certificates.
type TLS struct{ Cert, Key, CA string }

// Pipeline is the division of the layers among Parallel.Pipeline ranks and the order in which they
// are run; see package pipe.
type Pipeline struct {
	Schedule string
	Virtual  int   // stages per rank
	Layers   []int // of each stage; none: balanced by cost
}

// Zero selects what is sharded and when it is gathered.
type Zero struct {
	Stage     int    // 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters
	Prefetch  int    // units gathered ahead of the one in use
	Recompute string // "none" or "block"
	Offload   Offload
}

// Optimizer is the update rule. Constants that the rule does not use are zero.
type Optimizer struct {
	Type        string // "adamw", "adamw8bit", "adam", "sgd", "lion" or "muon"
	LR          float64
	Betas       [2]float64 // adamw, adamw8bit, adam, lion
	Eps         float64    // adamw, adamw8bit, adam, muon
	WeightDecay float64
	Momentum    float64 // sgd, muon
	Nesterov    bool    // muon
	Steps       int     // muon: Newton-Schulz iterations
	Adjust      string  // muon: one of Adjusts
	AdamW       AdamW   // muon: for parameters other than the blocks' matrices
	Groups      []Group // parameters with settings of their own; the first matching group applies
}

// AdamW is the update rule of parameters that Muon does not update.
type AdamW struct {
	LR          float64
	Betas       [2]float64
	Eps         float64
	WeightDecay float64
}

// Schedule is the learning rate over the steps: a linear warmup from 0 over Warmup steps, then the
// curve of Type from Optimizer.LR to MinLR.
type Schedule struct {
	Type   string // "constant", "linear", "cosine", "wsd" or "inverse_sqrt"
	Warmup int    // steps
	MinLR  float64
	Decay  int // wsd: number of final steps in which the rate falls
	Lag    int // steps by which all of it is later than in llm.c
}

// Sampling describes the text generated at the end of training.
type Sampling struct {
	Prompt      string
	Tokens      int     // to generate; 0 is no sample
	Temperature float64 // 0 always chooses the most likely token
	TopK        int     // choose among the k most likely tokens; 0 is all
	TopP        float64 // choose among the most likely tokens with this total probability; 1 is all
	Stop        []string
	Seed        uint64
}

// Reporting selects what is measured and published during a run.
type Reporting struct {
	Every       int           // steps between detailed measurements; 0 is never
	TensorBoard bool          // also write TensorBoard events
	MLflow      string        // address of a tracking server; empty: none
	Experiment  string        // name of the experiment there
	Listen      string        // address at which the run is published; empty: none
	TokenFile   string        // with the secret for Listen; empty: one in the run folder
	Stall       time.Duration // a run without a step for this long is unhealthy
	Machine     string        // machine that defines peak FLOPS, a preset or a file; "" is the GPU's preset, if it has one
}

// Mesh returns the arrangement of ranks for the job's ZeRO stage: at stage 0 each shard group is
// one rank. With a master there is a single group, and the master holds all of its shards.
func Mesh(c *Config) shard.Mesh {
	p := c.Parallel
	m := shard.Mesh{Pipeline: p.Pipeline, Shard: p.Shard, Replicate: p.Replicate, Context: p.Context, Tensor: p.Tensor}
	if p.Master {
		return m
	}
	return zero.Stage(c.Zero.Stage).Mesh(m)
}

// DataRanks returns the number of ranks that read data of their own. Ranks that divide the model
// or a sequence read the same data.
func (p Parallel) DataRanks() int { return p.Ranks / p.models() }

// models returns the number of ranks that divide the model or the positions of a sequence.
func (p Parallel) models() int { return max(1, p.Pipeline) * max(1, p.Context) * max(1, p.Tensor) }

// TokensPerStep returns the number of positions that all ranks train on in a step.
func TokensPerStep(c *Config) int { return c.Train.Batch * c.Model.Context }

// On returns the device that ranks compute on, "cpu" or "cuda", after resolving auto.
func (c *Config) On() string { return c.on }

// Copy returns a shallow copy for a caller that changes settings. A loaded job is never changed,
// nor are the elements of its slices and maps.
func (c *Config) Copy() *Config {
	x := *c
	return &x
}

// Load reads a job file, applies the sets ("key=value", the value in YAML), fills in defaults and
// makes every check that needs no data. The error is a Problems with all problems found. Relative
// paths in the job file are relative to the current directory. Device auto resolves to the CPU;
// use Environment.Load on a machine with GPUs.
func Load(file string, sets []string) (*Config, error) { return Environment{}.Load(file, sets) }

// Environment describes where a job is to run. Some defaults depend on it.
type Environment struct {
	Processes int  // that share the ranks evenly; 0 is one
	Ranks     int  // per process, if the job does not set it; 0: the job's default
	GPUs      int  // available for ranks
	Resumes   bool // the run may continue from a checkpoint: without model keys, the model is the checkpoint's

	// Fetch is hub.Fetch for models on the Hub; nil: without messages, and not interruptible.
	Fetch func(name string, files hub.Files) (pinned string, err error)
}

// Load is like the function Load, for a job that runs on h.
func (h Environment) Load(file string, sets []string) (*Config, error) {
	root, problems := readFile(file)
	return h.load(file, root, problems, sets, (*reader).checkFiles, (*reader).checkOffload)
}

// load makes a job of a file's nodes and the sets, and runs the checks on it.
func (h Environment) load(file string, root *node, problems Problems, sets []string, checks ...func(*reader)) (*Config, error) {
	for _, s := range sets {
		problems = append(problems, overlay(root, s)...)
	}
	root.finish()
	r := newReader(file, root)
	r.problems, r.Config.env, r.draft = problems, h, len(checks) == 0
	if root.from != nil {
		r.Config.Notes = root.from.notes(root)
	}
	if !r.problems.Fatal() {
		r.read()
		r.resolve()
		for _, check := range checks {
			check(r)
		}
	}
	if r.failed != nil {
		return nil, r.failed
	}
	if len(r.problems) > 0 {
		r.problems.Sort()
		return nil, r.problems
	}
	return r.Config, nil
}

// LoadTokenizer returns the name by which data.NewTokenizer knows the job's tokenizer, and whether
// the job reads token files. The files that the job names need not exist any more.
func LoadTokenizer(file string) (name string, tokens bool, err error) {
	root, problems := readFile(file)
	r := newReader(file, root)
	r.problems = problems
	if !r.problems.Fatal() {
		r.read()
		r.resolveData()
	}
	if len(r.problems) > 0 {
		return "", false, r.problems
	}
	return Tokenizer(r.Config), len(r.Config.Data.Tokens) > 0, nil
}

// Source returns the source of the job's data.
func Source(c *Config) data.Source {
	var below []int
	if c.own.Data != nil {
		below = Network(c).Below(c.own.Data.Fields())
	}
	return data.Source{
		Text: c.Data.Text, Tokens: c.Data.Tokens, Documents: documents(c), DType: c.Data.DType, Tokenizer: Tokenizer(c), Validation: c.Data.Validation,
		Context: c.Model.Context, Fit: fitting(c), Batch: c.Train.Batch, Vocab: c.Model.Vocab, Seed: c.Train.Seed, Found: c.found,
		Samples: c.own.Data, Held: c.own.Validation, Below: below,
	}
}

// fitting returns the number of which a sequence's length must be a multiple, because ranks divide
// sequences or matrices, if the length follows from the longest document. It returns 0 if the job or
// a checkpoint sets the length, and for models without a folder.
func fitting(c *Config) int {
	if len(c.Data.Documents) == 0 || c.Model.From == "" || c.setsKey("model.context") || c.resumes {
		return 0
	}
	const usual = 64
	return usual * max(1, c.Parallel.Context) * max(1, c.Parallel.Tensor)
}

// FollowsData reports whether the length of sequences follows from the longest document.
func FollowsData(c *Config) bool { return fitting(c) > 0 }

// WithDate returns the job with a date of chat templates, unless it needs none or gives one itself.
func (c *Config) WithDate(date string) *Config {
	if c.Data.Date == "" || date == "" || c.setsKey("data.date") {
		return c
	}
	c = c.Copy()
	c.Data.Date = date
	return c
}

// with returns the job with another value of a key.
func (c *Config) with(key, value, source string) (*Config, error) {
	root := c.root.clone()
	n, _ := parse([]byte(value), position{})
	n.moveTo(position{file: source})
	put(root, key, n)
	r := newReader(c.file, root)
	r.Config.own, r.Config.env = c.own, c.env
	r.read()
	r.resolve()
	if len(r.problems) > 0 {
		r.problems.Sort()
		return nil, r.problems
	}
	r.Config.found, r.Config.Checkpoint.Dir, r.Config.Data.Date = c.found, c.Checkpoint.Dir, c.Data.Date
	return r.Config, nil
}

// AtCommitsOf returns the job with the models on the Hub at the commits that another process of the
// run has found, given their names there. Other models stay as they are.
func (c *Config) AtCommitsOf(from, vocab string) (next *Config, err error) {
	next = c
	for _, x := range []struct{ key, ours, theirs string }{{"model.from", c.Model.From, from}, {"data.vocab", c.Data.Vocab, vocab}} {
		ours, was := hub.Split(x.ours)
		theirs, is := hub.Split(x.theirs)
		if err == nil && ours == theirs && was != is && c.setsKey(x.key) {
			next, err = next.with(x.key, Quote(x.theirs), "process 0")
		}
	}
	return next, err
}

// WithContext returns the job with sequences of the given number of tokens, which it had left open.
func (c *Config) WithContext(tokens int) (*Config, error) {
	next, err := c.with("model.context", strconv.Itoa(tokens), "the longest document")
	if err != nil {
		return nil, err
	}
	if most := c.Model.Context; tokens < most {
		next.note("model.context is %d, enough for the longest document; the model's maximum is %d", tokens, most)
	} else {
		next.note("model.context is %d, the model's maximum, because the longest document needs at least that", most)
	}
	return next, nil
}

// documents returns the records of the job's source.
func documents(c *Config) data.Documents {
	k := c.Data.Keys
	date, _ := time.Parse(time.DateOnly, c.Data.Date) // it was checked when it was read
	return data.Documents{
		Learn: c.Data.Learn, Date: date, Skip: c.Data.TooLong == "skip",
		Files: c.Data.Documents, Validation: c.Data.Held, Format: c.Data.Format, Pack: c.Data.Pack, Weights: c.Data.Weights,
		Keys: map[string]string{"text": k.Text, "prompt": k.Prompt, "completion": k.Completion, "messages": k.Messages},
	}
}

// Tokenizer returns the name by which data.NewTokenizer knows the job's tokenizer, empty for none.
func Tokenizer(c *Config) string {
	switch {
	case (c.Data.Tokenizer == "gpt2" || c.Data.Tokenizer == "folder") && c.Data.Vocab != "":
		return hub.Folder(c.Data.Vocab)
	case c.Data.Tokenizer == "none" || c.Data.Tokenizer == "folder": // the folder is missing, which is reported
		return ""
	}
	return c.Data.Tokenizer
}
