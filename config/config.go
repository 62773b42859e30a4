package config

import (
	"time"

	"zeroth/device"
	"zeroth/job/hf"
	"zeroth/nn"
)

// Config is what a job file says, with a value for every key that it leaves out. The table in
// fields.go lists the keys with their defaults and meanings.
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

// DataRanks returns the number of ranks that read data of their own. Ranks that divide the model
// or a sequence read the same data.
func (p Parallel) DataRanks() int { return p.Ranks / p.Models() }

// Models returns the number of ranks that divide the model or the positions of a sequence.
func (p Parallel) Models() int { return max(1, p.Pipeline) * max(1, p.Context) * max(1, p.Tensor) }

// DataName returns the name for the number of ranks with their own data.
func (p Parallel) DataName() string { return pick(p.Models() > 1, "shard × replicate", "ranks") }
