package report

import (
	"log/slog"
	"math"
	"sync/atomic"
)

// Records is an Observer that writes records for supervisors and programs: the same events as
// Lines, with named values.
type Records struct {
	to    *slog.Logger
	due   due
	steps int
	step  atomic.Int64 // the last one done
}

// NewRecords writes to l.
func NewRecords(l *slog.Logger) *Records { return &Records{to: l} }

// Step writes a record if the last one is old enough.
func (l *Records) Step(s Step) {
	l.step.Store(int64(s.Step))
	if l.due.step(s, l.steps) {
		l.to.Info("step", "step", s.Step, "steps", l.steps, "loss", finite(s.Loss), "lr", s.LR, "grad_norm", finite(s.GradNorm), "tokens", s.Tokens,
			"tokens_per_second", s.TokensPerSecond, "step_seconds", s.StepSeconds, "skipped", s.Skipped)
	}
}

// Event writes a record.
func (l *Records) Event(e Event) {
	switch e := e.(type) {
	case Header:
		l.start(e)
	case Eval:
		l.to.Info("evaluation", "step", e.Step, "val_loss", finite(e.ValLoss))
	case Note:
		l.to.Info(string(e), "step", l.step.Load())
	case Warning:
		l.to.Warn(string(e), "step", l.step.Load())
	case Summary:
		l.to.Info("done", "steps", e.Steps, "stopped", e.Stopped, "loss", finite(e.Loss), "val_loss", finite(e.ValLoss), "tokens", e.Tokens, "seconds", e.Seconds,
			"memory_per_rank", e.MemoryPerRank, "out", e.Out, "sample", e.Sample)
	}
}

// start writes the description of the run.
func (l *Records) start(h Header) {
	l.steps = h.Steps
	l.to.Info("start", "model", h.Model, "parameters", h.Parameters, "ranks", h.Ranks, "pipeline", h.Pipeline, "context", h.Context, "tensor", h.Tensor, "shard", h.Shard, "replicate", h.Replicate, "stage", h.Stage,
		"precision", h.Precision, "device", h.Device, "batch", h.GlobalBatch, "tokens_per_step", h.TokensPerStep, "steps", h.Steps, "memory_per_rank", h.MemoryPerRank, "out", h.Out)
}

// Close implements Progress.
func (l *Records) Close() {}

// finite returns x, or nil if x is not finite, because JSON has no such numbers.
func finite(x float64) any {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return x
}

// due selects the steps to print: about one per second and about 200 per run at most, always
// including the first and the last.
type due struct {
	last    int
	seconds float64 // seconds of steps since the last one printed
}

func (d *due) step(s Step, steps int) bool {
	d.seconds += s.StepSeconds
	if (d.seconds < 1 || s.Step-d.last < steps/200) && d.last > 0 && s.Step < steps {
		return false
	}
	d.seconds, d.last = 0, s.Step
	return true
}
