package forecast

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"sync"

	"zeroth/config"
	"zeroth/device"
	"zeroth/internal/parallel"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/pipe"
	"zeroth/zero"
)

// search is the state of a search. Every setting is tried once: by a dry run and, if it fits, by a
// simulation.
type search struct {
	limits    Limits
	job       *spec.Job // on the available ranks
	undivided bool      // micro-batches are fixed
	ownMesh   bool      // the mesh is the job's
	untimed   bool      // whatever fits is equally good
	quick     *search   // untimed, for what needs bytes alone

	over  func(*Choice) int64 // bytes missing; a choice fits if there are none
	mu    sync.Mutex
	tried map[string]func() (*Choice, error)
}

func newSearch(c *spec.Job, l Limits) *search {
	s := &search{limits: l, job: onRanks(c, l.Ranks).Building(), over: (*Choice).over, tried: map[string]func() (*Choice, error){}}
	s.quick = &search{limits: l, job: s.job, over: s.over, untimed: true, tried: map[string]func() (*Choice, error){}}
	return s
}

// measure returns a setting as a choice. It may be called concurrently.
func (s *search) measure(x *spec.Job) (*Choice, error) {
	z, p, t := x.Zero, x.Parallel, x.Train
	mesh := []int{p.Pipeline, p.Context, p.Tensor, p.Expert, p.Shard, p.Replicate}
	key := fmt.Sprint(z.Stage, z.Recompute, z.Prefetch, z.Offload, mesh, x.Pipeline, t.MicroBatch, t.Accumulate, t.LossChunk, t.MLPChunk, x.Optimizer.Type)
	s.mu.Lock()
	f := s.tried[key]
	if f == nil {
		f = sync.OnceValues(func() (*Choice, error) { return s.dryRun(x) })
		s.tried[key] = f
	}
	s.mu.Unlock()
	return f()
}

// dryRun makes a dry run of a setting and, if it fits, simulates it.
func (s *search) dryRun(x *spec.Job) (*Choice, error) {
	m := s.limits.machine(x)
	needs, err := setup.DryRun(m.Job(x))
	if err != nil {
		return nil, err
	}
	if s.limits.GPU {
		needs.Device[device.Workspace] = 0
	}
	c := &Choice{Config: x, Sets: differs(s.job, x), Needs: needs, limits: s.limits}
	c.Low, c.High = Sum(Outside(x, m))
	if !s.untimed && s.over(c) <= 0 {
		c.simulate()
	}
	return c, nil
}

// simulate simulates a step of the choice.
func (c *Choice) simulate() {
	if c.Simulated == nil {
		c.Simulated, _ = SimulateUntraced(setup.Planned(c.Config), c.limits.hardware()) // with an error it has too many tasks, or takes too long
	}
}

// all returns all choices tried, in the order of the settings.
func (s *search) all() (list []*Choice) {
	for _, key := range slices.Sorted(maps.Keys(s.tried)) {
		if c, err := s.tried[key](); err == nil {
			list = append(list, c)
		}
	}
	return list
}

// each tries settings on all processors and returns the choices among them. Settings that cannot
// be combined are omitted.
func (s *search) each(some []*spec.Job) (list []*Choice) {
	all := make([]*Choice, len(some))
	_ = parallel.For(context.Background(), len(some), 0, func(_ context.Context, i int) error {
		if x := some[i]; spec.Accepts(x) && counts(x) {
			all[i], _ = s.measure(x)
		}
		return nil
	})
	return slices.DeleteFunc(all, func(c *Choice) bool { return c == nil })
}

// compare orders choices: fitting ones by speed, others by the least memory missing.
func (s *search) compare(a, b *Choice) int {
	x, y := max(0, s.over(a)), max(0, s.over(b))
	if x > 0 || y > 0 || s.untimed {
		return cmp.Compare(x, y)
	}
	return cmp.Or(cmp.Compare(a.Seconds(), b.Seconds()), cmp.Compare(len(a.Sets), len(b.Sets)))
}

