package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"zeroth/checkpoint"
	"zeroth/checkpoint/safetensors"
	"zeroth/collective/rendezvous"
	"zeroth/data"
	"zeroth/device"
	"zeroth/input"
	"zeroth/job/build"
	"zeroth/job/config"
	"zeroth/job/fit"
	"zeroth/job/hf"
	"zeroth/job/machine"
	"zeroth/job/plan"
	"zeroth/job/report"
	"zeroth/job/show"
	"zeroth/job/sim"
	"zeroth/job/state"
)

// Options are what a run is given beside its job.
type Options struct {
	Out string // the run folder: new or empty, or the one that Resume goes on in

	// Resume is the checkpoint to go on from: "latest", which where there is none
	// yet begins at step 0 and says so, a step, or a checkpoint's folder; empty to
	// begin. In the folder of the run that made it metrics.jsonl goes on after the
	// checkpoint's step.
	Resume string

	Observer report.Observer // hears what happens; nil: nobody does
	Trace    *sim.Trace      // receives what the queues of every rank did; may be nil
	Timeline *Observation    // receives the memory in use in the first step; may be nil
	World    World           // the processes that the ranks are spread over; nil: all are in this one
	Dump     <-chan struct{} // each asks for dumps of what the ranks' recorders have kept; may be nil
	Hooks    build.Hooks     // of tests
}

// Run runs a job and writes its run folder: job.yaml, metrics.jsonl, loss.svg,
// the final parameters in model/, and checkpoints if the job asks for them. When
// ctx is cancelled all ranks stop after the step they are in, what there is is
// written, and the error is a *Stopped.
func Run(ctx context.Context, c *config.Config, o Options) error {
	if o.Observer == nil {
		o.Observer = report.Observers{}
	}
	if o.World == nil {
		o.World = alone{}
	}
	r := &run{Options: o}
	err := r.all(ctx, c)
	why := context.Cause(ctx)
	switch {
	case errors.Is(err, ErrElsewhere):
		return r.stopped(ErrElsewhere)
	case r.c == nil || why == nil || !errors.Is(err, why):
		return r.ended(err)
	case !r.agreed:
		r.World.Fail(why)
	}
	return r.stopped(why)
}

// all is Run, whose errors are not yet explained.
func (r *run) all(ctx context.Context, c *config.Config) error {
	if err := r.oneFolder(ctx); err != nil {
		return err
	}
	dir := cmp.Or(c.Checkpoint.Dir, filepath.Join(r.Out, state.CheckpointFolder))
	err := r.begin(c, dir)
	if err != nil {
		return err
	}
	defer r.start.close()
	if err := r.oneJob(ctx, c); err != nil {
		return err
	}
	if done, err := r.nothingToDo(ctx); done || err != nil {
		return err
	}
	return r.do(ctx)
}

// nothingToDo tells whether all that the job makes is there, and says so. All
// processes agree.
func (r *run) nothingToDo(ctx context.Context) (bool, error) {
	done, err := r.World.Share(ctx, strconv.FormatBool(r.World.Process() == 0 && r.finished()))
	if err != nil || done != "true" {
		return false, err
	}
	key := "train.steps"
	if r.c.Train.Epochs > 0 {
		key = "train.epochs"
	}
	if e := r.start.Early; isStale(r.c, e) {
		r.Observer.Note(fmt.Sprintf("nothing to do: %s; all is kept in %s, and a larger train.early_stop.patience goes on from it", endedEarly(*e), r.start.from.Path))
		return true, nil
	}
	r.Observer.Note(fmt.Sprintf("nothing to do: step %d of %d is done and kept in %s; a larger %s goes on from it", r.steps, r.c.Train.Steps, r.start.from.Path, key))
	return true, nil
}

// Stopped is the error of a run that ended before its last step because its
// context did.
type Stopped struct {
	Step       int    // steps done
	Checkpoint string // that --resume latest goes on from; empty if there is none
	cause      error  // the context's
}

