package job

import (
	"math/bits"

	"zeroth/data"
	"zeroth/job/spec"
	"zeroth/zero"
)

// windows are a part of the data: a data.Split or a data.Sliding.
type windows interface {
	Windows() int64 // 0: there is no end
	Learned(first, n int64) int
	Lengths(first, n int64) (positions, tokens int)
	Batch(into []data.Values, first int64) error
}

// evalSamples are the samples of an evaluation on a rank. They are numbered over all ranks, which take
// turns of a micro-batch; the last micro-batches are filled up with samples that do not count.
type evalSamples struct {
	parts  []windows
	all    int64 // windows of parts; 0: there is no end
	n      int64 // samples, at most all; it does not depend on the number of ranks
	share  data.Share
	reader int // this rank's index in share
	fields []data.Field
}

// newEvalSamples returns the samples of an evaluation of at most most samples; 0: of all windows.
func newEvalSamples(c *spec.Job, rank int, most int64, parts ...windows) *evalSamples {
	m := spec.Mesh(c)
	e := &evalSamples{parts: parts, n: most, fields: spec.Fields(c), reader: m.DataRank(rank),
		share: data.Share{Batch: m.DataRanks() * c.Train.MicroBatch, MicroBatch: c.Train.MicroBatch, Replicas: 1, Ranks: m.DataRanks()}}
	for _, p := range parts {
		e.all += p.Windows()
	}
	if e.all > 0 && (most == 0 || most > e.all) {
		e.n = e.all
	}
	return e
}

// window returns the part that has the window of sample i, and its number there. The samples have
// different windows, spread evenly over all; after the last sample, that of the last.
func (e *evalSamples) window(i int64) (windows, int64) {
	i = min(i, e.n-1)
	if e.all == 0 {
		return e.parts[0], i
	}
	hi, lo := bits.Mul64(uint64(i), uint64(e.all))
	w, _ := bits.Div64(hi, lo, uint64(e.n))
	at, part := int64(w), 0
	for at >= e.parts[part].Windows() {
		at -= e.parts[part].Windows()
		part++
	}
	return e.parts[part], at
}

// learned returns the number of targets with a loss in n samples from number first on.
func (e *evalSamples) learned(first, n int64) (sum int64) {
	for i := first; i < min(first+n, e.n); i++ {
		w, at := e.window(i)
		sum += int64(w.Learned(at, 1))
	}
	return sum
}

// micros returns the number of micro-batches of a rank.
func (e *evalSamples) micros() int64 { return (e.n + e.share.Global() - 1) / e.share.Global() }

// work returns n micro-batches from number first on, and the number of targets in them.
func (e *evalSamples) work(first, n int64) (w zero.Work, targets int64) {
	sample := func(micro int) int64 { return e.share.First(first+int64(micro), 0, e.reader) }
	targets = e.learned(first*e.share.Global(), n*e.share.Global())
	return zero.Work{
		Counted: int(targets),
		Live: func(micro int) int {
			return int(min(max(0, e.n-sample(micro)), int64(e.share.MicroBatch)))
		},
		Lengths: func(micro int) (positions, tokens int) {
			for i := range int64(e.share.MicroBatch) {
				of, at := e.window(sample(micro) + i)
				p, t := of.Lengths(at, 1)
				positions, tokens = max(positions, p), max(tokens, t)
			}
			return positions, tokens
		},
		Fill: func(micro int, into []data.Values) error {
			one := make([]data.Values, len(into))
			for i := range e.share.MicroBatch {
				for k, f := range e.fields {
					one[k] = into[k].Slice(i*f.Len, (i+1)*f.Len)
				}
				of, at := e.window(sample(micro) + int64(i))
				if err := of.Batch(one, at); err != nil {
					return err
				}
			}
			return nil
		},
	}, targets
}
