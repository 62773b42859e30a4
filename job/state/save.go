package state

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"zeroth/checkpoint"
	"zeroth/checkpoint/safetensors"
	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/spec"
	"zeroth/shard"
	"zeroth/zero"
)

// Saver writes the checkpoints of one rank, together with those of the others. A save copies
// the rank's share of the state into staging memory and writes it from there, or directly if
// it rests in memory and training waits. With async the staging memory holds all of the state
// and is filled during the next step, before its update, so that training hardly waits.
// Without async it is small and reused.
//
// Frozen parameters, and the files that belong to the model, do not change: the first save
// writes them to a base folder, which later checkpoints name.
type Saver struct {
	J        *setup.Job
	Rank     *setup.Rank
	group    collective.Group // used by saves alone, so that they run concurrently with training's collectives
	queue    setup.Queue
	stage    staging
	tuner    *checkpoint.Tuner
	base     string            // base folder, empty until it is written; only the save in flight writes this field
	step     int               // of the save in flight
	done     chan Saved        // capacity 1: receives the result of the save in flight; nil: none is
	Kept     chan error        // capacity 1: receives the result of the retention in progress; nil: none is
	stays    []checkpoint.Left // folders that the last retention could not delete; it owns this field until it has ended
	Reported map[string]bool   // names of the folders of stays that were reported

	mu      sync.Mutex
	busy    bool // a save of this rank is in flight
	stopped bool // no further save begins
}

// Saved describes how a save ended.
type Saved struct {
	Step    int
	path    string
	Err     error
	Blocked time.Duration // how long the training loop waited
	Took    time.Duration // from the start to the end
}

// OpenSavers returns a saver for each rank of this process, closed with the rank, or nils for
// a job without checkpoints.
func OpenSavers(j *setup.Job, ranks []*setup.Rank) (savers []*Saver, err error) {
	savers = make([]*Saver, len(ranks))
	if !setup.Saves(j.Job) {
		return savers, nil
	}
	groups := j.Connection.Saves()
	tuner := &checkpoint.Tuner{}
	for i, r := range ranks {
		if savers[i], err = newSaver(j, r, groups[i], tuner); err != nil {
			return nil, fmt.Errorf("rank %d: %w", r.Rank, err)
		}
		r.AtClose(savers[i].close)
	}
	return savers, nil
}

func newSaver(j *setup.Job, r *setup.Rank, g collective.Group, tuner *checkpoint.Tuner) (*Saver, error) {
	q, buf, err := r.OpenSaves(j.Job)
	if err != nil {
		return nil, err
	}
	s := &Saver{J: j, Rank: r, group: r.Recorder.Watchdog(g, j.Parallel.Timeout, "saves", true), queue: q, tuner: tuner,
		Reported: map[string]bool{}}
	s.stage.buf = buf
	s.stage.halved = !j.Checkpoint.Async && buf.N < r.Trainer.StateLen()
	return s, nil
}

// Save starts a checkpoint of the state at this step boundary; End returns how it ended. No
// other save or retention may be in flight. Without async it is written when Save returns.
func (s *Saver) Save(p Progress, metrics map[string]float64) error {
	begin := time.Now()
	put := func(w *checkpoint.Writer, frozen bool) error {
		return s.Rank.Trainer.EachAll(frozen, s.stage.take, putter(w, &s.stage), putter(w, nil)) // nothing changes while training waits
	}
	copied := func() error { return nil }
	if s.J.Checkpoint.Async {
		parts, wait := s.Rank.Trainer.Snapshot(s.base != "", s.stage.take)
		copied = sync.OnceValue(wait)
		put = func(w *checkpoint.Writer, frozen bool) error {
			if err := copied(); err != nil {
				return err
			}
			return putAll(parts, frozen, putter(w, nil))
		}
	}
	blocked := time.Since(begin)
	done, kept := make(chan Saved, 1), make(chan error, 1)
	s.done, s.Kept, s.step = done, kept, p.Step
	s.begins()
	write := func() error {
		path, err := s.write(p, metrics, put)
		s.ends()
		if err != nil {
			_ = copied() // which must end before done frees the staging memory; err came first
		}
		done <- Saved{p.Step, path, err, blocked, time.Since(begin)}
		return err
	}
	if s.J.Checkpoint.Async {
		go func() { kept <- s.Retain(write(), p.Early) }() // ends before tidy returns
		return nil
	}
	err := write()
	go func() { kept <- s.Retain(err, p.Early) }() // likewise: deleting takes as long as a good part of writing
	return nil
}

