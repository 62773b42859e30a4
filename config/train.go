package config

import (
	"fmt"
	"math"
	"slices"

	"zeroth/device"
	"zeroth/job/hf"
	"zeroth/nn"
)

// Training is the length of a run and the size of its steps. Batch = MicroBatch × Accumulate ×
// Shard × Replicate of Parallel.
type Training struct {
	Steps       int     // with Epochs, 0 until Settled
	Epochs      float64 // 0: Steps is given
	Batch       int     // sequences per step, over all ranks
	MicroBatch  int     // sequences per micro-batch of a rank
	Accumulate  int     // micro-batches per step
	Clip        float64 // largest global gradient norm; 0 is off
	Sums        string  // "order" or "tree": how gradients are added
	Delayed     bool    // forward and backward use the parameters from before the last update
	Seed        uint64  // of initial parameters and data order
	EvalEvery   int     // steps between evaluations; 0: never
	EvalPart    float64 // of the run's steps that EvalEvery is, below 1; 0: EvalEvery is given
	EvalBatches int     // batches of Batch sequences per evaluation
	LossChunk   int     // tokens whose logits are in memory at the same time
	MLPChunk    int     // tokens whose MLP's hidden layer is in memory at the same time; 0: all
	EarlyStop   EarlyStop
	FinalModel  string   // "best" or "last": the evaluated step, or the last one, whose parameters are the run's result
	Freeze      []string // patterns of parameters that are not trained
	LoRA        LoRA
	RouterAux   float64 // coefficient of the balancing loss of experts; 0 is off
}

// Best reports whether the run's result is the step with the best evaluation.
func (t *Training) Best() bool { return t.FinalModel == "best" }

// EarlyStop ends a run when its evaluations stop improving.
type EarlyStop struct {
	Metric   string  // of evaluations: "val_loss", or one of a program's network
	Mode     string  // "min" or "max": whether lower or higher is better
	Patience int     // consecutive evaluations without improvement before the run ends; 0 is never
	MinDelta float64 // an evaluation counts as improvement if it is better than the best by more than this
}

// LoRA is low-rank adapters. With them, only the adapters are trained.
type LoRA struct {
	From string // folder of the adapter to begin with; "" for fresh ones
	nn.LoRA
}

