package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"zeroth/checkpoint"
	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/vfs"
	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/optim"
	"zeroth/zero"
)

// progress is what a run needs to go on, beside its tensors: state.json of a
// checkpoint.
type progress struct {
	Step    int             `json:"step"`    // steps done
	Updates int             `json:"updates"` // of them, those that were not skipped
	Skipped int             `json:"skipped"`
	Samples int64           `json:"samples"` // of the training order, read so far
	Tokens  int64           `json:"tokens"`
	Scale   optim.LossScale `json:"loss_scale"`
	Seed    uint64          `json:"seed"`
	Data    string          `json:"data"`            // fingerprint; empty in an imported model
	Context int             `json:"context"`         // tokens of a sample
	Config  string          `json:"config"`          // the job, in YAML
	Model   json.RawMessage `json:"model,omitempty"` // config.json
	Version string          `json:"version"`         // of the program
}

// saver makes the checkpoints of one rank, together with those of the others.
// A save copies the rank's share of the state into staging memory and writes it
// from there, or from where it rests if that is memory and training waits. With async the staging memory holds all of it and the copy is
// made beside the next step, ahead of its update, so that the training loop
// waits for next to nothing; without, it is small and used over and over.
type saver struct {
	c     *Config
	rank  *Rank
	group collective.Group // of saves alone: training's collectives go on beside them
	queue *cpu.Queue
	room  staging
	tuner *checkpoint.Tuner
	fsys  vfs.FS     // nil: the machine's
	step  int        // of the save in flight
	done  chan saved // capacity 1: the save in flight sends its end; nil if there is none
	kept  chan error // capacity 1: the retention in progress sends its end; nil if there is none
}

// saved is how a save ended.
type saved struct {
	step    int
	path    string
	err     error
	blocked time.Duration // the training loop waited
	copied  time.Duration // until its state was in staging memory, beside training; 0 without
	took    time.Duration // from its begin
}

// syncStaging is the bytes of staging memory of a save that training waits for.
const syncStaging = 32 << 20

// staged is the elements of staging memory a rank's saves use.
func (c *Config) staged(t *zero.Trainer) int {
	if !c.saves() {
		return 0
	}
	if c.Checkpoint.Async {
		return c.stateLen(t)
	}
	return min(c.stateLen(t), syncStaging/4)
}

// stateLen is the most elements of state a rank saves.
func (c *Config) stateLen(t *zero.Trainer) int { return len(t.Kinds()) * t.ShareLen() }

func (c *Config) newSaver(r *Rank, g collective.Group, tuner *checkpoint.Tuner, fsys vfs.FS) (*saver, error) {
	buf, err := r.hostMemory().Alloc(device.F32, c.staged(r.Trainer), device.Snapshot)
	if err != nil {
		return nil, err
	}
	s := &saver{c: c, rank: r, group: collective.Watch(g, c.Parallel.Timeout), queue: r.Device.NewQueue("save"), tuner: tuner, fsys: fsys}
	s.room.buf = buf
	s.room.halved = !c.Checkpoint.Async && buf.N < c.stateLen(r.Trainer)
	return s, nil
}

// saves says whether the job makes checkpoints.
func (c *Config) saves() bool { return c.Checkpoint.Every > 0 || c.Checkpoint.SaveOnExit }

// save begins a checkpoint of the state as it is at this step boundary; end
// says how it ended. No other save may be in flight, nor retention. Without
// async it is written when save returns.
func (s *saver) save(p progress, metrics map[string]float64) error {
	begin := time.Now()
	var took time.Duration
	put := func(w *checkpoint.Writer) error {
		return s.rank.Trainer.EachAll(s.room.take, putter(w, &s.room), putter(w, nil)) // nothing changes while training waits
	}
	if s.c.Checkpoint.Async {
		parts, copied := s.rank.Trainer.Snapshot(s.room.take)
		put = func(w *checkpoint.Writer) error {
			if err := copied(); err != nil {
				return err
			}
			took = time.Since(begin)
			return putAll(parts, putter(w, nil))
		}
	}
	blocked := time.Since(begin)
	done, kept := make(chan saved, 1), make(chan error, 1)
	s.done, s.kept, s.step = done, kept, p.Step
	write := func() error {
		path, err := s.write(p, metrics, put)
		done <- saved{p.Step, path, err, blocked, took, time.Since(begin)}
		return err
	}
	if s.c.Checkpoint.Async {
		go func() { kept <- s.retain(write()) }() // ends before tidy returns
		return nil
	}
	err := write()
	go func() { kept <- s.retain(err) }() // likewise: deleting takes as long as a good part of writing
	return nil
}