func (s *Saver) begins() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = true
}

func (s *Saver) ends() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy = false; s.stopped {
		_ = s.group.Close() // in-process groups cannot fail to close
	}
}

// Abandon ends the save and the retention in flight.
func (s *Saver) Abandon() {
	_ = s.group.Close() // it has failed
	s.End(true)
	_ = s.Tidy() // nothing was saved
}

// Regroup makes a saver whose saves were abandoned one of the world after a loss.
func (s *Saver) Regroup(g collective.Group) (err error) {
	setup.Clear(s.queue)
	s.group, s.stopped = s.Rank.Recorder.Watchdog(g, s.J.Parallel.Timeout, "saves", true), false
	s.stage.buf, err = s.Rank.GrowSaves(s.J.Job, s.stage.buf)
	s.stage.halved = !s.J.Checkpoint.Async && s.stage.buf.N < s.Rank.Trainer.StateLen()
	return err
}

// Base returns the name of the base folder, or "". No save may be in flight.
func (s *Saver) Base() string { return s.base }

// UseBase makes the saver go on from the base folder of another rank's.
func (s *Saver) UseBase(name string) { s.base = name }

// Leave announces that the rank has failed, so that ranks that start a save fail at once. It
// finishes a save that it has started first.
func (s *Saver) Leave() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped = true; !s.busy {
		_ = s.group.Close() // likewise
	}
}

// Retain deletes the checkpoints that no rule keeps, after a save that ended with err. That of the best
// evaluation stays if it is the job's result.
func (s *Saver) Retain(err error, best *Early) error {
	if err != nil || s.Rank.Rank != 0 {
		return nil
	}
	keep := s.J.Checkpoint.Keep
	if s.J.Train.Best() && best != nil {
		keep.Step = int64(best.Step)
	}
	var gone checkpoint.Pruned
	if s.J.Hold != nil {
		gone, err = s.J.Hold.Prune(keep)
	} else {
		gone, err = checkpoint.Prune(s.J.Checkpoint.Dir, keep)
	}
	s.stays = slices.Concat(gone.Left, gone.Damaged)
	return err
}

// Stays returns the folders that retention could not delete, as found by the last Tidy, each once
// per run.
func (s *Saver) Stays() (news []checkpoint.Left) {
	for _, x := range s.stays {
		if !s.Reported[x.Name] {
			news = append(news, x)
			s.Reported[x.Name] = true
		}
	}
	s.stays = nil
	return news
}

// Tidy waits for the retention after the last save that End has returned.
func (s *Saver) Tidy() error {
	if s.Kept == nil {
		return nil
	}
	err := <-s.Kept
	s.Kept = nil
	return err
}

// putAll passes the parts of frozen parameters, or those of trained ones.
func putAll(parts []zero.Staged, frozen bool, to func(zero.Part, []float32) error) error {
	for _, p := range parts {
		if p.Param.Frozen != frozen {
			continue
		}
		if err := to(p.Part, p.Data); err != nil {
			return err
		}
	}
	return nil
}

// End returns how the save in flight ended, or nil if there is none, or if it has not ended
// and wait is false.
func (s *Saver) End(wait bool) *Saved {
	if s.done == nil || !wait && len(s.done) == 0 {
		return nil
	}
	end := <-s.done
	if !s.J.Checkpoint.Async {
		end.Blocked = end.Took
	}
	s.done = nil
	s.stage.reset()
	return &end
}

// String describes the end of a save.
func (e Saved) String() string {
	if e.Err != nil {
		return fmt.Sprintf("checkpoint of step %d failed: %v", e.Step, e.Err)
	}
	return fmt.Sprintf("checkpoint %s written in %s, training waited %s", e.path, show.Span(e.Took.Seconds()), e.Blocked.Round(100*time.Microsecond))
}

