package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"zeroth/checkpoint"
	"zeroth/checkpoint/store"
	"zeroth/checkpoint/vfs"
	"zeroth/collective/rendezvous"
	"zeroth/config"
	"zeroth/data"
	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/input/s3"
	"zeroth/internal/launch"
	"zeroth/internal/setup"
	"zeroth/internal/world"
	"zeroth/job/hf"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/state"
	"zeroth/job/trace"
	"zeroth/job/watch"
	"zeroth/nn"
	"zeroth/optim"
)

// Options are the inputs of a run other than its job.
type Options struct {
	// The program provides these if the job file says so: the network (model.family: program), the
	// data (data.program: true) with samples for evaluations, which may be nil, and the update rule
	// (optimizer.type: program). All ranks of a process share them.
	Model            *nn.Model
	Data, Validation data.Samples
	Rule             optim.Rule

	// Out is the run folder: a new or empty one, or the folder of the run to resume. Processes other
	// than 0 may leave it empty and use that of process 0.
	Out string

	// Resume is the checkpoint to continue from: "latest", "best", a step, or a checkpoint's folder. Empty
	// starts afresh, and so does "latest" with a note if there is no checkpoint yet. In the folder of
	// the run that saved the checkpoint, metrics.jsonl is cut after the checkpoint's step.
	Resume string

	Observer report.Observer // receives the run's progress; may be nil
	Trace    *trace.Trace    // receives the work of every rank's queues, on process 0 also that of other processes; may be nil
	Timeline *Observation    // receives the memory in use in the first step; may be nil
	Shadow   bool            // compare every GPU operation with the CPU's kernels, and stop at the first difference
	World    setup.World     // the processes that share the ranks; nil: this one has all of them
	Dump     <-chan struct{} // each value requests dumps of the last operations of all ranks; may be nil
	NoModel  bool            // do not write the final parameters
	Saved    func()          // called after training if a checkpoint of its last step is on disk; may be nil
	Hooks    setup.Hooks     // of tests
}

// Run runs a job and writes its run folder: job.yaml, metrics.jsonl, loss.svg, the final
// parameters in model/, and checkpoints if the job asks for them. When ctx is cancelled,
// all ranks stop after their current step or within an evaluation, what exists is written, and the error is a
// *Stopped.
//
// Steps run in order, on every process of the run. What can go wrong is found as early and
// as cheaply as possible, and before openRunFolder nothing is written but locks.
func Run(ctx context.Context, c *spec.Job, o Options) (err error) {
	if c, err = o.Complete(c); err != nil {
		return err
	}
	r := newRun(c, o)
	defer func() { err = r.explain(ctx, err) }()
	defer func() { r.close(ctx, err) }()
	for _, step := range []func(context.Context) error{
		r.shareFolder, r.shareModel, r.shareDate, r.useStore, r.findStart, r.fitContext, r.agreeOnJob, r.skipIfFinished, r.announceStart,
		r.placeRanks, r.planMemory, r.lockFolders, r.checkUnchanged,
		r.publish, r.fetchWeights, r.openInputs, r.agreeOnData, r.countSteps, r.checkModel, r.countFlops,
		r.chooseAlgorithms, r.openRanks, r.openSavers, r.loadState, r.openRunFolder, r.recordAlgorithms, r.shareTrace, r.announceJob,
		r.train, r.useBest, r.collectTrace, r.compareMemory, r.writeResults, r.sampleText, r.flushStore,
	} {
		if err = step(ctx); err != nil {
			break
		}
	}
	if errors.Is(err, errNothingToDo) {
		return r.flushStore(ctx) // a run that was killed after its last step may not have
	}
	return cmp.Or(err, r.whyStopped(ctx))
}

// Complete returns the job with the network, the data and the rule of the options, for package
// forecast.
func (o Options) Complete(c *spec.Job) (*spec.Job, error) {
	return c.With(spec.Own{Model: o.Model, Data: o.Data, Validation: o.Validation, Rule: o.Rule})
}

// Enter loads a job and joins the other processes that the launcher has started, according to the
// environment: see docs/cluster.md. The caller must call leave after the run, or after an
// error.
func (o *Options) Enter(ctx context.Context, file string, sets []string) (c *spec.Job, leave func(), err error) {
	leave = func() {}
	here, err := launch.Find(launch.Flags{Parent: os.Getppid()}, os.LookupEnv)
	if err != nil {
		return nil, leave, input.BadInput(err)
	}
	if c, err = setup.ThisMachine(here.World, here.Ranks).Load(file, sets); err != nil || here.Alone() {
		return c, leave, err
	}
	w, err := world.Join(ctx, c, world.Config{Process: here, Note: o.observers().Note})
	if err != nil {
		return nil, leave, err
	}
	o.World = w
	return c, w.Close, nil
}

