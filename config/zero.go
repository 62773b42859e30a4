package config

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/job/hf"
	"zeroth/offload"
	"zeroth/pipe"
)

// Zero selects what is sharded and when it is gathered.
type Zero struct {
	Stage     int    // 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters
	Prefetch  int    // units gathered ahead of the one in use
	Recompute string // one of Recomputes
	Offload   Offload
}

// zeroKeys returns the keys of sharding.
func (c *Config) zeroKeys() []field {
	p, z := &c.Parallel, &c.Zero
	return []field{
		{key: "zero.stage", value: stage(&z.Stage), rule: "3; 0 with parallel.master, and for adapters on one rank that stores the parameters", like: "2",
			doc:  "what is sharded: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters",
			then: func() { z.Stage = pick(p.Master, 0, 3) }},
		{key: "zero.prefetch", value: count(&z.Prefetch, 0, hf.MostLayers), initial: "1",
			doc: "units gathered ahead of the one in use"},
		{key: "zero.recompute", value: choice(&z.Recompute, Recomputes), initial: "none",
			doc: "activations that a block computes again in the backward pass instead of saving: elementwise (norms and the MLP's activation), mlp (also its hidden layer), linear (all but attention), block (all)"},
		{key: "zero.offload.optimizer", value: choice(&z.Offload.Optimizer, TierNames), initial: "none",
			doc: "none | host | disk: where to store master copies and optimizer states between updates; " +
				"the gradients are then in host memory"},
		{key: "zero.offload.parameters", value: choice(&z.Offload.Parameters, TierNames), initial: "none",
			doc:  "none | host | disk: where to store parameter shards between uses; needs stage 3",
			when: "at zero.stage 3",
			not: refuse(z.Stage < 3 && z.Offload.Parameters != "none",
				fmt.Sprintf("at stage %d every rank has all parameters: there are no shards to offload", z.Stage),
				"want stage: 3, or parameters: none", "zero.stage")},
		{key: "zero.offload.activations", value: choice(&z.Offload.Activations, TierNames[:2]), initial: "none",
			doc: "none | host: where to store the input of every block between the passes and, with " +
				"zero.recompute linear, attention's output; for ranks on GPUs",
			when: "with zero.recompute linear or block, on GPUs",
			not:  c.unmovable()},
		{key: "zero.offload.path", value: path(&z.Offload.Path), rule: "needed for disk", like: "/mnt/nvme",
			doc: "existing folder for the ranks' files, on the disk to use",
			only: onlyIf("with offloading to disk", z.Offload.Disk(), "zero.offload.optimizer",
				"nothing is offloaded to disk"),
			not: refuse(z.Offload.Disk() && z.Offload.Path == "", "no folder to offload to", OffloadPath,
				"zero.offload.optimizer", "zero.offload.parameters")},
		{key: "zero.offload.buffers", value: count(&z.Offload.Buffers, 1, 1<<10), initial: "4",
			doc:  "pieces of up to 2^20 elements in transfer at once, in each direction",
			only: onlyIf("with offloading", z.Offload.State(), "zero.offload.optimizer", "nothing is offloaded")},
		{key: "zero.offload.ratio", value: real(&z.Offload.Ratio, fraction, "a fraction from 0 to 1"),
			initial: "1.0",
			doc:     "share of the optimizer state to offload, beginning with the last units",
			only: onlyIf("with zero.offload.optimizer", z.Offload.Optimizer != "none", "zero.offload.optimizer",
				"no optimizer state is offloaded")},
	}
}

// unmovable refuses settings that activations in host memory cannot be combined with.
func (c *Config) unmovable() (no refusal) {
	z := c.Zero
	switch {
	case z.Offload.Activations == "none":
	case z.Recompute != "linear" && z.Recompute != "block":
		no = refuse(true, fmt.Sprintf("with recompute %s, blocks save too much to copy it while others are computed", z.Recompute),
			"want recompute: linear or block", "zero.recompute")
	case c.Parallel.Pipeline > 1 && c.Pipeline.Schedule == string(pipe.ZBH1):
		no = refuse(true, "ZBH1 reads activations again after the backward pass", "want pipeline.schedule: 1F1B", "pipeline.schedule")
	}
	return no
}

// Offload selects what is moved out of device memory between uses.
type Offload struct {
	Optimizer   string  // of TierNames: master copies and optimizer states; their gradients are then on the host
	Parameters  string  // "none", "host" or "disk": the shards, at stage 3
	Activations string  // "none" or "host": what blocks save
	Path        string  // folder of the files on disk
	Buffers     int     // pieces staged at the same time
	Ratio       float64 // offloaded fraction of the optimizer state
}

// TierNames lists the names of offload's places, in its order.
var TierNames = []string{"none", "host", "disk"}

// TierOf returns the tier with a name in TierNames.
func TierOf(name string) offload.Tier { return offload.Tier(slices.Index(TierNames, name)) }

// Config returns the offload configuration without devices, queues and files.
func (o Offload) Config() offload.Config {
	return offload.Config{Optimizer: TierOf(o.Optimizer), Params: TierOf(o.Parameters), Ratio: o.Ratio, Buffers: o.Buffers}
}

// Any reports whether anything is offloaded.
func (o Offload) Any() bool { return o.State() || o.Activations != "none" }

// State reports whether optimizer state or parameters are offloaded.
func (o Offload) State() bool { return o.Optimizer != "none" || o.Parameters != "none" }

// Disk reports whether anything is offloaded to disk.
func (o Offload) Disk() bool { return o.Optimizer == "disk" || o.Parameters == "disk" }

// String describes what is offloaded, empty for nothing: "optimizer on disk, parameters on host".
func (o Offload) String() string {
	var parts []string
	if o.Optimizer != "none" && o.Ratio < 1 {
		parts = append(parts, fmt.Sprintf("%s of the optimizer on %s", FormatReal(o.Ratio), o.Optimizer))
	} else if o.Optimizer != "none" {
		parts = append(parts, "optimizer on "+o.Optimizer)
	}
	if o.Parameters != "none" {
		parts = append(parts, "parameters on "+o.Parameters)
	}
	if o.Activations != "none" {
		parts = append(parts, "activations on "+o.Activations)
	}
	return strings.Join(parts, ", ")
}

// OffloadPath is the advice given when offloading needs a folder.
const OffloadPath = "want path: an existing folder on the disk to use"

func fraction(x float64) bool { return x >= 0 && x <= 1 }
