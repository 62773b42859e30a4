package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/internal/show"
	"zeroth/internal/world"
)

// acrossSizes lists the sizes of buffers to gather and reduce, in bytes.
var acrossSizes = []int{1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}

// Across measures collectives between the processes of a world with one rank each. All processes
// must call it; only process 0's report is complete.
//
// For a buffer of S bytes on P ranks, the bus bandwidth of a gather or a reduction is S × (P-1)/P
// divided by the time, and twice that for an all-reduce: the bytes that each rank must send.
// Operations alternate with a stream of the same bytes over the same wire, chunk by chunk from each
// rank to each, without additions.
func Across(ctx context.Context, w *world.World, o Options) (*Report, error) {
	r := &Report{Host: host()}
	f, err := join(w)
	if err != nil {
		return nil, err
	}
	defer f.close()
	r.Between = f.between()
	for _, bytes := range acrossSizes {
		if err := f.size(ctx, r, bytes, o); err != nil {
			return r, fmt.Errorf("buffers of %s: %w", show.ByteSize(int64(bytes)), err)
		}
	}
	return r, nil
}

// between describes the world: "4 processes on 2 hosts, over tcp, unix".
func (f *member) between() string {
	hosts, by := map[int]bool{}, []string{}
	for p, host := range f.Self().At.Hosts {
		hosts[host] = true
		if p != f.me && !slices.Contains(by, f.Carrier(p)) {
			by = append(by, f.Carrier(p))
		}
	}
	slices.Sort(by)
	if len(hosts) == 1 {
		return fmt.Sprintf("%d processes on one host, over %s", f.ranks, strings.Join(by, ", "))
	}
	return fmt.Sprintf("%d processes on %d hosts, over %s", f.ranks, len(hosts), strings.Join(by, ", "))
}

// size measures buffers of about the given size, divisible among the ranks.
func (f *member) size(ctx context.Context, r *Report, bytes int, o Options) error {
	n := max(1, bytes/4/f.ranks) * f.ranks
	buf, err := f.host.Alloc(device.F32, n, device.Grads)
	if err != nil {
		return err
	}
	defer f.host.Free(buf)
	fillNoise(buf.F32()) // touches its pages; zeros stay zero however often they are summed
	clear(buf.F32())
	sent := 4 * n / f.ranks // to each peer
	var others []int
	for p := range f.ranks {
		if p != f.me {
			others = append(others, p)
		}
	}
	s := world.NewStream(f.wire, others, nil)
	names := []string{"stream", "all-gather", "reduce-scatter", "all-reduce"}
	did := []func() error{
		func() error { _, err := s.Run(sent); return err },
		func() error { return f.do(collective.AllGather, buf) },
		func() error { return f.do(collective.ReduceScatter, buf) },
		func() error { return f.do(collective.AllReduce, buf) },
	}
	took, err := f.turns(ctx, o.Seconds*float64(len(did)), did, func(i int) {
		if o.Progress != nil {
			o.Progress(fmt.Sprintf("%s of %s", names[i], show.ByteSize(int64(4*n))))
		}
	})
	if err != nil {
		return err
	}
	bus := float64(sent * (f.ranks - 1))
	for i, times := range took {
		row := Row{Group: "collective", Name: fmt.Sprintf("%s, %d processes, %s", names[i], f.ranks, show.ByteSize(int64(4*n))),
			Seconds: median(times), Unit: "B/s", Samples: len(times)}
		moved := bus
		if names[i] == "all-reduce" {
			moved *= 2
		}
		row.Rate = moved / row.Seconds
		if i > 0 {
			row.LimitName, row.Limit = "stream", r.Lines[len(r.Lines)-i].Rate
			row.Share = row.Rate / row.Limit
		}
		r.Lines = append(r.Lines, row)
	}
	return nil
}

// turns runs the functions alternately on all ranks, for the given seconds of process 0 but at
// least twice and at most 1,000 times. It returns the seconds of each function's runs without the
// first.
func (f *member) turns(ctx context.Context, seconds float64, did []func() error, progress func(int)) (took [][]float64, err error) {
	took = make([][]float64, len(did))
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for round := 0; ; round++ {
		for i, do := range did {
			progress(i)
			if _, err := f.together(0); err != nil {
				return nil, err
			}
			begin := time.Now()
			if err := do(); err != nil {
				return nil, err
			}
			if round > 0 {
				took[i] = append(took[i], time.Since(begin).Seconds())
			}
		}
		more := 1.0
		if round >= 1000 || round >= 2 && time.Now().After(end) || ctx.Err() != nil {
			more = 0
		}
		if more, err = f.together(more); err != nil || more == 0 {
			return took, err
		}
	}
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	y := slices.Sorted(slices.Values(x))
	return (y[(len(y)-1)/2] + y[len(y)/2]) / 2
}