// observers returns the observer, if there is one.
func (o *Options) observers() report.Observers {
	if o.Observer == nil {
		return nil
	}
	return report.Observers{o.Observer}
}

// run is one call of Run. Each field names the step that sets it.
type run struct {
	Options
	observers report.Observers // Observer, and the live page
	self      setup.Self       // of World
	given     *spec.Job        // the job as Run got it

	c     *spec.Job  // findStart: with its checkpoint.dir, and as it continues from a checkpoint
	start *beginning // findStart
	steps int        // findStart: done, those of earlier runs included; train updates it

	job     *setup.Job      // placeRanks: c and its ranks
	plan    setup.Footprint // planMemory: of a rank, as this launch places it
	folders *folders        // lockFolders: those that this process has locked
	set     *data.Set       // fitContext or openInputs
	file    []byte          // countSteps: job.yaml, the job as it can be run again in another folder
	ranks   []*setup.Rank   // openRanks: those of this process
	flights *flights        // openRanks
	savers  []*state.Saver  // openSavers: one for each of ranks
	speed   report.Start    // countFlops: its ModelFlops and PeakFlops
	watch   *watch.State    // publish; nil: nobody watches
	server  *watch.Server   // publish
	asks    asks            // of the server's clients
	rec     *recorder       // openRunFolder
	store   *store.Mirror   // useStore: of a folder of checkpoints in object storage, else nil
	spread  bool            // useStore, storeGoesOn: processes are, or were, on several hosts
	newest  string          // closeStore: the checkpoint in store to continue from
	gaveUp  bool            // flushStore: the server of store has refused for long
	chosen  *chosen         // recordAlgorithms

	best    state.Early // train: the best of the job's evaluations
	traced  bool        // shareTrace: all processes trace, for one file
	leads   bool        // this process writes the run folder
	late    bool        // this process comes back, and has not got the state of the others yet
	stopped bool        // train: all ranks stopped after the same step before the last, or within an evaluation
	written bool        // writeResults was called
}

// errNothingToDo ends a run whose results exist already.
var errNothingToDo = errors.New("nothing to do")

func newRun(c *spec.Job, o Options) *run {
	if o.World == nil {
		o.World = setup.Alone{}
	}
	w, ok := o.World.(setup.Survivor)
	self := o.World.Self()
	return &run{
		Options: o, observers: o.observers(), self: self, given: c, start: &beginning{weights: &hf.Weights{}},
		leads: self.Process == 0, late: ok && w.Late(),
	}
}

// close releases what the steps have opened, the latest first.
func (r *run) close(ctx context.Context, err error) {
	if r.rec != nil && r.rec.metrics != nil && !r.written { // a process that could not take over has none
		_ = r.rec.close(r.ending(ctx, err)) // err is the one to report
	}
	if r.flights != nil {
		r.flights.end(ctx, err)
	}
	r.server.Close()
	setup.CloseAll(r.ranks)
	r.start.weights.Close()
	if r.set != nil {
		_ = r.set.Close() // only read from
	}
	if r.folders != nil && !anyLost(r.ranks) { // a rank that was left behind may still write
		r.folders.release()
	}
	r.start.close()
	r.closeStore(err)
}

// explain returns the error of a run for people: why it stopped, which process it lost,
// and the checkpoint to continue from.
func (r *run) explain(ctx context.Context, err error) error {
	why := context.Cause(ctx)
	switch {
	case errors.Is(err, ErrElsewhere):
		return r.stoppedAt(ErrElsewhere)
	case r.c == nil || why == nil || !errors.Is(err, why):
		return r.failed(err)
	case !r.stopped:
		r.World.Fail(why)
	}
	return r.stoppedAt(why)
}

