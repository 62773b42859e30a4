package config

import (
	"zeroth/device"
	"zeroth/job/hf"
)

// Config holds the keys of a job file, with a default for every key that it leaves out. The table in
// fields.go lists the keys with their defaults and meanings.
type Config struct {
	Model            hf.Model
	Merged           []string // folders of adapters that are added to the parameters of Model.From
	Data             Data
	Train            Training
	Device           string // "auto", "cpu" or "cuda", as in the job file; see On
	Parallel         Parallel
	Faults           Faults
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