// better reports whether a is worth a change from b: it lacks less, or is faster by a thousandth.
func (s *search) better(a, b *Choice) bool {
	if max(0, s.over(a), s.over(b)) > 0 || s.untimed {
		return s.compare(a, b) < 0
	}
	return a.Seconds() < 0.999*b.Seconds()
}

// starts is the number of meshes from which a search descends, besides the job's.
const starts = 3

// descend climbs from the job, from the job with the settings that need least memory, and from the
// best of all meshes with these settings.
func (s *search) descend(job *Choice) (best *Choice) {
	best = s.climb(job)
	if s.found(best) {
		return best
	}
	from := s.leanMeshes(best)
	slices.SortStableFunc(from, s.compare)
	for _, c := range from[:min(starts, len(from))] {
		if c = s.climb(c); s.better(c, best) {
			best = c
		}
	}
	for again := s.limits.Host > 0 && !s.untimed; again; {
		again = false
		for _, c := range s.each(s.offloadsOfMicroBatches(best.Config)) {
			if s.better(c, best) {
				best, again = c, true
			}
		}
		if again {
			best = s.climb(best)
		}
	}
	return best
}

// offloadsOfMicroBatches returns the offloads for micro-batches of the next and the previous size,
// because a larger one may need parameters or more of the optimizer state elsewhere.
func (s *search) offloadsOfMicroBatches(x *spec.Job) (all []*spec.Job) {
	sizes := s.microBatches(x)
	own := slices.IndexFunc(sizes, func(y *spec.Job) bool { return y.Train.MicroBatch == x.Train.MicroBatch })
	for _, y := range sizes[max(0, own-1):min(len(sizes), own+2)] {
		all = append(all, s.offloads(y)...)
	}
	return all
}

// leanMeshes tries the job with lean settings, with and without recomputation, on its own and on all
// other meshes: those that divide the model among fewest ranks first, as long as dividing it more
// helps. Shard groups are those of a choice if it fits, because gathers by all ranks are slow.
func (s *search) leanMeshes(found *Choice) (tried []*Choice) {
	lean := s.lean(s.job)
	if data := lean.Parallel.Holders(); s.over(found) <= 0 && data%found.Config.Parallel.Shard == 0 {
		lean.Parallel.Shard = found.Config.Parallel.Shard
		lean.Parallel.Replicate = data / lean.Parallel.Shard
	}
	whole := lean.Copy()
	recompute(whole, "none")
	meshes := append([]*spec.Job{lean, whole}, slices.Concat(s.meshes(lean), s.meshes(whole))...)
	slices.SortStableFunc(meshes[2:], func(x, y *spec.Job) int { return cmp.Compare(y.Parallel.DataRanks(), x.Parallel.DataRanks()) })
	var best *Choice
	for vain := 0; len(meshes) > 0 && vain < 2; {
		alike := 1
		for alike < len(meshes) && meshes[alike].Parallel.DataRanks() == meshes[0].Parallel.DataRanks() {
			alike++
		}
		vain++
		for _, c := range s.each(meshes[:alike]) {
			if best == nil || s.better(c, best) {
				best, vain = c, 0
			}
			tried = append(tried, c)
		}
		if meshes = meshes[alike:]; best == nil || s.over(best) > 0 {
			vain = 0
		}
	}
	return tried
}

// found reports whether the search needs nothing better than a choice.
func (s *search) found(c *Choice) bool { return s.untimed && s.over(c) <= 0 }

// climb changes one setting of a choice at a time, always to its best value, until no change makes
// the choice better.
func (s *search) climb(best *Choice) *Choice {
	for again := true; again; {
		again = false
		for _, axis := range axes {
			if s.found(best) {
				return best
			}
			for _, c := range s.each(axis(s, best.Config)) {
				if s.better(c, best) {
					best, again = c, true
				}
			}
		}
	}
	return best
}

// axes are the settings that a search changes: each returns the values of one setting, or of some
// that depend on each other, in copies of a job.
var axes = []func(*search, *spec.Job) []*spec.Job{
	(*search).meshesNear, (*search).experts, (*search).stages, (*search).shards, (*search).microBatches,
	(*search).passes, (*search).chunks, (*search).schedules, (*search).offloads,
}