// findStart finds where the run starts, and the job as it continues from there. It changes
// nothing on disk.
func (r *run) findStart(context.Context) error {
	c := r.given.Copy()
	c.Checkpoint.Dir = s3.Clean(cmp.Or(c.Checkpoint.Dir, filepath.Join(r.Out, state.CheckpointFolder)))
	next, start, err := startOf(c, r.Resume)
	if err != nil {
		return err
	}
	next = next.Copy()
	next.Checkpoint.Dir = c.Checkpoint.Dir
	start.weights = &hf.Weights{}
	r.c, r.start, r.steps = next, start, start.Step
	model := filepath.Join(r.Out, state.ModelDir)
	if r.Resume != "" && start.from == nil && input.Exists(filepath.Join(model, "model.safetensors")) {
		return input.BadInput(fmt.Errorf("--resume %s: there is no checkpoint to continue from, and step 0 would overwrite the parameters in %s; want a new folder with --out, or model.from to start from them", r.Resume, model))
	}
	return nil
}

// skipIfFinished ends the run, on all processes, if everything that the job makes exists.
// Whether a job that is measured in epochs is finished is known after countSteps.
func (r *run) skipIfFinished(ctx context.Context) error {
	done, err := r.World.Share(ctx, strconv.FormatBool(r.self.Process == 0 && r.finished()))
	if err != nil || done != "true" {
		return cmp.Or(err, context.Cause(ctx))
	}
	key := "train.steps"
	if r.c.Train.Epochs > 0 {
		key = "train.epochs"
	}
	if e := r.start.Early; isStale(r.c, e) {
		r.observers.Note(fmt.Sprintf("nothing to do: %s and saved to %s; a larger train.early_stop.patience would continue from it", endedEarly(r.c, *e), r.start.from.Path))
	} else {
		r.observers.Note(fmt.Sprintf("nothing to do: step %d of %d is done and saved to %s; a larger %s would continue from it", r.steps, r.c.Train.Steps, r.start.from.Path, key))
	}
	return errNothingToDo
}

// finished reports whether the run folder has everything that the job makes: its last step
// is done, the checkpoint of that step is the run's own, and all else was written after it.
func (r *run) finished() bool {
	from, steps := r.start.from, r.c.Train.Steps
	done := steps > 0 && r.steps >= steps || isStale(r.c, r.start.Early)
	if from == nil || !done || !state.SameFolder(vfs.Parent(from.Path), r.c.Checkpoint.Dir) || !input.Exists(filepath.Join(r.Out, state.ModelDir, "model.safetensors")) {
		return false
	}
	l, err := report.ReadLog(filepath.Join(r.Out, "metrics.jsonl"))
	return err == nil && l.Ended == r.steps && (l.End == nil || l.End.State != stoppedState)
}

// announceStart prints where the run starts.
func (r *run) announceStart(context.Context) error {
	switch from := r.start.from; {
	case r.Resume != "" && from == nil:
		r.observers.Note(fmt.Sprintf("no checkpoint in %s yet: starting at step 0", r.c.Checkpoint.Dir))
	case from != nil:
		r.observers.Note(fmt.Sprintf("resuming from %s, step %d", from.Path, r.steps))
	}
	for _, line := range r.start.news {
		r.observers.Note(line)
	}
	return nil
}

// placeRanks decides which ranks run in this process and how they communicate.
func (r *run) placeRanks(context.Context) error {
	r.job = setup.InWorld(r.c, r.World, r.Hooks)
	r.job.Shadow = r.Shadow
	if err := setup.Ready(r.job); err != nil {
		return err
	}
	if note := setup.AddsUp(r.job); note != "" {
		r.observers.Note(note)
	}
	return nil
}

// planMemory refuses a job that needs more memory than there is.
func (r *run) planMemory(context.Context) (err error) {
	r.plan, err = forecast.Affordable(r.job)
	return err
}

// checkUnchanged refuses to continue if another run has saved to the folder before this run
// had locked it.
func (r *run) checkUnchanged(context.Context) error {
	if r.Resume == "" {
		return nil
	}
	path, err := state.Resolve(r.c.Checkpoint.Dir, r.Resume)
	from := r.start.from
	if from == nil && errors.Is(err, checkpoint.ErrNone) || from != nil && err == nil && path == from.Path {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--resume %s: the checkpoints in %s changed or cannot be read; run the command again: %w", r.Resume, r.c.Checkpoint.Dir, err)
	}
	return fmt.Errorf("--resume %s: the checkpoints in %s changed; run the command again", r.Resume, r.c.Checkpoint.Dir)
}

