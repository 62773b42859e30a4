package world

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/internal/show"
)

// If hosts have several ranks, there are two ways to send, and the cheaper one depends on the
// links' rates. They are measured once all processes are connected: within a host, between the
// first two processes of the first host that has two; between hosts, concurrently between the
// processes of the first host and those of the second, which together use the whole bandwidth of
// a host. Then all ranks sum the numbers and choose alike. The choice does not change any bits.

// linkProbe takes 0.1 s on links of more than 10 MB/s and round trips of at most 20 ms.
var linkProbe = Probe{Trips: 5, From: 64 << 10, Most: 64 << 20, Long: 8 * time.Millisecond}

// mostBetween limits the processes of two hosts that measure concurrently.
const mostBetween = 16

// pairs returns the pairs of processes that measure: at most one within a host (near), and
// those between hosts (far). The first of a pair starts.
func pairs(hosts []int) (near, far [][2]int) {
	of := map[int][]int{} // processes by host
	for p, h := range hosts {
		of[h] = append(of[h], p)
	}
	for _, h := range hosts {
		if all := of[h]; len(all) > 1 {
			near = [][2]int{{all[0], all[1]}}
			break
		}
	}
	at := slices.IndexFunc(hosts, func(h int) bool { return h != hosts[0] })
	one, other := of[hosts[0]], of[hosts[at]]
	for i := range min(len(one), len(other), mostBetween) {
		far = append(far, [2]int{one[i], other[i]})
	}
	return near, far
}

// measure measures the links, with the same result on all processes, and reports them. The
// groups are open and not in use.
func (w *World) measure(ranks []collective.Ranks, spread collective.Spread) error {
	begin := time.Now()
	near, far := pairs(w.hosts)
	found := make([]float64, 4)
	for i, pairs := range [][][2]int{near, far} {
		for _, pair := range pairs {
			if pair[0] != w.cfg.Rank && pair[1] != w.cfg.Rank {
				continue
			}
			if err := w.probe(pair, i == 0, found[2*i:]); err != nil {
				return fmt.Errorf("measuring the link of processes %d and %d: %w", pair[0], pair[1], err)
			}
		}
	}
	sum, err := sums(ranks, found)
	if err != nil {
		return err
	}
	l := collective.Usual // for ranks of one process, which read each other's memory
	if len(near) > 0 {
		l.NearDelay, l.Near = sum[0]/2, sum[1]
	}
	l.FarDelay, l.Far, l.HostRanks = sum[2]/2/float64(len(far)), sum[3], spread.Most
	w.links = l
	w.note(fmt.Sprintf("links, measured in %v: %s/s and %.0f µs inside a host, %s/s and %.0f µs between hosts; gathers go %s, sums %s", time.Since(begin).Round(time.Millisecond),
		show.ByteSize(int64(l.Near)), 1e6*l.NearDelay, show.ByteSize(int64(l.Far)), 1e6*l.FarDelay, show.Way(l.ByHostFrom(spread, true)), show.Way(l.ByHostFrom(spread, false))))
	return nil
}

// probe measures one connection of this process; the first of the pair records the result.
// Within a host it sends memory that the other reads, as collectives do.
func (w *World) probe(pair [2]int, near bool, found []float64) error {
	first, peer := pair[0] == w.cfg.Rank, pair[0]
	if first {
		peer = pair[1]
	}
	var out []byte
	if near && w.mem != nil {
		mem, err := w.mem.Take(FrameBytes)
		if err != nil {
			return err
		}
		defer w.mem.Give(mem)
		out = mem
	}
	trip, rate, err := linkProbe.Run(w.Wire(w.cfg.Rank*w.cfg.PerProcess), peer*w.cfg.PerProcess, first, out)
	if first {
		found[0], found[1] = trip, rate
	}
	return err
}

// sums returns the sum of the processes' measurements.
func sums(ranks []collective.Ranks, found []float64) (sum []float64, err error) {
	d := cpu.NewHost(1)
	defer d.Close()
	var all sync.WaitGroup
	errs := make([]error, len(ranks))
	for i, r := range ranks {
		n := (len(found) + r.World.Size() - 1) / r.World.Size() * r.World.Size()
		x := make([]float64, n)
		if i == 0 {
			copy(x, found)
			sum = x
		}
		all.Go(func() {
			q := d.NewQueue("links")
			defer q.Close()
			collective.AllReduce(r.World, q, device.OfF64(x))
			errs[i] = q.Wait()
		})
	}
	all.Wait()
	return sum, errors.Join(errs...)
}

// useLinks lets the groups choose algorithms by the rates of links. It measures them first if a
// choice depends on them.
func (w *World) useLinks(ranks []collective.Ranks) error {
	spread := collective.SpreadOf(w.placement().Hosts)
	if !spread.HasChoice() || w.nccl != "" {
		return nil
	}
	if err := w.measure(ranks, spread); err != nil {
		return err
	}
	for _, r := range ranks {
		for _, g := range r.All() {
			collective.UseLinks(*g, w.links)
		}
	}
	return nil
}