// lean returns the job with settings that need little device memory, on its mesh.
func (s *search) lean(x *spec.Job) *spec.Job {
	x = x.Copy()
	x.Zero.Stage, x.Zero.Recompute, x.Zero.Prefetch = 3, config.Recomputes[len(config.Recomputes)-1], 1
	if chunkable(x) {
		x.Train.MLPChunk = chunk
	}
	x.Parallel.Shard, x.Parallel.Replicate = x.Parallel.Holders(), 1
	x.Train.LossChunk = min(x.Train.LossChunk, 1024)
	if !s.undivided {
		x.Train.MicroBatch, x.Train.Accumulate = 1, x.Train.MicroBatch*x.Train.Accumulate
	}
	if s.limits.Host > 0 {
		x.Zero.Offload.Optimizer, x.Zero.Offload.Parameters, x.Zero.Offload.Ratio = "host", "host", 1
		x.Zero.Offload.Activations = s.activations()[0]
	}
	return x
}

// mostPipeline returns the maximum number of ranks of a pipeline in a search. Long pipelines take longest to
// simulate, and stages of one block are no use in them.
func mostPipeline(layers int) int { return min(32, max(8, layers/2), layers) }

// meshes returns the job on every mesh. Matrices and positions are divided within a host.
func (s *search) meshes(x *spec.Job) (all []*spec.Job) {
	ranks, near := x.Parallel.Ranks, x.Parallel.Ranks
	if links := s.limits.hardware().Links; len(links) > 1 {
		near = min(near, links[0].Ranks)
	}
	if s.ownMesh || s.limits.Hardware == nil {
		return nil
	}
	for _, tensor := range divisors(ranks) {
		for _, context := range divisors(ranks / tensor) {
			if tensor*context > near || max(tensor, context) > 1 && x.Own.Model != nil || tensor > 1 && spec.Coded(x) {
				break
			}
			for _, pipeline := range divisors(ranks / tensor / context) {
				if y := meshed(x, pipeline, context, tensor); y != nil && pipeline <= mostPipeline(x.Model.Layers) {
					all = append(all, y)
				}
			}
		}
	}
	return all
}

// meshesNear returns the meshes in which one dimension has its next or previous size, or takes over a
// factor from another.
func (s *search) meshesNear(x *spec.Job) []*spec.Job {
	p := x.Parallel
	return slices.DeleteFunc(s.meshes(x), func(y *spec.Job) bool {
		q := y.Parallel
		changes, all := 0, 0.0
		for _, d := range [][2]int{{p.Pipeline, q.Pipeline}, {p.Context, q.Context}, {p.Tensor, q.Tensor}} {
			step := math.Log2(float64(d[1]) / float64(d[0]))
			if all += step; step != 0 {
				changes++
			}
			if math.Abs(step) > math.Log2(3) {
				return true
			}
		}
		return changes > 2 || changes == 2 && math.Abs(all) > math.Log2(1.5)
	})
}

// meshed returns a job on another mesh with the same sequences a step, nil if its ranks do not
// divide them.
func meshed(x *spec.Job, pipeline, context, tensor int) *spec.Job {
	was := x.Parallel
	x = x.Copy()
	x.Parallel.Pipeline, x.Parallel.Context, x.Parallel.Tensor = pipeline, context, tensor
	data := x.Parallel.DataRanks()
	if data%max(1, x.Parallel.Expert) != 0 || x.Train.Batch%data != 0 {
		return nil
	}
	holders := x.Parallel.Holders()
	if x.Parallel.Shard = was.Shard; holders%was.Shard != 0 || was.Replicate == 1 {
		x.Parallel.Shard = holders
	}
	x.Parallel.Replicate = holders / x.Parallel.Shard
	sequences := x.Train.Batch / data
	for x.Train.MicroBatch = min(sequences, x.Train.MicroBatch); sequences%x.Train.MicroBatch != 0; {
		x.Train.MicroBatch--
	}
	if x.Train.Accumulate = sequences / x.Train.MicroBatch; pipeline != was.Pipeline {
		x.Pipeline = plain
	}
	return x
}

