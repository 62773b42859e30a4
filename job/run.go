package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"zeroth/checkpoint"
	"zeroth/data"
)

// Train runs a job and writes its run folder: job.yaml, metrics.jsonl,
// loss.svg, the final parameters in model/, and checkpoints if the job asks
// for them. When ctx is cancelled all ranks stop after the step they are in,
// what there is is written, and the error is a *Stopped.
func Train(ctx context.Context, c *Config, out string, obs Observer) error {
	return Resume(ctx, c, out, "", obs)
}

// Resume is Train that goes on from a checkpoint: "latest", which where there
// is none yet begins at step 0 and says so, a step, or a checkpoint's folder.
// The run folder may be that of the run which made it: then metrics.jsonl goes
// on after the checkpoint's step.
func Resume(ctx context.Context, c *Config, out, which string, obs Observer) error {
	return ResumeWith(ctx, c, out, which, obs, Seams{})
}

// ResumeWith is Resume with what a test puts between the job and the world.
func ResumeWith(ctx context.Context, c *Config, out, which string, obs Observer, s Seams) error {
	r := &run{out: out, which: which, obs: obs, seams: s}
	dir := cmp.Or(c.Checkpoint.Dir, filepath.Join(out, checkpointFolder))
	err := r.begin(c, dir)
	if err != nil {
		return err
	}
	defer r.start.close()
	if r.finished() {
		obs.Note(fmt.Sprintf("nothing to do: step %d of %d is done and kept in %s; a larger train.steps goes on from it", r.steps, r.c.Train.Steps, r.start.from.Path))
		return nil
	}
	err = r.do(ctx)
	if why := context.Cause(ctx); why != nil && errors.Is(err, why) {
		return r.stopped(why)
	}
	return err
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

// run is one call of Resume.
type run struct {
	c     *Config // with its checkpoint.dir
	file  []byte  // job.yaml: the job as it can be run again, in another folder
	out   string
	which string // what to go on from; empty: nothing
	start *beginning
	obs   Observer
	seams Seams
	steps int // done, those of the runs before included
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
func (r *run) begin(c *Config, dir string) (err error) {
	here := *c
	here.Checkpoint.Dir = dir
	next, start, err := here.begin(r.which)
	if err != nil {
		return err
	}
	given := *next
	given.Checkpoint.Dir = c.Checkpoint.Dir
	r.c, r.file, r.start, r.steps = next, given.YAML(), start, start.Step
	next.Checkpoint.Dir = dir
	model := filepath.Join(r.out, modelFolder)
	if r.which != "" && start.from == nil && exists(filepath.Join(model, "model.safetensors")) {
		return BadInput(fmt.Errorf("--resume %s: there is no checkpoint to go on from, and step 0 would write over the parameters in %s: name a new folder with --out, or start from them with model.from", r.which, model))
	}
	return nil
}

// finished tells whether the run folder has all that the job makes: its last
// step is done, the checkpoint of it is the run's own, and all was written after.
func (r *run) finished() bool {
	from := r.start.from
	if from == nil || r.steps < r.c.Train.Steps || !same(filepath.Dir(from.Path), r.c.Checkpoint.Dir) || !exists(filepath.Join(r.out, modelFolder, "model.safetensors")) {
		return false
	}
	l, err := readLog(filepath.Join(r.out, "metrics.jsonl"))
	return err == nil && l.ended == r.steps
}

// do takes what the run needs, the cheapest first: whatever is wrong is known
// before work is put in and before anything is written.
func (r *run) do(ctx context.Context) error {
	c := r.c
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.greet()
	plan, err := c.affordable(r.seams)
	if err != nil {
		return err
	}
	f, err := c.lockFolders(r.out, r.which == "", r.seams.Saves)
	if err != nil {
		return err
	}
	var ranks []*Rank
	defer func() {
		if !anyLost(ranks) { // who was left behind may still write
			f.release()
		}
	}()
	if err := r.unchanged(); err != nil {
		return err
	}
	set, weights, err := c.openInputs(ctx, plan, r.start.from != nil, r.obs)
	if err != nil {
		return err
	}
	defer set.Close()
	defer weights.close()
	r.start.weights = weights
	if err := c.goesOn(r.start.from, r.which, set.Fingerprint); err != nil {
		return err
	}
	if err := c.inherit(r.start); err != nil {
		return err
	}
	if err := c.carryTokenizer(set, r.start); err != nil {
		return err
	}
	if r.start.from == nil {
		err := weights.check(ctx, c.Model)
		if IsInput(err) {
			err = Problems{problem(c.place("model.from"), "model.from", err.Error(), "")}
		}
		if err != nil {
			return err
		}
	}
	if r.start.from != nil && ctx.Err() != nil {
		return context.Cause(ctx) // nothing is lost, and reading state may take long
	}
	seen := observationOf(ctx)
	r.seams.dress, r.seams.hold = seen.dress, f.hold
	if ranks, err = c.openPlanned(plan, r.seams); err != nil {
		return err
	}
	defer closeAll(ranks)
	savers, err := c.openSavers(ranks, r.seams)
	if err != nil {
		return err
	}
	if err := c.room(savers[0], r.obs); err != nil {
		return err
	}
	return r.with(ctx, ranks, savers, set)
}

// unchanged is an error if what the run starts from is no longer what it was
// asked for: another run has saved before this one had the folder.
func (r *run) unchanged() error {
	if r.which == "" {
		return nil
	}
	path, err := checkpoint.Resolve(r.c.Checkpoint.Dir, r.which)
	from := r.start.from
	if from == nil && errors.Is(err, checkpoint.ErrNone) || from != nil && err == nil && path == from.Path {
		return nil
	}
	return fmt.Errorf("--resume %s: the checkpoints in %s have changed meanwhile: give the command again", r.which, r.c.Checkpoint.Dir)
}

// greet says where the run starts.
func (r *run) greet() {
	switch from := r.start.from; {
	case r.which != "" && from == nil:
		r.obs.Note(fmt.Sprintf("no checkpoint in %s yet: starting at step 0", r.c.Checkpoint.Dir))
	case from != nil:
		r.obs.Note(fmt.Sprintf("resuming from %s, step %d", from.Path, r.steps))
	}
	for _, line := range r.start.news {
		r.obs.Note(line)
	}
}

// with trains on ranks that are open, and writes what there is at the end.
func (r *run) with(ctx context.Context, ranks []*Rank, savers []*saver, set *data.Set) error {
	c := r.c
	rec, err := record(r.out, r.file, r.which == "", r.start.Step, r.obs)
	if err != nil {
		return err
	}
	rec.sum.Tokens = r.start.Tokens
	rec.account = func(step int) (*Account, error) { return c.account(step, ranks) }
	rec.Start(c.header(set, r.out, ranks))
	for _, note := range slices.Concat(c.notes, c.carried.notes, set.Notes) {
		rec.Note(note)
	}
	for _, rank := range ranks {
		for _, file := range rank.Trainer.Reclaimed() {
			rec.Note("removed what a dead run has left: " + file)
		}
	}
	trace, seen := traceOf(ctx), observationOf(ctx)
	if trace != nil {
		p, err := c.Plan(Machine{})
		if err != nil {
			return err
		}
		trace.attach(ranks, p)
	}
	stopped, err := c.train(ctx, ranks, savers, set, r.start, rec)
	r.steps = rec.sum.Steps
	trace.detach(ranks)
	if err != nil && !anyLost(ranks) {
		finishSaves(savers, func(end saved) { rec.Note(end.String()) })
	}
	if err == nil {
		err = seen.compare(c)
	}
	if err == nil {
		err = c.export(ranks, filepath.Join(r.out, modelFolder))
	}
	if err == nil {
		rec.sum.Memory, err = rec.memory(rec.sum.Steps)
	}
	if err := cmp.Or(err, rec.close()); err != nil {
		return err
	}
	if !stopped {
		rec.sum.Sample, err = c.sample(ctx, r.out, rec.Note)
	}
	if err != nil && ctx.Err() != nil { // all is written; only the text was cut short
		rec.Note("the sample was not finished: " + context.Cause(ctx).Error())
		err = nil
	}
	rec.sum.Stopped, rec.sum.MemoryPerRank, rec.sum.Trace = stopped, peak(ranks), trace.exposure()
	rec.Done(rec.sum)
	if stopped {
		return context.Cause(ctx)
	}
	return err
}

// openInputs opens what the job reads. What is wrong with any of it is a
// Problems.
// A run that goes on has its parameters from the checkpoint.
func (c *Config) openInputs(ctx context.Context, plan Footprint, goesOn bool, obs Observer) (*data.Set, *weights, error) {
	s := c.source()
	s.Progress = reading(obs)
	if free := machine().Free; free > 0 { // as much as the ranks leave
		s.Memory = max(1, free-product(plan.memory(), int64(c.Parallel.Ranks)))
	}
	set, err := data.Open(ctx, s)
	problems := c.blame(err)
	w, wrong := &weights{}, error(nil)
	if !goesOn {
		w, wrong = c.openWeights()
	}
	if wrong != nil {
		problems = append(problems, problem(c.place("model.from"), "model.from", wrong.Error(), ""))
	}
	if len(problems) > 0 {
		problems.sort()
		err = problems
	}
	if err == nil {
		return set, w, nil
	}
	if set != nil {
		_ = set.Close() // only read from
	}
	w.close()
	return nil, nil, err
}

// openWeights opens the parameters and reads what a run carries of their folder.
func (c *Config) openWeights() (*weights, error) {
	w := &weights{seed: c.Train.Seed}
	if c.Model.From == "" {
		return w, nil
	}
	from, err := openModel(c.Model.From, c.Model)
	if err == nil {
		c.carried.notes = slices.Concat(c.carried.notes, from.note())
	}
	w.from = from
	return w, errors.Join(err, c.carried.readFiles(c.Model.From))
}

// train sets the initial state and runs the loop on every rank.
func (c *Config) train(ctx context.Context, ranks []*Rank, savers []*saver, set *data.Set, b *beginning, rec *recorder) (stopped bool, err error) {
	err = Together(ranks, func(r *Rank) error {
		if err := b.set(r.Trainer, len(ranks)); err != nil {
			return err
		}
		s, err := c.newLoop(r, savers[r.Rank], set, b, rec).run(ctx)
		if r.Rank == 0 {
			stopped = s
		}
		return err
	})
	return stopped, err
}

// anyLost tells whether a rank was left behind.
func anyLost(ranks []*Rank) bool {
	return slices.ContainsFunc(ranks, func(r *Rank) bool { return r.lost.Load() })
}

// peak is the most bytes any rank has held at once.
func peak(ranks []*Rank) (most int64) {
	for _, r := range ranks {
		most = max(most, r.Device.Usage().Peak.Total())
	}
	return most
}

func closeAll(ranks []*Rank) {
	for _, r := range ranks {
		r.Close()
	}
}

// source is where the job's data comes from.
func (c *Config) source() data.Source {
	return data.Source{
		Text: c.Data.Text, Tokens: c.Data.Tokens, DType: c.Data.DType, Tokenizer: c.tokenizer(), Validation: c.Data.Validation,
		Context: c.Model.Context, Batch: c.Train.Batch, Vocab: c.Model.Vocab, Seed: c.Train.Seed,
	}
}

// tokenizer is the name data.NewTokenizer knows the job's by, empty for none.
func (c *Config) tokenizer() string {
	switch {
	case c.Data.Tokenizer == "gpt2" && c.Data.Vocab != "":
		return c.Data.Vocab
	case c.Data.Tokenizer == "none":
		return ""
	}
	return c.Data.Tokenizer
}

// reading tells the observer now and then how far reading the data is, if it
// takes long enough to wonder.
func reading(obs Observer) func(done, total int64) {
	next := time.Now().Add(2 * time.Second)
	return func(done, total int64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(2 * time.Second)
			obs.Note(fmt.Sprintf("reading data: %d of %d MB", done/1e6, total/1e6))
		}
	}
}

func (c *Config) header(set *data.Set, out string, ranks []*Rank) Header {
	n := 0
	for _, u := range ranks[0].Trainer.Units() {
		n += u.Layout.Numel()
	}
	mesh, host := c.Mesh(), int64(0)
	if h := ranks[0].Host; h != nil {
		host = h.Usage().Peak.Total()
	}
	return Header{
		Model: fmt.Sprintf("%s %s", c.Model.network().Name, compact(float64(n))), Parameters: int64(n),
		Ranks: c.Parallel.Ranks, Shard: mesh.Shard, Replicate: mesh.Replicate, Stage: c.Zero.Stage,
		Precision: c.Precision.String(), GlobalBatch: c.Train.Batch, TokensPerStep: c.TokensPerStep(), Steps: c.Train.Steps,
		DataTokens: set.Train.Windows() * int64(c.Model.Context), Out: out, MemoryPerRank: peak(ranks),
		HostPerRank: host, DiskPerRank: ranks[0].Trainer.DiskBytes(), Offload: c.Zero.Offload.String(),
	}
}

// LimitsReference are tables, in Markdown, of the limits of all that is read.
func LimitsReference() string {
	return limitTables(slices.Concat(ReplayLimits(), SearchLimits())...)
}