// trainKeys returns the keys of training.
func (c *Config) trainKeys(on string) []field {
	t, p := &c.Train, &c.Parallel
	return []field{
		{key: "train.steps", value: count(&t.Steps, 1, MostSteps),
			initial: "200", derived: t.Epochs > 0, lasts: true,
			doc:     "updates of the parameters",
			when:    "instead of train.epochs",
			follows: []string{"train.epochs"}},
		{key: "train.epochs", value: some(&t.Epochs), rule: "none", like: "2", lasts: true,
			doc:     "passes over the data, such as 2 or 0.5, instead of steps; the last step is filled up",
			when:    "instead of train.steps",
			follows: []string{"train.steps"},
			remark:  pick(t.Steps > 0, fmt.Sprintf("steps: %d", t.Steps), "")},
		{key: "train.batch", value: count(&t.Batch, 1, MostBatch),
			rule: "micro_batch × accumulate × shard × replicate", like: "32", lasts: true, derived: true,
			doc: "sequences per step over all ranks; any two of batch, micro_batch and accumulate " +
				"determine the third"},
		{key: "train.micro_batch", value: count(&t.MicroBatch, 1, MostBatch),
			rule: "4, or as batch requires", like: "4",
			doc:  "sequences that a rank processes at a time",
			then: func() { t.MicroBatch = 4 }},
		{key: "train.accumulate", value: count(&t.Accumulate, 1, MostBatch),
			rule: "1, or as batch requires", like: "2",
			doc: "micro-batches of a rank per update; if batch does not divide evenly, some replicas have one " +
				"less",
			then: func() { t.Accumulate = 1 },
			remark: pick(t.Batch == t.MicroBatch*t.Accumulate*p.DataRanks(),
				fmt.Sprintf("batch: %d = micro_batch × accumulate × %s", t.Batch, p.DataName()), "")},
		{key: "train.clip", value: real(&t.Clip, atLeast0, "a number of at least 0, where 0 is off"),
			initial: "1.0", lasts: true,
			doc: "maximum global norm of the gradient; 0: off"},
		{key: "train.router_aux", value: least0(&t.RouterAux).omitted(func() bool { return c.Model.Experts.Count == 0 }),
			rule: "0; with model.from, router_aux_loss_coef if its output_router_logits is true", like: "0.01", lasts: true,
			doc: "coefficient of the balancing loss of experts (Switch, as transformers computes it), which is " +
				"averaged over micro-batches; 0: off",
			when: "of models with experts"},
		{key: "train.sums", value: choice(&t.Sums, []string{"order", "tree"}), initial: "order",
			doc: "order | tree: gradients are added by ranks and micro-batches in order, or in a binary tree over " +
				"the step's micro-batches, whose bits do not depend on parallel.shard, replicate, accumulate or zero.stage"},
		{key: "train.delayed_update", value: flag(&t.Delayed), initial: "false", lasts: true,
			doc: "steps use the parameters from before the last update instead of waiting for it; " +
				"docs/training.md describes the cost",
			not: refuse(t.Delayed && undelayed(c, on) != "", "updates are delayed, "+undelayed(c, on),
				"want delayed_update: false, or another of the two",
				"precision", "optimizer.type", "zero.offload.optimizer", "zero.offload.parameters")},
		{key: "train.seed", value: seed(&t.Seed), initial: "1", lasts: true,
			doc: "seed of the initial parameters and the order of the data"},
		{key: "train.eval_every", value: orPart(count(&t.EvalEvery, 0, MostSteps), &t.EvalEvery, &t.EvalPart),
			rule: "50; 0 without validation", like: "100",
			doc: "steps between evaluations, or their share of the run; 0: never"},
		{key: "train.eval_batches", value: count(&t.EvalBatches, 1, hf.Most), initial: "8",
			doc: "batches per evaluation, each with train.batch sequences; the same ones on any number of " +
				"ranks, each once"},
		{key: "train.loss_chunk", value: count(&t.LossChunk, 1, MostBatch),
			rule: "1024; on GPUs 4 × the model's width, from 1024 to 4096", like: "1024",
			doc: "tokens whose logits are in memory at a time"},
		{key: "train.mlp_chunk", value: count(&t.MLPChunk, 0, MostBatch), initial: "0", like: "8192",
			doc: "tokens whose hidden layer of the MLP is in memory at a time, also while a block is " +
				"recomputed; 0: all of a micro-batch",
			not: refuse(t.MLPChunk > 0 && slices.Index(Recomputes, c.Zero.Recompute) < slices.Index(Recomputes, "mlp"),
				"recompute: "+c.Zero.Recompute+" saves the hidden layer of all tokens",
				"want recompute: mlp, linear or block, or mlp_chunk: 0", "zero.recompute")},
	}
}

// stopKeys returns the keys of early stopping and of the choice of the final model.
func (c *Config) stopKeys() []field {
	t := &c.Train
	const never = "train.early_stop.patience is 0: the run never ends early"
	stops := onlyIf("with train.early_stop.patience", t.EarlyStop.Patience > 0, "train.early_stop.patience", never)
	chooses := onlyIf("with train.early_stop.patience, or train.final_model: best", t.EarlyStop.Patience > 0 || t.Best(),
		"train.early_stop.patience", never+", and its final model is the last")
	return []field{
		{key: "train.early_stop.metric", value: measure(&t.EarlyStop.Metric),
			initial: "val_loss", lasts: true,
			doc: "metric of evaluations that must improve: val_loss, or one of a program's network " +
				"(Model.Metrics)",
			only: chooses},
		{key: "train.early_stop.mode", value: choice(&t.EarlyStop.Mode, []string{"min", "max"}),
			initial: "min", lasts: true,
			doc:     "min | max: whether a lower or a higher metric is better",
			only:    chooses,
			follows: []string{"train.early_stop.metric"},
			not: refuse(t.EarlyStop.Metric == "val_loss" && t.EarlyStop.Mode == "max",
				"a higher validation loss is not better", "want mode: min, or another metric",
				"train.early_stop.metric")},
		{key: "train.early_stop.patience", value: count(&t.EarlyStop.Patience, 0, MostSteps),
			initial: "0", like: "3", lasts: true,
			doc: "stop after this many evaluations in a row without improvement; 0: never",
			not: refuse(t.EarlyStop.Patience > 0 && t.EvalEvery == 0,
				"early stopping needs evaluations, but the job has none",
				"want train.eval_every of at least 1 and data.validation above 0", "train.eval_every")},
		{key: "train.early_stop.min_delta", value: least0(&t.EarlyStop.MinDelta),
			initial: "0", like: "0.01", lasts: true,
			doc:  "an evaluation is an improvement if it is better than the best before by more than this",
			only: stops},
		{key: "train.final_model", value: choice(&t.FinalModel, []string{"best", "last"}),
			rule: "best with early_stop.patience, else last", like: "best", lasts: true,
			doc: "best | last: the step whose parameters a finished run writes to model/ and adapter/: that of the " +
				"best evaluation, which is always saved, or the last",
			follows: []string{"train.early_stop.patience"},
			then:    func() { t.FinalModel = pick(t.EarlyStop.Patience > 0, "best", "last") },
			not: refuse(t.Best() && t.EarlyStop.Patience == 0 && t.EvalEvery == 0,
				"the best model is that of an evaluation, but the job has none",
				"want train.eval_every of at least 1 and data.validation above 0", "train.eval_every")},
	}
}