func (s *Stopped) Error() string {
	at := "before step 1"
	if s.Step > 0 {
		at = fmt.Sprintf("after step %d", s.Step)
	}
	if s.Checkpoint == "" {
		return fmt.Sprintf("%v %s: there is no checkpoint to go on from", s.cause, at)
	}
	return fmt.Sprintf("%v %s: --resume latest goes on from %s", s.cause, at, s.Checkpoint)
}

func (s *Stopped) Unwrap() error { return s.cause }

// run is one call of Run.
type run struct {
	Options
	c     *config.Config // with its checkpoint.dir
	dir   string         // checkpoint.dir as it was given
	file  []byte         // job.yaml: the job as it can be run again, in another folder; once its steps are known
	start *beginning
	steps int // done, those of the runs before included

	agreed bool // all ranks have stopped after the same step
}

// stopped is what there is to go on from after a run that was asked to stop.
func (r *run) stopped(why error) error {
	s := &Stopped{Step: r.steps, cause: why}
	if path, err := checkpoint.Resolve(r.c.Checkpoint.Dir, "latest"); err == nil {
		s.Checkpoint = path
	}
	return s
}

// begin finds where the run starts, and what job it is from there. It changes
// nothing on disk.
func (r *run) begin(c *config.Config, dir string) (err error) {
	here := *c
	here.Checkpoint.Dir = dir
	next, start, err := begin(&here, r.Resume)
	if err != nil {
		return err
	}
	r.c, r.dir, r.start, r.steps = next, c.Checkpoint.Dir, start, start.Step
	next.Checkpoint.Dir = dir
	model := filepath.Join(r.Out, state.ModelDir)
	if r.Resume != "" && start.from == nil && input.Exists(filepath.Join(model, "model.safetensors")) {
		return input.BadInput(fmt.Errorf("--resume %s: there is no checkpoint to go on from, and step 0 would write over the parameters in %s: name a new folder with --out, or start from them with model.from", r.Resume, model))
	}
	return nil
}

// finished tells whether the run folder has all that the job makes: its last
// step is done, the checkpoint of it is the run's own, and all was written after.
// Of a job in epochs that is not known before its data is open.
func (r *run) finished() bool {
	from, steps := r.start.from, r.c.Train.Steps
	done := steps > 0 && r.steps >= steps || isStale(r.c, r.start.Early)
	if from == nil || !done || !same(filepath.Dir(from.Path), r.c.Checkpoint.Dir) || !input.Exists(filepath.Join(r.Out, state.ModelDir, "model.safetensors")) {
		return false
	}
	l, err := report.ReadLog(filepath.Join(r.Out, "metrics.jsonl"))
	return err == nil && l.Ended == r.steps
}

// do takes what the run needs, the cheapest first: whatever is wrong is known
// before work is put in and before anything is written.
func (r *run) do(ctx context.Context) (err error) {
	c := r.c
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.greet()
	setup := build.Setup{Launch: r.World, Hooks: r.Hooks}
	build.Place(c, setup.At())
	if err := build.Ready(c); err != nil {
		return err
	}
	if note := build.AddsUp(c); note != "" {
		r.Observer.Note(note)
	}
	plan, err := fit.Affordable(c, setup)
	if err != nil {
		return err
	}
	f, err := r.lock()
	if err != nil {
		return err
	}
	var ranks []*build.Rank
	defer func() {
		if !anyLost(ranks) { // who was left behind may still write
			f.release()
		}
	}()
	if err := r.unchanged(); err != nil {
		return err
	}
	needs := fit.Product(plan.Memory(), int64(setup.At().Beside(config.Mesh(c))))
	set, weights, err := openInputs(c, ctx, needs, r.start.from != nil, r.Observer)
	if err != nil {
		return err
	}
	defer set.Close()
	defer weights.Close()
	r.start.weights = weights
	if done, err := r.joinData(ctx, set); done || err != nil {
		return err
	}
	if err := r.joinModel(ctx, set); err != nil {
		return err
	}
	setup.Plan = &plan
	setup.Hooks.WrapTrainer, setup.Hooks.Hold = r.Timeline.wrap(r.Hooks.WrapTrainer), f.hold
	if ranks, err = build.Open(c, setup); err != nil {
		return err
	}
	defer build.CloseAll(ranks)
	flights := r.recordFlights(ranks)
	defer func() { flights.end(ctx, err) }()
	savers, err := state.OpenSavers(c, ranks, setup)
	if err != nil {
		return err
	}
	if err := diskSpace(c, savers[0], r.Observer); err != nil {
		return err
	}
	return r.with(ctx, ranks, savers, set, flights)
}

