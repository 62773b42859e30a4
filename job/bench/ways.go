package bench

import (
	"fmt"
	"slices"

	"zeroth/config"
	"zeroth/internal/input"
	"zeroth/job/spec"
)

// way is a way to train a job on several ranks.
type way struct {
	name   string
	stage  int
	along  string // key of the number of ranks that divide the model or its experts; empty: ranks only divide the batch
	extra  string // another key=value of this way; may be empty
	copies int    // replicas of the sharded state; 0: one
}

const expertKey = "parallel.expert"

// ways lists the ways that Compare supports, in the order of its table.
var ways = []way{
	{name: "master", extra: "parallel.master=true"},
	{name: "ddp"},
	{name: "zero1", stage: 1},
	{name: "zero2", stage: 2},
	{name: "zero3", stage: 3},
	{name: "hybrid", stage: 3, copies: 2},
	{name: "tensor", stage: 1, along: "parallel.tensor"},
	{name: "context", stage: 1, along: "parallel.context"},
	{name: "expert", stage: 1, along: expertKey},
	{name: "gpipe", stage: 1, along: "parallel.pipeline", extra: "pipeline.schedule=GPipe"},
	{name: "1f1b", stage: 1, along: "parallel.pipeline", extra: "pipeline.schedule=1F1B"},
	{name: "interleaved1f1b", stage: 1, along: "parallel.pipeline", extra: "pipeline.schedule=Interleaved1F1B"},
	{name: "zbh1", stage: 1, along: "parallel.pipeline", extra: "pipeline.schedule=ZBH1"},
}

// Ways returns the names of all ways to train.
func Ways() (names []string) {
	for _, w := range ways {
		names = append(names, w.name)
	}
	return names
}

// placed lists the keys that ways set; untimed lists settings that leave out what would only
// prolong runs.
var (
	placed = []string{"parallel.pipeline", "parallel.shard", "parallel.replicate", expertKey, "parallel.context", "parallel.tensor", "parallel.master",
		"pipeline.schedule", "pipeline.virtual", "pipeline.layers", "train.accumulate", "train.epochs",
		"train.early_stop.patience", "train.early_stop.metric", "checkpoint.every", "checkpoint.save_on_exit", "checkpoint.keep"}
	untimed = []string{"train.eval_every=0", "sample.tokens=0"}
)

// sets returns the settings of a way with along ranks along its dimension.
func (w way) sets(job *spec.Job, steps, along int) []string {
	var sets []string
	for _, key := range placed {
		if _, known := config.Explain(key); known {
			sets = append(sets, key+"=null")
		}
	}
	readers := job.Parallel.Ranks
	if w.along != expertKey { // ranks that divide experts read data of their own
		readers = max(1, readers/along)
	}
	micro := largestDivisor(job.Train.Batch/readers, job.Train.MicroBatch)
	sets = append(append(sets, untimed...), fmt.Sprintf("parallel.ranks=%d", job.Parallel.Ranks),
		fmt.Sprintf("train.batch=%d", job.Train.Batch), fmt.Sprintf("train.micro_batch=%d", micro), fmt.Sprintf("train.steps=%d", steps))
	return append(sets, w.own(along)...)
}

// own returns the settings that turn a job without any of them into the way.
func (w way) own(along int) []string {
	sets := []string{fmt.Sprintf("zero.stage=%d", w.stage)}
	if w.copies > 1 {
		sets = append(sets, fmt.Sprintf("parallel.replicate=%d", w.copies))
	}
	if w.along != "" {
		sets = append(sets, fmt.Sprintf("%s=%d", w.along, along))
	}
	if w.extra != "" {
		sets = append(sets, w.extra)
	}
	return sets
}

// largestDivisor returns the largest divisor of n up to most.
func largestDivisor(n, most int) int {
	for d := min(n, most); d > 1; d-- {
		if n%d == 0 {
			return d
		}
	}
	return 1
}

// Load reads a job with some keys set.
type Load func(sets []string) (*spec.Job, error)

// chosen is a way with its job, or the reason why there is none.
type chosen struct {
	way
	set    []string // settings that select the way
	job    *spec.Job
	refuse error
}

// choose makes a job for each way. Ways along the same dimension get the same number of ranks along
// it, the largest that most of them support, so that they can be compared.
func choose(job *spec.Job, load Load, names []string, steps int) (all []chosen, err error) {
	along := map[string]int{"": 1}
	for _, w := range ways {
		if !slices.Contains(names, w.name) {
			continue
		}
		if along[w.along] == 0 {
			if along[w.along], err = longest(job, load, w.along, names, steps); err != nil {
				return nil, err
			}
		}
		c, err := w.load(job, load, steps, along[w.along])
		if err != nil && !input.IsInput(err) {
			return nil, err
		}
		all = append(all, chosen{w, w.own(along[w.along]), c, err})
	}
	return all, nil
}

// longest returns the largest number of ranks along a dimension that most ways support.
func longest(job *spec.Job, load Load, along string, names []string, steps int) (best int, err error) {
	most := -1
	for n := job.Parallel.Ranks; n > 1; n-- {
		if job.Parallel.Ranks%n != 0 {
			continue
		}
		can := 0
		for _, w := range ways {
			if w.along != along || !slices.Contains(names, w.name) {
				continue
			}
			switch _, err := w.load(job, load, steps, n); {
			case err == nil:
				can++
			case !input.IsInput(err):
				return 0, err
			}
		}
		if can > most {
			best, most = n, can
		}
	}
	return best, nil
}

// load returns the job in a way.
func (w way) load(job *spec.Job, load Load, steps, along int) (*spec.Job, error) {
	if n := job.Parallel.Ranks; w.copies > 1 && n < 2*w.copies {
		return nil, input.BadInput(fmt.Errorf("%d copies of shards on %d ranks: a shard would be all of the state; want parallel.ranks of %d or more", w.copies, n, 2*w.copies))
	}
	return load(w.sets(job, steps, along))
}
