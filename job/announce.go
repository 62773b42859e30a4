package job

import (
	"fmt"

	"zeroth/data"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/job/report"
	"zeroth/job/spec"
)

// shortSchedule returns a note if the run has fewer steps than its schedule takes.
func shortSchedule(c *spec.Job) string {
	s, steps := c.Schedule, c.Train.Steps
	switch left := steps - s.Warmup - s.Lag; {
	case left < 0:
		return fmt.Sprintf("schedule.warmup of %s steps is longer than the run of %s: the learning rate only rises to %.3g and never reaches optimizer.lr %.3g",
			show.Grouped(int64(s.Warmup)), show.Grouped(int64(steps)), setup.Schedule(c).At(steps-1), c.Optimizer.LR)
	case s.Type == "wsd" && s.Decay > left:
		return fmt.Sprintf("schedule.decay of %s steps is longer than the rest of the run after the warmup: the learning rate falls in the last %s steps",
			show.Grouped(int64(s.Decay)), show.Grouped(int64(left)))
	}
	return ""
}

// header returns the lines printed before step 1.
func header(j *setup.Job, set *data.Set, out string, ranks []*setup.Rank) report.Header {
	c, n := j.Job, 0
	for _, p := range spec.Parameters(c) {
		n += p.Numel()
	}
	host := int64(0)
	if h := ranks[0].Host; h != nil {
		host = h.Usage().Peak.Total()
	}
	return report.Header{
		Start: report.Start{Model: hf.Title(spec.Network(c)), Parameters: int64(n), Ranks: c.Parallel.Ranks, Stage: c.Zero.Stage,
			Precision: c.Precision.String(), Device: setup.Where(j), Steps: c.Train.Steps, TokensPerStep: spec.TokensPerStep(c), Unit: spec.Unit(c)},
		Groups: spec.Groups(c), Mesh: spec.Mesh(c), Master: c.Parallel.Master, GlobalBatch: c.Train.Batch, Epochs: c.Train.Epochs,
		DataTokens: int64(set.Train.Positions(0, set.Train.Windows())), Out: out, MemoryPerRank: peak(ranks),
		HostPerRank: host, DiskPerRank: ranks[0].Trainer.DiskBytes(), Offload: c.Zero.Offload.String(),
	}
}