// joinData holds the data against the other processes' and against what the run
// goes on from, and makes steps of it. Of a job in epochs it is now known whether
// there is anything left to do.
func (r *run) joinData(ctx context.Context, set *data.Set) (done bool, err error) {
	if err := r.oneData(ctx, set); err != nil {
		return false, err
	}
	if err := goesOn(r.c, r.start.from, r.Resume, set.Fingerprint); err != nil {
		return false, err
	}
	if err := r.settle(set); err != nil {
		return false, err
	}
	if r.c.Train.Epochs == 0 {
		return false, nil
	}
	return r.nothingToDo(ctx)
}

// joinModel holds the model against its data, and its parameters against what they
// were when the run began.
func (r *run) joinModel(ctx context.Context, set *data.Set) (err error) {
	c, from := r.c, r.start
	if err := inherit(c, from); err != nil {
		return err
	}
	if err := carryTokenizer(c, set, from); err != nil {
		return err
	}
	if from.from != nil {
		if err := sameBase(ctx, c, from, r.Resume); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx) // nothing is lost, and reading state may take long
		}
		return nil
	}
	from.Base, err = from.weights.Check(ctx, c.Model)
	if input.IsInput(err) {
		return config.Problems{config.ProblemOf(c, "model.from", err.Error(), "")}
	}
	return err
}

// settle makes steps of epochs, and tells of the learning rate.
func (r *run) settle(set *data.Set) error {
	c, from := r.c, r.start
	if err := c.Settle(set.Train.Windows(), from.Step, from.Samples); err != nil {
		return err
	}
	if was := from.was; was != nil && from.Trained() && (c.Train.Epochs > 0 || was.Train.Epochs > 0) {
		if err := was.Settle(set.Train.Windows(), from.Step, from.Samples); err != nil {
			return err
		}
		if line := newRate(was, c, from.Progress); line != "" {
			r.Observer.Note(line)
		}
	}
	given := *c
	given.Checkpoint.Dir = r.dir
	r.file = given.YAML()
	return nil
}

// unchanged is an error if what the run starts from is no longer what it was
// asked for: another run has saved before this one had the folder.
func (r *run) unchanged() error {
	if r.Resume == "" {
		return nil
	}
	path, err := checkpoint.Resolve(r.c.Checkpoint.Dir, r.Resume)
	from := r.start.from
	if from == nil && errors.Is(err, checkpoint.ErrNone) || from != nil && err == nil && path == from.Path {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--resume %s: the checkpoints in %s have changed meanwhile, or cannot be read: give the command again: %w", r.Resume, r.c.Checkpoint.Dir, err)
	}
	return fmt.Errorf("--resume %s: the checkpoints in %s have changed meanwhile: give the command again", r.Resume, r.c.Checkpoint.Dir)
}

// greet says where the run starts.
func (r *run) greet() {
	switch from := r.start.from; {
	case r.Resume != "" && from == nil:
		r.Observer.Note(fmt.Sprintf("no checkpoint in %s yet: starting at step 0", r.c.Checkpoint.Dir))
	case from != nil:
		r.Observer.Note(fmt.Sprintf("resuming from %s, step %d", from.Path, r.steps))
	}
	for _, line := range r.start.news {
		r.Observer.Note(line)
	}
}