// countSteps turns epochs into steps, and ends a run in epochs that has none left.
func (r *run) countSteps(ctx context.Context) error {
	if err := goesOn(r.c, r.start.from, r.Resume, r.set.Fingerprint); err != nil {
		return err
	}
	from := r.start
	if line := from.assume(r.c, r.set.Train.Windows()); line != "" {
		r.observers.Note(line)
	}
	c, err := r.c.Settled(r.set.Train.Windows(), from.Step, from.Samples)
	if err != nil {
		return err
	}
	r.c, r.job.Job = c, c
	if was := from.was; was != nil && from.Data != "" && (c.Train.Epochs > 0 || was.Train.Epochs > 0) {
		was, err := was.Settled(r.set.Train.Windows(), from.Step, from.Samples)
		if err != nil {
			return err
		}
		if line := newRate(was, c, from.Progress); line != "" {
			r.observers.Note(line)
		}
	}
	again := c.Copy()
	again.Checkpoint.Dir = r.given.Checkpoint.Dir
	r.file = again.YAML()
	if c.Train.Epochs == 0 {
		return nil
	}
	return r.skipIfFinished(ctx)
}

// checkModel compares the model with its data, and its initial parameters with those that
// the run began with.
func (r *run) checkModel(ctx context.Context) (err error) {
	c, from := r.c, r.start
	if err := inherit(r.job, from); err != nil {
		return err
	}
	if err := carryTokenizer(r.job, r.set, from); err != nil {
		return err
	}
	if err := carryEnds(r.job, r.set); err != nil {
		return err
	}
	if from.from != nil {
		if err := sameBase(ctx, c, from, r.Resume); err != nil {
			return err
		}
		return context.Cause(ctx) // nothing is lost yet, and reading state may take long
	}
	from.Base, err = from.weights.Check(ctx, c.Model)
	if input.IsInput(err) {
		return config.Problems{spec.ProblemOf(c, "model.from", err.Error(), "")}
	}
	return err
}

// openRanks allocates all that the ranks of this process need.
func (r *run) openRanks(context.Context) (err error) {
	r.job.Hold = r.folders.hold
	r.job.Hooks.WrapTrainer = r.Timeline.wrap(r.Hooks.WrapTrainer)
	if r.ranks, err = setup.Open(r.job); err != nil {
		return err
	}
	r.flights = r.recordFlights(r.ranks)
	return nil
}

// openSavers prepares checkpoints, and compares their size with the space on the disk.
func (r *run) openSavers(context.Context) (err error) {
	if r.savers, err = state.OpenSavers(r.job, r.ranks); err != nil {
		return err
	}
	for _, s := range r.savers {
		if s != nil && r.start.from != nil {
			if err := s.GoesOnFrom(r.start.from.Checkpoint); err != nil {
				return err
			}
		}
	}
	return diskSpace(r.job, r.savers[0], r.observers)
}

// loadState loads the state that every rank starts from. Until all processes have succeeded, the
// files of an earlier run stay in the run folder: a checkpoint may be damaged in a part that only
// some of them read.
func (r *run) loadState(ctx context.Context) error {
	var err error
	if !r.late {
		err = setup.TogetherUntil(r.self.Ended, r.ranks, func(rank *setup.Rank) error { return r.start.set(ctx, rank.Trainer, r.c.Parallel.Ranks) })
	}
	if err != nil {
		r.World.Fail(err) // tells the others why
		return err
	}
	return r.agree(ctx, []rendezvous.Fact{{Name: "the state to start from", Value: "read"}})
}

// announceJob prints the header before step 1, and attaches the trace.
func (r *run) announceJob(context.Context) error {
	h := header(r.job, r.set, r.Out, r.ranks)
	r.rec.sum.Unit = h.Unit
	if r.self.Process == 0 {
		s := r.begins(h)
		if err := r.rec.begin(s); err != nil {
			return err
		}
		s.Run = r.rec.begun.Run
		if r.c.Report.MLflow != "" {
			r.rec.sendMLflow(r.c)
		}
		r.watch.Begin(s, string(r.file), setup.Saves(r.c))
	}
	r.rec.Event(h)
	for _, note := range slices.Concat(r.c.Notes, r.job.Carried.Notes, r.set.Notes) {
		r.rec.Note(note)
	}
	if note := shortSchedule(r.c); note != "" {
		r.rec.Note(note)
	}
	for _, rank := range r.ranks {
		for _, file := range rank.Trainer.Reclaimed() {
			r.rec.Note("removed leftovers of an interrupted run: " + file)
		}
	}
	if r.Trace == nil {
		return nil
	}
	p, err := forecast.NewPlan(r.c, forecast.Machine{})
	if err == nil {
		r.Trace.Attach(r.ranks, p)
	}
	return err
}

