package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"zeroth/job/report"
)

// Stopped is the error of a run whose context ended before its last step and evaluation.
type Stopped struct {
	Step       int    // steps done
	Checkpoint string // that --resume latest continues from; empty if there is none
	Late       bool   // this process had come back, and had not joined the others yet
	cause      error  // of the context
}

func (s *Stopped) Error() string {
	at := "before step 1"
	switch {
	case s.Late:
		return fmt.Sprintf("%v before this process had joined the others", s.cause)
	case s.Step > 0:
		at = fmt.Sprintf("after step %d", s.Step)
	}
	if s.Checkpoint == "" {
		return fmt.Sprintf("%v %s; there is no checkpoint to continue from", s.cause, at)
	}
	return fmt.Sprintf("%v %s; continue with --resume latest, from %s", s.cause, at, s.Checkpoint)
}

func (s *Stopped) Unwrap() error { return s.cause }

// stoppedAt returns the error of a run that was asked to stop.
func (r *run) stoppedAt(why error) error {
	return &Stopped{Step: r.steps, Checkpoint: r.latest(), Late: r.late, cause: why}
}

// stoppedState is the report.End.State of a run that was asked to stop.
const stoppedState = "stopped"

// ending describes for metrics.jsonl how the run ends.
func (r *run) ending(ctx context.Context, err error) report.End {
	e := report.End{Step: r.rec.sum.Steps, Time: report.Now(), State: "done"}
	switch why := cmp.Or(err, r.whyStopped(ctx)); {
	case why == nil:
	case r.stopped && err == nil || ctx.Err() != nil && errors.Is(why, context.Cause(ctx)):
		e.State, e.Why = stoppedState, fmt.Sprintf("%.2000s", why)
	default:
		e.State, e.Why = "failed", fmt.Sprintf("%.2000s", why)
	}
	return e
}

// whyStopped returns the reason to stop, nil if the run came to its end.
func (r *run) whyStopped(ctx context.Context) error {
	if !r.stopped {
		return nil
	}
	return cmp.Or(context.Cause(ctx), ErrElsewhere)
}