// with trains on ranks that are open, and writes what there is at the end.
func (r *run) with(ctx context.Context, ranks []*build.Rank, savers []*state.Saver, set *data.Set, flights *flights) error {
	c := r.c
	if err := r.fill(ctx, ranks); err != nil {
		return err
	}
	rec, err := r.record(ctx)
	if err != nil {
		return err
	}
	flights.begun.Store(true)
	rec.sum.Tokens = r.start.Tokens
	rec.account = func(step int) (*report.Account, error) { return report.NewAccount(c, step, ranks) }
	r.announce(rec, set, ranks)
	if r.Trace != nil {
		p, err := plan.New(c, plan.Machine{})
		if err != nil {
			return err
		}
		r.Trace.Attach(ranks, p)
	}
	stopped, err := r.train(ctx, ranks, savers, set, rec)
	r.Trace.Detach(ranks)
	for _, line := range build.Unfused(ranks) {
		rec.Note(line)
	}
	if err != nil && !anyLost(ranks) {
		state.FinishSaves(savers, func(end state.Saved) { rec.Note(end.String()) })
	}
	if err == nil {
		err = r.Timeline.compare(c)
	}
	if err == nil {
		err = export(c, ranks, filepath.Join(r.Out, state.ModelDir))
	}
	if r.World.Process() > 0 { // the rest is process 0's
		return cmp.Or(err, r.why(ctx, stopped))
	}
	if err == nil {
		err = rec.draw()
	}
	if err == nil { // the line that says that all else is written
		rec.sum.Memory, err = rec.memory(rec.sum.Steps)
	}
	if err := cmp.Or(err, rec.close()); err != nil {
		return err
	}
	err = r.sample(ctx, rec, stopped)
	rec.sum.Stopped, rec.sum.MemoryPerRank, rec.sum.Trace = stopped, peak(ranks), r.Trace.Exposure()
	rec.Done(rec.sum)
	return cmp.Or(r.why(ctx, stopped), err)
}

// announce tells what there is to know before step 1.
func (r *run) announce(rec *recorder, set *data.Set, ranks []*build.Rank) {
	rec.Start(header(r.c, set, r.Out, ranks))
	for _, note := range slices.Concat(r.c.Notes, r.c.Carried.Notes, set.Notes) {
		rec.Note(note)
	}
	for _, rank := range ranks {
		for _, file := range rank.Trainer.Reclaimed() {
			rec.Note("removed what a dead run has left: " + file)
		}
	}
}

// sample lets the model of a run that came to its end continue a text. All is
// written by then: who stops it loses the text alone.
func (r *run) sample(ctx context.Context, rec *recorder, stopped bool) (err error) {
	if stopped {
		return nil
	}
	rec.sum.Sample, err = sampleAtEnd(r.c, ctx, r.Out, rec.Note)
	if err != nil && ctx.Err() != nil {
		rec.Note("the sample was not finished: " + context.Cause(ctx).Error())
		return nil
	}
	return err
}

// openInputs opens what the job reads, on a machine whose ranks need so many bytes.
// What is wrong with any of it is a Problems.
// A run that goes on has its parameters from the checkpoint.
func openInputs(c *config.Config, ctx context.Context, needs int64, goesOn bool, obs report.Observer) (*data.Set, *hf.Weights, error) {
	s := config.Source(c)
	s.Progress = reading(obs)
	if free := machine.Machine().Free; free > 0 { // as much as the ranks leave
		s.Memory = max(1, free-needs)
	}
	set, err := data.Open(ctx, s)
	problems := c.Blame(err)
	w, wrong := &hf.Weights{}, error(nil)
	if !goesOn {
		w, wrong = openWeights(c)
	}
	if wrong != nil {
		problems = append(problems, config.ProblemOf(c, "model.from", wrong.Error(), ""))
	}
	if len(problems) > 0 {
		problems.Sort()
		err = problems
	}
	if err == nil {
		return set, w, nil
	}
	if set != nil {
		_ = set.Close() // only read from
	}
	w.Close()
	return nil, nil, err
}

// openWeights opens the parameters and reads what a run carries of their folder.
func openWeights(c *config.Config) (*hf.Weights, error) {
	w := &hf.Weights{Seed: c.Train.Seed}
	if c.Model.From == "" {
		return w, nil
	}
	from, err := hf.OpenModel(c.Model.From, c.Model)
	if err == nil {
		c.Carried.Notes = slices.Concat(c.Carried.Notes, from.Note(), rounded(c, from))
	}
	w.From = from
	return w, errors.Join(err, c.Carried.ReadFiles(c.Model.From))
}