// retain deletes the checkpoints that are not to be kept, after a save that
// ended with err.
func (s *saver) retain(err error) error {
	if err != nil || s.rank.Rank != 0 {
		return nil
	}
	_, err = checkpoint.Prune(s.c.Checkpoint.Dir, s.c.Checkpoint.Keep)
	return err
}

// tidy waits until the retention after the last save, which end has told of,
// is done.
func (s *saver) tidy() error {
	if s.kept == nil {
		return nil
	}
	err := <-s.kept
	s.kept = nil
	return err
}

func putAll(parts []zero.Staged, to func(zero.Part, []float32) error) error {
	for _, p := range parts {
		if err := to(p.Part, p.Data); err != nil {
			return err
		}
	}
	return nil
}

// end is how the save in flight ended; nil if there is none, or if it goes on
// and wait is not set.
func (s *saver) end(wait bool) *saved {
	if s.done == nil || !wait && len(s.done) == 0 {
		return nil
	}
	end := <-s.done
	if !s.c.Checkpoint.Async {
		end.blocked = end.took
	}
	s.done = nil
	s.room.reset()
	return &end
}

// String is the end of a save in words.
func (e saved) String() string {
	if e.err != nil {
		return fmt.Sprintf("checkpoint of step %d failed: %v", e.step, e.err)
	}
	return fmt.Sprintf("checkpoint %s written in %s, training waited %s", e.path, span(e.took.Seconds()), e.blocked.Round(100*time.Microsecond))
}

// putter hands parts to a checkpoint's writer, which gives them back to the
// room they are in when they are written; nil takes none back.
func putter(w *checkpoint.Writer, room *staging) func(zero.Part, []float32) error {
	return func(p zero.Part, data []float32) error {
		t := checkpoint.Tensor{Name: p.Param.Name, Kind: p.Kind, DType: checkpoint.F32, Shape: p.Param.Shape}
		raw, ok := safetensors.Bytes(data)
		if !ok {
			raw = make([]byte, 4*len(data))
			safetensors.Encode(raw, data, checkpoint.F32)
		}
		if room == nil {
			return w.Put(t, p.At, raw, nil)
		}
		return w.Put(t, p.At, raw, room.giver())
	}
}

func (s *saver) write(p progress, metrics map[string]float64, put func(*checkpoint.Writer) error) (string, error) {
	gather := func(mine []byte) ([][]byte, error) { return collective.GatherBytes(s.group, s.queue, mine) }
	together := checkpoint.Rank{Rank: s.rank.Rank, World: s.group.Size(), Gather: gather}
	opt := checkpoint.Options{FS: s.fsys, Compress: s.c.Checkpoint.compression(), Tuner: s.tuner, Expect: s.c.expects(s.rank.Trainer.Kinds())}
	all := func(w *checkpoint.Writer) error { return errors.Join(s.attach(w), put(w)) }
	return together.Together(s.c.Checkpoint.Dir, int64(p.Step), opt, all, func() (checkpoint.Commit, error) {
		state, err := json.MarshalIndent(p, "", "  ")
		tensors := s.c.tensors(s.rank.Trainer.Kinds())
		for _, f := range s.c.carried.files {
			tensors = append(tensors, f.Tensor())
		}
		return checkpoint.Commit{Tensors: tensors, State: state, Metrics: metrics}, err
	})
}

// attach puts the files that go with the model, which the first rank does.
func (s *saver) attach(w *checkpoint.Writer) error {
	if s.rank.Rank != 0 {
		return nil
	}
	for _, f := range s.c.carried.files {
		if err := w.Attach(f); err != nil {
			return err
		}
	}
	return nil
}

