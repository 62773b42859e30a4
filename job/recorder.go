package job

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zeroth/config"
	"zeroth/internal/input"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/state"
	"zeroth/job/watch"
)

// recorder passes a run's progress on to the observer, writes it to the run
// folder and sums it up. Rank 0 alone uses it.
type recorder struct {
	report.Observers
	out     string
	log     *report.Log // what earlier starts have left
	metrics *report.Metrics
	events  *report.Events // nil: none are written
	mlflow  *report.MLflow // nil: nothing is sent
	begun   report.Start
	watch   *watch.State // may be nil
	sum     report.Summary
	account func(step int) *report.Account
	stepped bool // a step was done
	drawn   bool // the losses
	owed    bool // log has the step this run begins at, but not its evaluation
	has     int  // step of log's last evaluation, which is not recorded again
	knows   int  // log's last step, likewise
	goesOn  bool // though its files cannot be written: checkpoint.on_error is continue
	late    bool // the last line is not in metrics.jsonl, and a warning was given
}

// record opens the run folder's files; of the metrics of an earlier run, or of a lost process, it keeps those up to the step
// this one begins at.
func (r *run) record(step int, fresh bool) (*recorder, error) {
	if err := os.MkdirAll(r.Out, 0o777); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	if err := writeJob(filepath.Join(r.Out, "job.yaml"), r.file, fresh); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	path := filepath.Join(r.Out, "metrics.jsonl")
	l, err := report.TrimMetrics(path, step, r.observers.Note)
	if err != nil {
		return nil, err
	}
	m, err := report.OpenMetrics(path)
	if err != nil {
		return nil, err
	}
	rec := r.silent()
	rec.Observers, rec.log, rec.metrics, rec.owed = append(report.Observers{m}, r.observers...), l, m, l.LacksEval(step)
	rec.sum.Steps = step
	if n := len(l.Steps); n > 0 {
		rec.knows = l.Steps[n-1].Step
	}
	if n := len(l.Evals); n > 0 {
		rec.has = l.Evals[n-1].Step
	}
	if r.c.Report.TensorBoard {
		err = rec.writeEvents(r.file)
	}
	return rec, err
}

// silent returns the recorder of a process that writes no files.
func (r *run) silent() *recorder {
	return &recorder{
		Observers: r.observers, out: r.Out, goesOn: r.c.Checkpoint.OnError == "continue", watch: r.watch,
		account: func(step int) *report.Account { return report.NewAccount(r.job, step, r.ranks) },
		sum:     report.Summary{Steps: r.start.Step, Loss: math.NaN(), ValLoss: math.NaN(), Out: r.Out},
	}
}

// writeJob writes the effective configuration atomically, unless it is there: the disk may be full. In a fresh run
// the file must not exist.
func writeJob(path string, content []byte, fresh bool) error {
	if fresh && input.Exists(path) {
		return fmt.Errorf("%s: %w", path, os.ErrExist)
	}
	if was, err := input.Read(path, int64(len(content))); err == nil && bytes.Equal(was, content) {
		return nil
	}
	return input.WriteBytes(path, content)
}

// writeEvents begins to write events for TensorBoard.
func (r *recorder) writeEvents(job []byte) (err error) {
	if r.events, err = report.OpenEvents(r.out, job, r.log); err != nil {
		r.events = nil
		return r.without(err)
	}
	r.Observers = append(report.Observers{r.metrics, r.events}, r.Observers[1:]...)
	return nil
}

// without returns the error of the events, unless the job continues without them.
func (r *recorder) without(events error) error {
	if r.goesOn {
		r.Warn(fmt.Sprintf("%v: training continues without TensorBoard events; --resume writes all of them", events))
		return nil
	}
	return events
}

// sendMLflow begins to send to the job's MLflow server.
func (r *recorder) sendMLflow(c *spec.Job) {
	var params [][2]string
	for _, key := range config.Keys() {
		if text := c.Text(key); text != "" {
			params = append(params, [2]string{key, text})
		}
	}
	r.mlflow = report.OpenMLflow(c.Report.MLflow, c.Report.Experiment, r.out, r.begun, params)
	r.Observers = append(r.Observers, r.mlflow)
}