// putter returns a function that passes parts to a checkpoint's writer, which returns their
// staging memory when they are written. A nil stage gets nothing back.
func putter(w *checkpoint.Writer, stage *staging) func(zero.Part, []float32) error {
	return func(p zero.Part, data []float32) error {
		t := tensor(p.Param, p.Kind)
		raw, ok := safetensors.Bytes(data)
		if !ok {
			raw = make([]byte, 4*len(data))
			safetensors.Encode(raw, data, checkpoint.F32)
		}
		if stage == nil {
			return w.PutPart(t, p.Param.Cut, p.At, raw, nil)
		}
		return w.PutPart(t, p.Param.Cut, p.At, raw, stage.giver())
	}
}

// write writes a checkpoint, after its base folder if there is none yet. After an error the next
// save writes another, in case this one is gone.
func (s *Saver) write(p Progress, metrics map[string]float64, put func(w *checkpoint.Writer, frozen bool) error) (path string, err error) {
	frozen, trained := divided(s.J)
	defer func() {
		if err != nil {
			s.base = ""
		}
	}()
	share := func(still bool) func(*checkpoint.Writer) error {
		return func(w *checkpoint.Writer) error {
			if still == (len(frozen) > 0) { // the files are where divided puts them
				if err := s.attach(w); err != nil {
					return err
				}
			}
			return put(w, still)
		}
	}
	if len(frozen) > 0 && s.base == "" {
		if path, err = s.together(p.Step, bytesOf(frozen), share(true), checkpoint.Commit{Tensors: frozen, AsBase: true}); err != nil {
			return "", err
		}
		s.base = filepath.Base(path)
	}
	var expect int64
	if s.Rank.Rank == 0 { // which begins the save; listing checkpoints reads all their manifests
		expect = expects(s.J, bytesOf(trained))
	}
	return s.together(p.Step, expect, share(false), checkpoint.Commit{Tensors: trained, State: p.JSON(), Metrics: metrics, Base: s.base})
}

// together saves with all ranks; put puts this rank's share.
func (s *Saver) together(step int, expect int64, put func(*checkpoint.Writer) error, c checkpoint.Commit) (string, error) {
	gather := func(mine []byte) ([][]byte, error) { return collective.GatherBytes(s.group, s.queue, mine) }
	all := checkpoint.Rank{Rank: s.Rank.Rank, World: s.group.Size(), Gather: gather}
	opt := checkpoint.Options{FS: s.J.Files(), Hold: s.J.Hold, Compress: s.J.Checkpoint.Compression(), Tuner: s.tuner, Expect: expect}
	return all.Together(s.J.Checkpoint.Dir, int64(step), opt, put, func() (checkpoint.Commit, error) { return c, nil })
}

// attach adds the files that belong to the model. Only the first rank calls it.
func (s *Saver) attach(w *checkpoint.Writer) error {
	if s.Rank.Rank != 0 {
		return nil
	}
	for _, f := range s.J.Carried.Files {
		if err := w.Attach(f); err != nil {
			return err
		}
	}
	return nil
}

// GoesOnFrom makes the saver use the base folder of the checkpoint that the run resumes from, if it
// is in the job's folder of checkpoints and contains exactly the tensors that the job does not change.
func (s *Saver) GoesOnFrom(ck *checkpoint.Checkpoint) error {
	frozen, _ := divided(s.J)
	if ck.Base == nil || !sameTensors(frozen, ck.Base.Tensors) {
		return nil
	}
	at, err := filepath.Abs(filepath.Dir(ck.Base.Path))
	dir, wrong := filepath.Abs(s.J.Checkpoint.Dir)
	if err = cmp.Or(err, wrong); err != nil || at != dir {
		return err
	}
	for _, f := range s.J.Carried.Files {
		had := make([]byte, len(f.Data))
		if err := ck.Read(f.Path, checkpoint.Attached, shard.Range{Hi: len(had)}, had); err != nil || !bytes.Equal(had, f.Data) {
			return err
		}
	}
	s.base = filepath.Base(ck.Base.Path)
	return nil
}

// sameTensors reports whether two lists, in any order, have the same tensors.
func sameTensors(a, b []checkpoint.Tensor) bool {
	describe := func(ts []checkpoint.Tensor) (all []string) {
		for _, t := range ts {
			all = append(all, fmt.Sprintf("%q %s %s %v", t.Name, t.Kind, t.DType, t.Shape))
		}
		slices.Sort(all)
		return all
	}
	return slices.Equal(describe(a), describe(b))
}