// expects is the bytes that a checkpoint takes, about: those of all state, or
// where it may be compressed what the newest one has, if that is less.
func (c *Config) expects(kinds []string) (n int64) {
	for _, t := range c.tensors(kinds) {
		n += t.Bytes()
	}
	for _, f := range c.carried.files {
		n += int64(len(f.Data))
	}
	compress := c.Checkpoint.compression()
	if compress == checkpoint.Never {
		return n
	}
	list, _ := checkpoint.List(c.Checkpoint.Dir) // what cannot be read the save itself finds
	if e, ok := checkpoint.Newest(list); ok {
		return min(n, e.Bytes)
	}
	if compress == checkpoint.Always {
		return 0
	}
	return n
}

// room says before training whether the disk has room for a checkpoint at all: an
// error, or where the job goes on without checkpoints a warning.
func (c *Config) room(r *Rank, obs Observer) error {
	if r.saver == nil {
		return nil
	}
	fsys, dir, need := r.saver.fsys, filepath.Clean(c.Checkpoint.Dir), c.expects(r.Trainer.Kinds())
	if fsys == nil {
		fsys = vfs.OS{}
	}
	for { // the folder itself is made by the first save
		if _, err := fsys.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	free, err := fsys.Space(dir)
	if err != nil || free >= need {
		return nil // what is wrong with the folder the first save finds
	}
	wrong := fmt.Sprintf("a checkpoint takes %s, %s has %s free", byteSize(need), dir, byteSize(free))
	if c.Checkpoint.OnError != "stop" {
		obs.Note(wrong + ": there will be none until there is room")
		return nil
	}
	return fmt.Errorf("%s: make room, set checkpoint.dir to another disk, or checkpoint.on_error to continue", wrong)
}

// tensors are all that a checkpoint of the job has.
func (c *Config) tensors(kinds []string) (all []checkpoint.Tensor) {
	for _, p := range parameters(c.Model.network()) {
		for _, kind := range kinds {
			all = append(all, checkpoint.Tensor{Name: p.Name, Kind: kind, DType: checkpoint.F32, Shape: p.Shape})
		}
	}
	return all
}

// finishSaves waits for the save that all ranks had in flight when a run failed:
// its state is in staging memory, so that nothing of what failed can reach it.
// Where a rank had not begun it, it cannot end.
func finishSaves(ranks []*Rank, tell func(saved)) {
	for _, r := range ranks {
		if r.saver == nil || r.saver.done == nil || r.saver.step != ranks[0].saver.step {
			return
		}
	}
	for _, r := range ranks {
		if end := r.saver.end(true); r.Rank == 0 {
			tell(*end)
		}
	}
}

// close ends the saver. A save in flight, which nobody has waited for, fails
// unless all its parts are written.
func (s *saver) close() {
	_ = s.group.Close() // in-process groups cannot fail to close
	s.end(true)
	_ = s.tidy() // the loop that ended well has heard of it
	s.queue.Close()
	s.rank.hostMemory().Free(s.room.buf)
}

// staging is memory that parts are copied into and written from. It is used
// from its start to its end, or, where it is small, by halves: one is filled
// while the other is written.
type staging struct {
	buf    device.Buffer // float32
	halved bool
	used   int               // elements from the start of buf
	half   int               // 0 or 1
	out    [2]sync.WaitGroup // parts of each half that are not given back
}

// take is room for n elements, at most a half. It waits until there is some.
func (s *staging) take(n int) []float32 {
	end := s.buf.N
	if s.halved && s.half == 0 {
		end /= 2
	}
	if s.used+n > end {
		if !s.halved {
			panic(fmt.Sprintf("job: %d elements to stage, room for %d", s.used+n, s.buf.N))
		}
		s.half = 1 - s.half
		s.out[s.half].Wait()
		s.used = s.half * (s.buf.N / 2)
	}
	s.used += n
	s.out[s.half].Add(1)
	return s.buf.Slice(s.used-n, s.used).F32()
}

// giver gives a part back: the last one taken, where there are halves.
func (s *staging) giver() func() { return s.out[s.half].Done }

// reset takes back all parts, whether given back or not: nobody reads them.
func (s *staging) reset() {
	s.used, s.half, s.out = 0, 0, [2]sync.WaitGroup{}
}

// restore sets a rank's state from a checkpoint of any number of ranks and
// stage. A checkpoint without optimizer state, an imported model, leaves it
// zero.
//
// The ranks of a process read at once, each with its part of the processors.
func restore(r *resumed, t *zero.Trainer, workers int) error {
	kinds := t.Kinds()
	if !r.trained() {
		kinds = []string{zero.Master}
	}
	return t.FillAll(kinds, func(want []zero.Want) error {
		reqs := make([]checkpoint.RequestF32, len(want))
		for i, w := range want {
			reqs[i] = checkpoint.RequestF32{Name: w.Param.Name, Kind: w.Kind, Range: w.At, Into: w.Into}
		}
		return r.ReadAllF32(reqs, workers)
	})
}

// resumed is a checkpoint that fits a job, and what the job goes on from.
type resumed struct {
	*checkpoint.Checkpoint
	progress
}

// find opens the checkpoint a user asks to resume from: "latest", a step, or a
// folder. It is nil, without an error, for "latest" where there is none yet.
func (c *Config) find(which, data string) (*resumed, error) {
	path, err := checkpoint.Resolve(c.Checkpoint.Dir, which)
	if errors.Is(err, checkpoint.ErrNone) && which == "latest" {
		return nil, nil
	}
	if err != nil {
		return nil, BadInput(fmt.Errorf("--resume %s: %w", which, err))
	}
	ck, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	r := &resumed{Checkpoint: ck}
	if r.progress, err = readProgress(ck); err != nil {
		return nil, errors.Join(err, ck.Close())
	}
	if err := c.fits(r, data); err != nil {
		return nil, errors.Join(BadInput(fmt.Errorf("--resume %s: %s does not fit the job:\n%w", which, path, err)), ck.Close())
	}
	return r, nil
}

// fits lists what keeps a job from going on from a checkpoint.
func (c *Config) fits(r *resumed, data string) error {
	var errs []error
	want := map[string]bool{}
	kinds := append([]string{zero.Master}, c.Optimizer.rule().States()...)
	for _, t := range c.tensors(kinds) {
		want[t.Name] = true
		have, ok := r.Tensor(t.Name, t.Kind)
		switch {
		case !ok && t.Kind != zero.Master && !r.trained(): // an imported model: optimizer state starts at zero
		case !ok && t.Kind != zero.Master:
			errs = append(errs, fmt.Errorf("  %s has no %s, which optimizer %s needs: resume with the optimizer it was trained with, or export it and start from it with model.from", t.Name, t.Kind, c.Optimizer.Type))
		case !ok:
			errs = append(errs, fmt.Errorf("  %s is not in it: resume with the model it was trained with", t.Name))
		case fmt.Sprint(have.Shape) != fmt.Sprint(t.Shape):
			errs = append(errs, fmt.Errorf("  %s has shape %v in it, %v in the job", t.Name, have.Shape, t.Shape))
		}
	}
	for _, t := range r.Tensors {
		if !want[t.Name] && t.Kind != checkpoint.Attached {
			errs = append(errs, fmt.Errorf("  %s is in it and not in the job's model", t.Name))
		}
	}
	const again = "the order of the data would not go on: start a new run from it with `zeroth ckpt export` and model.from"
	switch {
	case !r.trained():
	case r.Data != data:
		errs = append(errs, fmt.Errorf("  it was trained on other data (fingerprint %.12s, now %.12s); %s", r.Data, data, again))
	case r.Seed != c.Train.Seed:
		errs = append(errs, fmt.Errorf("  it was trained with train.seed %d, the job says %d; %s", r.Seed, c.Train.Seed, again))
	case r.Context != c.Model.Context:
		errs = append(errs, fmt.Errorf("  it was trained on %d tokens a sample, the job says %d; %s", r.Context, c.Model.Context, again))
	}
	if len(errs) > 5 {
		errs = append(errs[:5], fmt.Errorf("  and %d more", len(errs)-5))
	}
	return errors.Join(errs...)
}