// stages returns the job at every stage.
func (s *search) stages(x *spec.Job) (all []*spec.Job) {
	for stage := range zero.Stages {
		y := x.Copy()
		y.Zero.Stage = stage
		if stage == 0 {
			y.Parallel.Shard, y.Parallel.Replicate = y.Parallel.Holders(), 1
		}
		if stage < 3 {
			y.Zero.Offload.Parameters = "none"
		}
		all = append(all, y)
	}
	return all
}

// experts returns a mixture's job with its experts divided over every number of ranks up to those of a token.
func (s *search) experts(x *spec.Job) (all []*spec.Job) {
	e := x.Model.Experts
	if e.Count == 0 || e.Names.Up == "" || x.Parallel.Master || x.Optimizer.Type == "muon" {
		return nil
	}
	for _, n := range divisors(x.Parallel.DataRanks()) {
		if n > e.Router.TopK || e.Count%n != 0 {
			continue
		}
		y := x.Copy()
		y.Parallel.Expert = n
		y.Parallel.Shard, y.Parallel.Replicate = y.Parallel.Holders(), 1
		all = append(all, y)
	}
	return all
}

// shards returns the job with every size of shard groups.
func (s *search) shards(x *spec.Job) (all []*spec.Job) {
	data := x.Parallel.Holders()
	for _, n := range divisors(data) {
		if n*x.Parallel.Context == 1 && data > 1 || x.Zero.Stage == 0 && n < data {
			continue // a single shard is stage 0, and stage 0 has no shard groups
		}
		y := x.Copy()
		y.Parallel.Shard, y.Parallel.Replicate = n, data/n
		all = append(all, y)
	}
	return all
}

// mostChunks is the maximum number of loss chunks in a micro-batch that a search tries; more take long
// to simulate.
const mostChunks = 64

// microBatches returns the job with its own size of micro-batches and the two next smaller and larger
// ones.
func (s *search) microBatches(x *spec.Job) (all []*spec.Job) {
	if s.undivided {
		return nil
	}
	sequences := x.Train.MicroBatch * x.Train.Accumulate
	sizes := microBatches(sequences, x.Train.MicroBatch)
	own := slices.Index(sizes, x.Train.MicroBatch)
	for _, n := range sizes[max(0, own-2):min(len(sizes), own+3)] {
		if n > x.Train.MicroBatch && n*x.Model.Context > mostChunks*x.Train.LossChunk {
			break
		}
		y := x.Copy()
		y.Train.MicroBatch, y.Train.Accumulate = n, sequences/n
		all = append(all, y)
	}
	return all
}

// passes returns the job with every recomputation and prefetch.
func (s *search) passes(x *spec.Job) (all []*spec.Job) {
	for _, level := range config.Recomputes {
		for prefetch := range 3 {
			if prefetch == 2 && x.Zero.Stage < 3 {
				continue // no gathers ahead, and never more than two gradients
			}
			y := x.Copy()
			recompute(y, level)
			y.Zero.Prefetch = prefetch
			all = append(all, y)
		}
	}
	return all
}

// recompute sets the level of recomputation, without what needs a higher one.
func recompute(x *spec.Job, level string) {
	if x.Zero.Recompute = level; !chunkable(x) {
		x.Train.MLPChunk = 0
	}
	if spec.Recompute(x) < nn.RecomputeLinear {
		x.Zero.Offload.Activations = "none"
	}
}

// chunk is the train.mlp_chunk that searches try: products of so many rows are as fast as larger ones.
const chunk = 8192

// chunkable reports whether a job can use train.mlp_chunk, and has more tokens than one.
func chunkable(x *spec.Job) bool {
	return spec.Recompute(x) >= nn.RecomputeMLP && x.Own.Model == nil && x.Model.Experts.Count == 0 &&
		pipelineOf(x).Schedule != string(pipe.ZBH1) && x.Train.MicroBatch*x.Model.Context > cmp.Or(x.Train.MLPChunk, chunk)
}