// begin writes the line that describes this start of the run.
func (r *recorder) begin(s report.Start) error {
	s.Run = cmp.Or(r.log.Run(), strings.ToLower(rand.Text()[:12]))
	r.begun = s
	r.Event(s)
	r.watch.Earlier(r.log)
	r.log.Steps, r.log.Evals = nil, nil // a quarter of a GB for a million steps
	return r.wrote()
}

// memory records the memory that ranks hold and the plan, after the first step and at the end.
func (r *recorder) memory(step int) (*report.Account, error) {
	a := r.account(step)
	r.Event(a)
	return a, r.wrote()
}

// wrote returns the error of the last line of the metrics, or nil if the job continues without
// its files; the line is then written with the next ones.
func (r *recorder) wrote() error {
	err := r.metrics.Err()
	if r.events != nil && r.events.Err() != nil {
		if wrong := r.without(r.events.Err()); wrong != nil {
			return cmp.Or(err, wrong)
		}
		_ = r.closeEvents() // the error that was reported
	}
	if r.mlflow != nil {
		if trouble := r.mlflow.Trouble(); trouble != "" {
			r.Warn(trouble)
		}
	}
	if !r.goesOn {
		return err
	}
	switch late := err != nil; {
	case late && !r.late:
		r.Warn(fmt.Sprintf("%v: training continues; the lines are written when possible", err))
	case !late && r.late:
		r.Note("metrics.jsonl is complete again")
	}
	r.late = err != nil
	return nil
}

func (r *recorder) step(s report.Step) error {
	if !r.stepped {
		r.stepped = true
		if _, err := r.memory(s.Step); err != nil {
			return err
		}
	}
	r.sum.Steps, r.sum.Loss, r.sum.Tokens = s.Step, s.Loss, s.Tokens
	r.sum.Seconds += s.StepSeconds
	if peak := r.begun.PeakFlops; peak > 0 {
		s.MFU = r.begun.ModelFlops / s.StepSeconds / peak
		r.sum.MFU = r.begun.ModelFlops * float64(s.Step-r.begun.Step) / r.sum.Seconds / peak
	}
	if s.Step <= r.knows {
		return nil // a process that was lost has recorded the step that this one finishes
	}
	r.Step(s)
	return r.wrote()
}

// saved reports how a save ended.
func (r *recorder) saved(end state.Saved) {
	if end.Err != nil {
		r.Warn(end.String())
		return
	}
	r.Note(end.String())
}

func (r *recorder) eval(e report.Eval) error {
	if r.sum.ValLoss = e.ValLoss; e.Step == r.has {
		return nil
	}
	r.has = e.Step
	r.Event(e)
	return r.wrote()
}

// close closes the metrics and draws them unless that was done.
func (r *recorder) close(end report.End) error {
	r.Event(end)
	if r.mlflow != nil {
		if err := r.mlflow.Close(end); err != nil {
			r.Warn(err.Error())
		}
	}
	if r.events != nil {
		if err := r.closeEvents(); err != nil && !r.goesOn {
			_ = r.metrics.Close() // err is the one to report
			return err
		}
	}
	switch err := r.metrics.Close(); {
	case err != nil && r.goesOn:
		r.Warn(fmt.Sprintf("%v: %d lines are missing from it", err, r.metrics.Late()))
	case err != nil:
		return err // there is no room for a drawing either
	}
	return r.draw()
}

// closeEvents ends the events.
func (r *recorder) closeEvents() error {
	e := r.events
	r.events, r.Observers = nil, slices.DeleteFunc(r.Observers, func(o report.Observer) bool { return o == e })
	return e.Close()
}

// draw draws the metrics once.
func (r *recorder) draw() error {
	if r.drawn {
		return nil
	}
	r.drawn = true
	l, err := report.ReadLog(filepath.Join(r.out, "metrics.jsonl"))
	if err != nil {
		return err
	}
	if l.Damage != nil {
		r.Warn(fmt.Sprintf("%v: %d unreadable lines are not drawn", l.Damage, l.Lost))
	}
	if len(l.Steps) == 0 {
		return nil
	}
	err = report.WriteLossSVG(filepath.Join(r.out, "loss.svg"), l.Steps, l.Evals)
	if err != nil && r.goesOn {
		r.Warn(err.Error())
		return nil
	}
	return err
}