// rounded says that frozen parameters lose digits, which they do where a folder has
// more than the job computes with.
func rounded(c *config.Config, from *hf.ModelTensors) []string {
	if !config.Tunes(c) || c.Precision == device.F32 {
		return nil
	}
	for _, p := range config.Parameters(c) {
		t, ok := from.Tensor(from.Names[p.Name])
		if p.Frozen && ok && t.DType == safetensors.F32 {
			return []string{fmt.Sprintf("frozen parameters are kept in %v: those of %s are float32 and are rounded, in what is exported, too; precision: fp32 keeps them", c.Precision, c.Model.From)}
		}
	}
	return nil
}

// fill gives every rank the state it starts from. Until those of all processes have it,
// what an earlier run has left in the run folder stays: a checkpoint may be damaged
// where only some of them read it.
func (r *run) fill(ctx context.Context, ranks []*build.Rank) error {
	err := build.TogetherUntil(r.World.Ended(), ranks, func(rank *build.Rank) error { return r.start.set(rank.Trainer, r.c.Parallel.Ranks) })
	if err != nil {
		r.World.Fail(err) // the others hear at once why
		return err
	}
	return r.agree(ctx, []rendezvous.Fact{{Name: "the state to start from", Value: "read"}})
}

// train runs the loop on every rank.
func (r *run) train(ctx context.Context, ranks []*build.Rank, savers []*state.Saver, set *data.Set, rec *recorder) (stopped bool, err error) {
	err = build.TogetherUntil(r.World.Ended(), ranks, func(rank *build.Rank) error {
		l := newLoop(r.c, rank, savers[rank.Here], set, r.start, rec)
		l.trace, l.timeline, l.owed, l.where = r.Trace, r.Timeline, rec.owed, r.where
		s, err := l.run(ctx)
		if rank.Here == 0 { // all agree
			stopped, r.agreed, r.steps = s, s, l.at
		}
		if err != nil {
			l.saver.Leave()
		}
		return err
	})
	if err != nil {
		r.World.Fail(err) // the others hear at once why
	}
	return stopped, err
}

// anyLost tells whether a rank was left behind.
func anyLost(ranks []*build.Rank) bool {
	return slices.ContainsFunc(ranks, func(r *build.Rank) bool { return r.Lost.Load() })
}

// peak is the most bytes any rank has held at once.
func peak(ranks []*build.Rank) (most int64) {
	for _, r := range ranks {
		most = max(most, r.Device.Usage().Peak.Total())
	}
	return most
}

// reading tells the observer now and then how far reading the data is, if it
// takes long enough to wonder.
func reading(obs report.Observer) func(done, total int64) {
	next := time.Now().Add(2 * time.Second)
	return func(done, total int64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(2 * time.Second)
			obs.Note(fmt.Sprintf("reading data: %d of %d MB", done/1e6, total/1e6))
		}
	}
}

func header(c *config.Config, set *data.Set, out string, ranks []*build.Rank) report.Header {
	n := 0
	for _, u := range ranks[0].Trainer.Units() {
		n += u.Layout.Numel()
	}
	mesh, host := config.Mesh(c), int64(0)
	if h := ranks[0].Host; h != nil {
		host = h.Usage().Peak.Total()
	}
	return report.Header{
		Model: fmt.Sprintf("%s %s", config.Network(c).Name, show.Compact(float64(n))), Parameters: int64(n), Groups: config.Groups(c),
		Ranks: c.Parallel.Ranks, Shard: mesh.Shard, Replicate: mesh.Replicate, Stage: c.Zero.Stage,
		Precision: c.Precision.String(), Device: build.Where(c), GlobalBatch: c.Train.Batch, TokensPerStep: config.TokensPerStep(c), Steps: c.Train.Steps, Epochs: c.Train.Epochs,
		DataTokens: set.Train.Windows() * int64(c.Model.Context), Out: out, MemoryPerRank: peak(ranks),
		HostPerRank: host, DiskPerRank: ranks[0].Trainer.DiskBytes(), Offload: c.Zero.Offload.String(),
	}
}

// LimitsReference are tables, in Markdown, of the limits of all that is read.
func LimitsReference() string {
	return config.LimitTables(slices.Concat(sim.Limits(), fit.SearchLimits())...)
}