// tuningKeys returns the keys of the choice of what is trained.
func (c *Config) tuningKeys() []field {
	t := &c.Train
	adapters := onlyIf("with train.lora.rank or from", t.LoRA.Rank > 0 || t.LoRA.From != "",
		"train.lora.rank", "train.lora.rank is 0: there are no adapters")
	return []field{
		{key: "train.freeze", value: texts(&t.Freeze),
			rule: "none", like: `["model.embed_tokens.*"]`, lasts: true,
			doc: "patterns of names, such as model.embed_tokens.*, of parameters that are used but not trained"},
		{key: "train.lora.from", value: path(&t.LoRA.From), rule: "fresh adapters", like: "runs/a/adapter",
			doc: "folder of a LoRA adapter (PEFT's format) to continue training; it sets the other keys " +
				"of lora"},
		{key: "train.lora.rank", value: count(&t.LoRA.Rank, 0, mostLoRA), initial: "0", lasts: true,
			doc: "rank of the LoRA adapters; only these and modules_to_save are trained; 0: no adapters"},
		{key: "train.lora.alpha", value: positive(&t.LoRA.Alpha), rule: "rank", like: "32", lasts: true,
			doc:  "adapters are multiplied by alpha / rank",
			only: adapters,
			then: func() { t.LoRA.Alpha = float64(t.LoRA.Rank) }},
		{key: "train.lora.rslora", value: flag(&t.LoRA.Stabilized), initial: "false", lasts: true,
			doc:  "adapters are multiplied by alpha / √rank instead (rsLoRA)",
			only: adapters},
		{key: "train.lora.targets", value: texts(&t.LoRA.Targets),
			rule: "PEFT's: q_proj and v_proj, or c_attn, or qkv_proj", like: `["q_proj", "v_proj"]`, lasts: true,
			doc:  "linear layers with adapters, by the ends of their names, or [all-linear]",
			only: adapters},
		{key: "train.lora.dropout", value: dropped(&t.LoRA.Dropout), initial: "0", lasts: true,
			doc:  "dropout probability of the inputs of adapters",
			only: adapters},
		{key: "train.lora.rank_pattern", value: perLayer(&t.LoRA.Ranks, rankOf),
			rule: "none", like: `{q_proj: 8, layers.0.mlp.down_proj: 32}`, lasts: true,
			doc: "ranks of some layers, by the ends of their names or regular expressions for these; the " +
				"first match applies",
			only: adapters},
		{key: "train.lora.alpha_pattern", value: perLayer(&t.LoRA.Alphas, positive),
			rule: "none", like: `{q_proj: 16}`, lasts: true,
			doc:  "alphas of some layers, like rank_pattern",
			only: adapters},
		{key: "train.lora.modules_to_save", value: texts(&t.LoRA.Saved),
			rule: "none", like: `["embed_tokens", "lm_head"]`, lasts: true,
			doc:  "modules without adapters that are trained and saved whole, by the ends of their names",
			only: adapters},
	}
}

// mostLoRA bounds the rank of adapters.
const mostLoRA = 1 << 14

// rankOf is a rank of adapters.
func rankOf(p *float64) value {
	whole := func(x float64) bool { return x == math.Trunc(x) && x >= 1 && x <= mostLoRA }
	return real(p, whole, fmt.Sprintf("a whole number from 1 to %d", mostLoRA))
}

// undelayed returns why the job does not support delayed updates; "" if it does.
func undelayed(c *Config, on string) string {
	switch {
	case c.Precision == device.F16:
		return "which fp16 does not support: the loss scale would follow a step late"
	case c.Optimizer.Type == "muon":
		return "which muon does not support"
	case c.Zero.Offload.Optimizer == "disk":
		return "which optimizer state on disk does not support"
	case c.Zero.Offload.Parameters != "none":
		return "which offloaded parameters do not support"
	case c.Zero.Offload.State() && on == "cuda":
		return "which GPUs with offloaded state do not support"
	}
	return ""
}