// Expects returns the approximate size of the first checkpoint in bytes, with its base folder.
func Expects(c *setup.Job) int64 {
	frozen, trained := divided(c)
	return bytesOf(frozen) + expects(c, bytesOf(trained))
}

// expects returns the approximate size of a save of n bytes: that or, if compression is possible,
// the size of the newest checkpoint if it is smaller.
func expects(c *setup.Job, n int64) int64 {
	compress := c.Checkpoint.Compression()
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

func bytesOf(ts []checkpoint.Tensor) (n int64) {
	for _, t := range ts {
		n += t.Bytes()
	}
	return n
}

// divided returns the tensors in a checkpoint of the job: frozen ones, if the job freezes
// parameters, and the others. They include the files that belong to the model.
func divided(c *setup.Job) (frozen, trained []checkpoint.Tensor) {
	still := map[string]bool{}
	for _, p := range spec.Parameters(c.Job) {
		still[p.Name] = p.Frozen
	}
	for _, t := range Tensors(c.Job) {
		if still[t.Name] {
			frozen = append(frozen, t)
		} else {
			trained = append(trained, t)
		}
	}
	to := &trained
	if len(frozen) > 0 {
		to = &frozen
	}
	for _, f := range c.Carried.Files {
		*to = append(*to, f.Tensor())
	}
	return frozen, trained
}

// Tensors returns all tensors of a checkpoint of the job, without files.
func Tensors(c *spec.Job) (all []checkpoint.Tensor) {
	rules := setup.Rules(c)
	for _, p := range spec.Parameters(c) {
		for _, kind := range zero.KindsOf(p, rules, c.Train.Delayed) {
			all = append(all, tensor(fsdp.Stored(p), kind))
		}
	}
	return all
}

// tensor returns the tensor of a parameter's state of a kind.
func tensor(p shard.Param, kind string) checkpoint.Tensor {
	t := checkpoint.Tensor{Name: p.Name, Kind: kind, DType: checkpoint.F32, Shape: p.Tensor()}
	if p.Codes != nil {
		t.DType = checkpoint.U32
	}
	return t
}

// FinishSaves waits for the save that all ranks had in flight when a run failed. Its state is
// in staging memory, which the failure cannot reach. A save that some rank never started is
// abandoned.
func FinishSaves(savers []*Saver, report func(Saved)) {
	for _, s := range savers {
		if s == nil || s.done == nil || s.step != savers[0].step {
			return
		}
	}
	for _, s := range savers {
		if end := s.End(true); s.Rank.Rank == 0 {
			report(*end)
		}
	}
}

// close closes the saver. A save in flight that nobody waited for fails unless all its parts
// are written.
func (s *Saver) close() {
	_ = s.group.Close() // in-process groups cannot fail to close
	s.End(true)
	_ = s.Tidy() // the loop that ended well has heard of it
	s.queue.Close()
	s.Rank.HostMemory().Free(s.stage.buf)
}

// staging is memory that parts are copied to and written from. It is used once from start to
// end or, if it is small, in halves: one is filled while the other is written.
type staging struct {
	buf    device.Buffer // float32
	halved bool
	used   int               // elements from the start of buf
	half   int               // 0 or 1
	out    [2]sync.WaitGroup // parts of each half that are not given back
}

// take returns memory for n elements, at most a half, and waits until it is free.
func (s *staging) take(n int) []float32 {
	end := s.buf.N
	if s.halved && s.half == 0 {
		end /= 2
	}
	if s.used+n > end {
		if !s.halved {
			panic(fmt.Sprintf("state: %d elements to stage, space for %d", s.used+n, s.buf.N))
		}
		s.half = 1 - s.half
		s.out[s.half].Wait()
		s.used = s.half * (s.buf.N / 2)
	}
	s.used += n
	s.out[s.half].Add(1)
	return s.buf.Slice(s.used-n, s.used).F32()
}

// giver returns the function that releases the part that was taken last.
func (s *staging) giver() func() { return s.out[s.half].Done }

// reset takes back all parts, because nobody reads them any more.
func (s *staging) reset() {
	s.used, s.half, s.out = 0, 0, [2]sync.WaitGroup{}
}
