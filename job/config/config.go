package config

import (
	"strconv"
	"time"

	"zeroth/data"
	"zeroth/device"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// Config is a job, complete: Load fills in every default, and derives what
// follows from other keys. The keys of the job file, with their defaults and
// meaning, are listed once, in fields (fields.go).
type Config struct {
	Model            hf.Model
	Data             Data
	Train            Training
	Device           string // "auto", "cpu" or "cuda", as asked for; see On
	Parallel         Parallel
	Pipeline         Pipeline
	Dropout          *float64 // probability of elements to be dropped in training; nil: as config.json of Model has it
	AttentionDropout float64  // probability of weights of attention to be dropped in training
	Zero             Zero
	Precision        device.DType // of parameters in use, activations and gathers: F32, BF16 or F16
	Optimizer        Optimizer
	Schedule         Schedule

	Checkpoint Checkpointing
	Sample     Sampling
	Report     Reporting

	on      string           // see On
	Notes   []string         // what a user may not expect of it
	Folder  hf.Carried       // what model.from has beside its shape
	resumes bool             // it goes on from a checkpoint, which says the length of sequences
	network *nn.Model        // of the caller; nil: that of Model
	here    Here             // that it was loaded for
	found   *data.Found      // the files of Data
	file    string           // that the job was read from
	root    *node            // what it and the sets say, not to be changed
	places  map[string]place // of what was given: "zero", "zero.stage", "data.text[2]", and the file's as ""
}

// Data is what to train on. One of Text, Tokens and Documents is set.
type Data struct {
	Text       []string  // patterns of text files, as written in the job file
	Tokens     []string  // patterns of token files, as written in the job file
	Documents  []string  // patterns of files of JSON records, as written in the job file
	Weights    []float64 // of Documents, one each; none: each document counts alike
	Format     string    // of Documents: "text", "prompt" or "chat"
	Keys       RecordKeys
	TooLong    string   // "cut" or "skip": what happens to documents that are longer than a sequence
	Learn      string   // of chats: "assistant", "last" or "all"
	Date       string   // that chat templates see, as in 2026-01-31
	Held       []string // patterns of Documents to validate on; empty: the fraction Validation
	Pack       bool     // several of Documents are a sequence, in which they do not see each other
	DType      string   // of ids in token files without a header; empty: uint16, where that is sure
	Tokenizer  string   // "bytes", "gpt2", "folder" or, for Tokens, "none"; for these the one they were made with
	Vocab      string   // folder with a tokenizer; empty: the embedded one
	Validation float64  // fraction held out, in [0, 0.5]
}

// RecordKeys are the keys of a record that have another name than the usual one,
// which is the field's.
type RecordKeys struct{ Text, Prompt, Completion, Messages string }

// Training is how long and in which bites.
// Batch = MicroBatch × Accumulate × Shard × Replicate of Parallel.
type Training struct {
	Steps       int     // 0 with Epochs, until Settle
	Epochs      float64 // 0: Steps is given
	Batch       int     // sequences a step, over all ranks
	MicroBatch  int     // sequences a rank takes at once
	Accumulate  int     // micro-batches a step
	Clip        float64 // largest global gradient norm; 0 is off
	Delayed     bool    // passes use parameters from before the last update
	Seed        uint64  // of initial parameters and data order
	EvalEvery   int     // steps; 0 is never
	EvalBatches int     // batches of Batch sequences that are evaluated each time
	LossChunk   int     // tokens whose logits are in memory at once
	EarlyStop   EarlyStop
	Freeze      []string // patterns of parameters that are not trained
	LoRA        LoRA
}

// EarlyStop ends a run whose evaluations no longer improve.
type EarlyStop struct {
	Metric   string // "val_loss"
	Patience int    // evaluations in a row that do not improve on the best; 0 is never
}

// LoRA is low-rank adapters, which then alone are trained; see nn.LoRA.
type LoRA struct {
	Rank    int // 0: there are none
	Alpha   float64
	Targets []string // ends of linear layers' names
}

// Parallel is how the ranks are arranged. Ranks = Pipeline × Replicate × Shard.
type Parallel struct {
	Ranks      int
	Pipeline   int           // ranks that divide the layers of the model
	Shard      int           // ranks that together hold one copy of the state
	Replicate  int           // such copies; more than 1 is hybrid sharding
	Context    int           // ranks that divide the positions of sequences
	Tensor     int           // ranks that divide the matrices of the model
	Master     bool          // rank 0 alone has the optimizer state and updates
	Timeout    time.Duration // how long a rank waits for another before it is called lost
	GPUs       []int         // that ranks compute on, by the driver's numbers; empty: all it shows
	Memory     int64         // bytes of device memory a rank may take; 0: what the machine has free, for all ranks
	Collective string        // who adds up what ranks on GPUs have: one of Collectives
	Algorithms string        // file of algorithms for products on GPUs; "" is none
	Transport  string        // what carries collectives between processes: one of Transports
	TokenFile  string        // file with the secret by which processes know each other; "" is none
	TLS        TLS           // of control messages and of TCP between processes; none if its fields are empty
	Bind       string        // address that other processes reach this one at; "" is the one by which it reaches process 0
	Join       time.Duration // how long processes wait for each other to come
	Heartbeat  time.Duration // between the signs of life of a process
	DeadAfter  time.Duration // a process without one is lost
}

// TLS is files in PEM by which processes know each other: a certificate of this one,
// its key, and the authority that has signed those of all.
type TLS struct{ Cert, Key, CA string }

// Pipeline is how the layers are divided among Parallel.Pipeline ranks, and in which order
// these work on them; see package pipe.
type Pipeline struct {
	Schedule string
	Virtual  int   // stages of each rank
	Layers   []int // of each stage; none: BalancedLayers
}

// Zero is what is sharded and when it is gathered.
type Zero struct {
	Stage     int    // 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters
	Prefetch  int    // units gathered ahead of the one in use
	Recompute string // "none" or "block"
	Offload   Offload
}

// Optimizer is the update rule. Constants the rule does not have are zero.
type Optimizer struct {
	Type        string // "adamw", "adamw8bit", "adam", "sgd", "lion" or "muon"
	LR          float64
	Betas       [2]float64 // adamw, adamw8bit, adam, lion
	Eps         float64    // adamw, adamw8bit, adam, muon
	WeightDecay float64
	Momentum    float64 // sgd, muon
	Nesterov    bool    // muon
	Steps       int     // muon: of the iteration
	Adjust      string  // muon: one of Adjusts
	AdamW       AdamW   // muon: of what is no matrix of a block
	Groups      []Group // of parameters that are updated otherwise; the first that matches one counts
}

// AdamW is the update of parameters beside those of Muon.
type AdamW struct {
	LR          float64
	Betas       [2]float64
	Eps         float64
	WeightDecay float64
}

// Schedule is the learning rate over the steps: a linear rise from 0 over
// Warmup steps, then the curve of Type from Optimizer.LR to MinLR.
type Schedule struct {
	Type   string // "constant", "linear", "cosine", "wsd" or "inverse_sqrt"
	Warmup int    // steps
	MinLR  float64
	Decay  int // the last steps, in which wsd falls
}

// Sampling is the text written at the end of training.
type Sampling struct {
	Prompt      string
	Tokens      int     // to write; 0 is no sample
	Temperature float64 // 0 always takes the likeliest token
	TopK        int     // choose among the k likeliest; 0 is all
	TopP        float64 // choose among the likeliest that together have this probability; 1 is all
	Stop        []string
	Seed        uint64
}

// Reporting is what is measured and published of a run.
type Reporting struct {
	Every       int           // steps between those whose parts are measured; 0 is never
	TensorBoard bool          // events for TensorBoard are written, too
	Listen      string        // address that the run is published at; empty: it is not
	TokenFile   string        // with the secret for that; empty: one in the run folder
	Stall       time.Duration // without a step for so long, the run is not healthy
	Machine     string        // whose peak utilization is a share of: a preset or a file; "" is the GPU's, where that is a preset
}

// Mesh is the arrangement of ranks the stage asks for: stage 0 is shard groups
// of one rank, but with a master one group, of which that has all shards.
func Mesh(c *Config) shard.Mesh {
	p := c.Parallel
	m := shard.Mesh{Pipeline: p.Pipeline, Shard: p.Shard, Replicate: p.Replicate, Context: p.Context, Tensor: p.Tensor}
	if p.Master {
		return m
	}
	return zero.Stage(c.Zero.Stage).Mesh(m)
}

// DataRanks is the number of ranks that read data of their own: those that divide the model or
// sequences read the same.
func (p Parallel) DataRanks() int { return p.Ranks / p.models() }

// models is the number of ranks that divide the model, or the positions of a sequence.
func (p Parallel) models() int { return max(1, p.Pipeline) * max(1, p.Context) * max(1, p.Tensor) }

// TokensPerStep is the number of positions all ranks train on in one step.
func TokensPerStep(c *Config) int { return c.Train.Batch * c.Model.Context }

// On is what ranks compute on, "cpu" or "cuda": Device, or what auto comes to here.
func (c *Config) On() string { return c.on }

// Copy is the job for a caller who changes some of its settings before others see it:
// nobody changes one that was loaded. Elements of slices and maps stay as they are.
func (c *Config) Copy() *Config {
	x := *c
	return &x
}

// Load reads a job file, lays the sets ("key=value", the value in YAML) over
// it, fills in defaults and checks everything that can be checked without
// reading the data. Its error is a Problems that lists all there is to mend. Relative
// paths in the job file are relative to the current directory. Nothing is known of where
// the job is to run: device auto is the CPU.
func Load(file string, sets []string) (*Config, error) { return Here{}.Load(file, sets) }

// Here is where a job is to run, which defaults follow.
type Here struct {
	Processes int // over which the ranks are split evenly; 0 is one
	Ranks     int // of each process, where the job does not say; 0: as many as the job's defaults give
	GPUs      int // that ranks can compute on
}

// Load is Load of a job that is to run there.
func (h Here) Load(file string, sets []string) (*Config, error) {
	root, problems := readFile(file)
	return h.load(file, root, problems, sets, (*reader).checkFiles, (*reader).checkOffload)
}

// load makes a job of a file's nodes and the sets, if the checks find nothing wrong.
func (h Here) load(file string, root *node, problems Problems, sets []string, checks ...func(*reader)) (*Config, error) {
	for _, s := range sets {
		problems = append(problems, overlay(root, s)...)
	}
	r := newReader(file, root)
	r.problems, r.Config.here, r.draft = problems, h, len(checks) == 0
	if !r.problems.Fatal() {
		r.read()
		r.resolve()
		for _, check := range checks {
			check(r)
		}
	}
	if len(r.problems) > 0 {
		r.problems.Sort()
		return nil, r.problems
	}
	return r.Config, nil
}

// LoadTokenizer is the name data.NewTokenizer knows a job's tokenizer by, and
// whether it is said of token files. The files the job names need no longer be
// there.
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

// Source is where the job's data comes from.
func Source(c *Config) data.Source {
	return data.Source{
		Text: c.Data.Text, Tokens: c.Data.Tokens, Documents: documents(c), DType: c.Data.DType, Tokenizer: Tokenizer(c), Validation: c.Data.Validation,
		Context: c.Model.Context, Fit: fitting(c), Batch: c.Train.Batch, Vocab: c.Model.Vocab, Seed: c.Train.Seed, Found: c.found,
	}
}

// fitting is what a sequence's length is a multiple of where it follows from the longest document:
// ranks that divide sequences or matrices need it to be one of theirs. It is 0 where the job or a
// checkpoint says the length, and for models that are made here.
func fitting(c *Config) int {
	if len(c.Data.Documents) == 0 || c.Model.From == "" || c.says("model.context") || c.resumes {
		return 0
	}
	const usual = 64
	return usual * max(1, c.Parallel.Context) * max(1, c.Parallel.Tensor)
}

// FollowsData says whether the length of sequences follows from the longest document.
func FollowsData(c *Config) bool { return fitting(c) > 0 }

// WithContext is the job with sequences of so many tokens, which it did not say.
func (c *Config) WithContext(tokens int) (*Config, error) {
	root := c.root.clone()
	n, _ := parse([]byte(strconv.Itoa(tokens)), place{})
	n.moveTo(place{file: "the longest document"})
	put(root, "model.context", n)
	r := newReader(c.file, root)
	r.Config.network, r.Config.here = c.network, c.here
	r.read()
	r.resolve()
	if len(r.problems) > 0 {
		r.problems.Sort()
		return nil, r.problems
	}
	next := r.Config
	next.found, next.Checkpoint.Dir = c.found, c.Checkpoint.Dir
	next.note("model.context is %d, as the longest document needs; the model takes %d", tokens, c.Model.Context)
	return next, nil
}

// documents are the records of the job's source.
func documents(c *Config) data.Documents {
	k := c.Data.Keys
	date, _ := time.Parse(time.DateOnly, c.Data.Date) // it was checked when it was read
	return data.Documents{
		Learn: c.Data.Learn, Date: date, Skip: c.Data.TooLong == "skip",
		Files: c.Data.Documents, Validation: c.Data.Held, Format: c.Data.Format, Pack: c.Data.Pack, Weights: c.Data.Weights,
		Keys: map[string]string{"text": k.Text, "prompt": k.Prompt, "completion": k.Completion, "messages": k.Messages},
	}
}

// Tokenizer is the name data.NewTokenizer knows the job's by, empty for none.
func Tokenizer(c *Config) string {
	switch {
	case (c.Data.Tokenizer == "gpt2" || c.Data.Tokenizer == "folder") && c.Data.Vocab != "":
		return c.Data.Vocab
	case c.Data.Tokenizer == "none" || c.Data.Tokenizer == "folder": // the folder is missing, which is reported
		return ""
	}
	return c.Data.Tokenizer
}