// chunks returns the job with its own loss chunk and some smaller ones, and with its MLP whole and in chunks.
func (s *search) chunks(x *spec.Job) (all []*spec.Job) {
	own := s.job.Train.LossChunk
	for n := 4096; n >= 256; n /= 4 {
		if n < own && n < x.Train.MicroBatch*x.Model.Context {
			y := x.Copy()
			y.Train.LossChunk = n
			all = append(all, y)
		}
	}
	y := x.Copy()
	y.Train.LossChunk = own
	all = append(all, y)
	if chunkable(x) {
		for _, n := range [...]int{0, cmp.Or(s.job.Train.MLPChunk, chunk)} {
			y := x.Copy()
			y.Train.MLPChunk = n
			all = append(all, y)
		}
	}
	return all
}

// plain is the schedule of a job without a pipeline, and the first to try with one.
var plain = config.Pipeline{Schedule: string(pipe.OneF1B), Virtual: 1}

// schedules returns the job with the schedules worth trying. It omits GPipe, which is as fast as
// 1F1B but has more micro-batches in flight.
func (s *search) schedules(x *spec.Job) (all []*spec.Job) {
	if pipelineOf(x).Schedule == "" {
		return nil
	}
	for _, p := range []config.Pipeline{plain, {Schedule: string(pipe.ZBH1), Virtual: 1},
		{Schedule: string(pipe.Interleaved), Virtual: 2}, {Schedule: string(pipe.Interleaved), Virtual: 4}} {
		y := x.Copy()
		y.Pipeline = p
		recompute(y, y.Zero.Recompute)
		all = append(all, y)
	}
	return all
}

// gpu reports whether ranks are on GPUs.
func (s *search) gpu() bool { return s.limits.GPU || s.job.On() == "cuda" }

// activations returns the places for activations: host memory is one only if ranks are on GPUs.
func (s *search) activations() []string {
	if s.gpu() {
		return []string{"host", "none"}
	}
	return []string{"none"}
}

// offloads returns the job with optimizer state, parameters and activations in all places and, for
// each, some of the ratios that fit.
func (s *search) offloads(x *spec.Job) []*spec.Job {
	if s.limits.Host == 0 {
		return nil
	}
	var all []*spec.Job
	places := config.TierNames
	if s.limits.Disk == 0 {
		places = places[:2]
	}
	levels := config.Recomputes
	for _, optimizer := range places {
		for _, params := range places {
			for i := range 1 + len(s.activations()) {
				y := x.Copy()
				o := &y.Zero.Offload
				o.Optimizer, o.Parameters, o.Activations = optimizer, params, "none"
				if recompute(y, levels[0]); i > 0 { // passes tries those between
					recompute(y, levels[len(levels)-1])
					o.Activations = s.activations()[i-1]
				}
				if params != "none" {
					y.Zero.Stage = 3
				}
				if o.Disk() && o.Path == "" {
					o.Path = "."
				}
				all = append(all, y)
			}
		}
	}
	if s.untimed {
		return all // with everything offloaded
	}
	ratios := make([][]*spec.Job, len(all))
	_ = parallel.For(context.Background(), len(all), 0, func(_ context.Context, i int) error {
		ratios[i] = s.ratios(all[i])
		return nil
	})
	return slices.Concat(ratios...)
}

// microBatches returns the possible sizes of a micro-batch: all divisors, or if there are too
// many, the job's own and the largest up to each power of two.
func microBatches(sequences, own int) (list []int) {
	const few = 32
	all := divisors(sequences)
	if len(all) <= few {
		return all
	}
	for i, n := range all {
		last := i+1 == len(all)
		if n == own || last || bits.Len(uint(all[i+1]-1)) > bits.Len(uint(n-1)) {
			list = append(list, n)
		}
	}
	return list
}

// divisors returns the divisors of n, ascending.
func divisors(n int) (list []int) {
	for i := 1; i*i <= n; i++ {
		if n%i == 0 {
			list = append(list, i)
			if i*i < n {
				list = append(list, n/i)
			}
		}
	}
	slices.Sort(list)
	return list
}