// train runs the training loop on every rank.
func (r *run) train(ctx context.Context) error {
	r.asks.at.Store(int64(r.start.Step))
	r.asks.begun.Store(true)
	var loops []*loop
	for _, rank := range r.ranks {
		loops = append(loops, newLoop(r, rank))
	}
	err := errPaused
	if !r.late {
		err = r.trainTogether(ctx, loops)
	}
	for r.survives(err) {
		if wrong := r.goOn(ctx, loops); wrong != nil {
			err = r.endedBy(ctx, err, wrong, loops[0].at+1)
			break
		}
		err = r.trainTogether(ctx, loops)
	}
	saved := loops[0].kept == loops[0].at
	switch {
	case err != nil:
		r.World.Fail(err) // tells the others why
	case saved && r.store == nil && r.Saved != nil: // uploads may be under way
		r.Saved()
	}
	r.Trace.Detach(r.ranks)
	for _, line := range setup.Unfused(r.ranks) {
		r.rec.Note(line)
	}
	if err != nil && !anyLost(r.ranks) {
		state.FinishSaves(r.savers, r.rec.saved)
	}
	return err
}

// trainTogether trains until the last step or an error.
func (r *run) trainTogether(ctx context.Context, loops []*loop) error {
	err := setup.TogetherUntil(r.self.Ended, r.ranks, func(rank *setup.Rank) error {
		l := loops[rank.LocalIndex]
		stopped, err := l.run(ctx)
		if rank.LocalIndex == 0 { // all agree
			r.stopped, r.steps, r.best = stopped, l.at, l.early
		}
		if err != nil {
			l.saver.Leave()
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.depart(context.WithoutCancel(ctx))
}

// compareMemory compares the memory that an observed run had in use with its plan, and reports
// differences.
func (r *run) compareMemory(context.Context) error {
	differs, err := r.Timeline.compare(r.c)
	if differs != "" {
		r.rec.Warn("memory in use cannot be compared with the plan: " + differs + ". This is a bug of zeroth: please report it with the job file")
	}
	return err
}

// writeResults writes the final parameters and closes the metrics. Process 0 writes most files
// alone, and all processes return its errors.
func (r *run) writeResults(ctx context.Context) error {
	r.written = true
	var err error
	if !r.NoModel {
		err = export(r.job, r.ranks, filepath.Join(r.Out, state.ModelDir))
	}
	if r.self.Process == 0 {
		if err == nil {
			err = r.rec.draw()
		}
		if err == nil { // the line that says that all else is written
			r.rec.sum.Memory, err = r.rec.memory(r.rec.sum.Steps)
		}
		err = cmp.Or(err, r.rec.close(r.ending(ctx, err)))
	}
	if causedByPeers(err) || err != nil && r.self.Process > 0 {
		return err
	}
	text := ""
	if err != nil {
		text = fmt.Sprintf("rank 0: %.4000s", err)
	}
	shared, lost := r.World.Share(context.WithoutCancel(ctx), text) // a run that was asked to stop writes, too
	if err == nil && shared != "" {
		err = errors.New(shared)
	}
	return cmp.Or(err, lost)
}

// sampleText lets the model of a run that came to its end continue a text, and prints the
// summary. All is written by then: stopping it loses the text alone.
func (r *run) sampleText(ctx context.Context) (err error) {
	if r.self.Process > 0 {
		return nil
	}
	sum := &r.rec.sum
	if !r.stopped {
		sum.Sample, err = sampleAtEnd(r.c, ctx, r.Out, r.rec.Note)
		if err != nil && ctx.Err() != nil {
			r.rec.Note("the sample is incomplete: " + context.Cause(ctx).Error())
			err = nil
		}
	}
	sum.Stopped, sum.MemoryPerRank, sum.Trace = r.stopped, peak(r.ranks), r.Trace.Exposure()
	r.rec.Event(*sum)
	return err
}

// anyLost reports whether a rank was left behind.
func anyLost(ranks []*setup.Rank) bool {
	return slices.ContainsFunc(ranks, func(r *setup.Rank) bool { return r.Lost.Load() })
}

// peak returns the most bytes that any rank has held at once.
func peak(ranks []*setup.Rank) (most int64) {
	for _, r := range ranks {
		most = max(most, r.Device.Usage().Peak.Total())
	}
	return most
}
