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

// Start writes the description of the run.
func (l *Records) Start(h Header) {
	l.steps = h.Steps
	l.to.Info("start", "model", h.Model, "parameters", h.Parameters, "ranks", h.Ranks, "pipeline", h.Pipeline, "context", h.Context, "tensor", h.Tensor, "shard", h.Shard, "replicate", h.Replicate, "stage", h.Stage,
		"precision", h.Precision, "device", h.Device, "batch", h.GlobalBatch, "tokens_per_step", h.TokensPerStep, "steps", h.Steps, "memory_per_rank", h.MemoryPerRank, "out", h.Out)
}

// Step writes a record if the last one is old enough.
func (l *Records) Step(s Step) {
	l.step.Store(int64(s.Step))
	if l.due.step(s, l.steps) {
		l.to.Info("step", "step", s.Step, "steps", l.steps, "loss", finite(s.Loss), "lr", s.LR, "grad_norm", finite(s.GradNorm), "tokens", s.Tokens,
			"tokens_per_second", s.TokensPerSecond, "step_seconds", s.StepSeconds, "skipped", s.Skipped)
	}
}

// Eval writes a record.
func (l *Records) Eval(e Eval) {
	l.to.Info("evaluation", "step", e.Step, "val_loss", finite(e.ValLoss))
}

// Note writes a record.
func (l *Records) Note(s string) { l.to.Info(s, "step", l.step.Load()) }

// Warn writes a record of level WARN.
func (l *Records) Warn(s string) { l.to.Warn(s, "step", l.step.Load()) }

// Done writes the end.
func (l *Records) Done(s Summary) {
	l.to.Info("done", "steps", s.Steps, "stopped", s.Stopped, "loss", finite(s.Loss), "val_loss", finite(s.ValLoss), "tokens", s.Tokens, "seconds", s.Seconds,
		"memory_per_rank", s.MemoryPerRank, "out", s.Out, "sample", s.Sample)
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
