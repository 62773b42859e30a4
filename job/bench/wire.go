package bench

import (
	"fmt"
	"slices"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/internal/world"
	"zeroth/shard"
)

// member is this process in a world with one rank per process.
type member struct {
	*world.World
	ranks  int
	me     int
	group  collective.Group
	wire   collective.Wire // frames without sums, next to the group
	host   *cpu.Device
	queue  *cpu.Queue
	groups collective.Ranks
}

// join connects all processes.
func join(w *world.World) (*member, error) {
	n := len(w.Members())
	with, err := w.Connect(shard.Mesh{Shard: n, Replicate: 1})
	if err != nil {
		return nil, err
	}
	f := &member{World: w, ranks: n, me: w.Self().Process, groups: with.Groups[0], group: with.Groups[0].World, host: cpu.NewHost(1)}
	if mem := with.Memory; mem != nil {
		f.host.Share(mem) // as training does
	}
	f.wire, f.queue = w.Wire(f.me), f.host.NewQueue("comm")
	return f, nil
}

func (f *member) close() {
	_ = f.groups.Close() // the world's end has the reason
	f.queue.Close()
	f.host.Close()
}

// do issues an operation and waits for it.
func (f *member) do(op func(collective.Group, device.Queue, device.Buffer), b device.Buffer) error {
	op(f.group, f.queue, b)
	return f.queue.Wait()
}

// together waits for all processes and returns process 0's x on each.
func (f *member) together(x float64) (float64, error) {
	all, err := f.exchange([]float64{x})
	return all[0][0], err
}

// exchange returns the numbers that each process passes, which are equally many.
func (f *member) exchange(mine []float64) (all [][]float64, err error) {
	b := device.OfF64(make([]float64, f.ranks*len(mine)))
	copy(collective.Own(f.group, b).F64(), mine)
	err = f.do(collective.AllGather, b)
	for p := range f.ranks {
		all = append(all, collective.Part(f.group, b, p).F64())
	}
	return all, err
}

// Link contains the measurements of a connection between two processes.
type Link struct {
	A, B      int     // processes
	SameHost  bool    // they see the same files and each other's sockets
	By        string  // "unix", "tcp" or "mpi"
	RoundTrip float64 // seconds, for 80 bytes
	Rate      float64 // bytes per second in each direction, both at once
}

// mostLinks is the maximum number of connections measured.
const mostLinks = 64

// pairs returns the connections to measure: the first two processes of each host, and the
// first process of the first host with that of every other.
func pairs(hosts []int) (all [][2]int) {
	first, second := map[int]int{}, map[int]bool{}
	for p, host := range hosts {
		f, seen := first[host]
		switch {
		case !seen:
			first[host] = p
			if p > 0 {
				all = append(all, [2]int{0, p})
			}
		case !second[host]:
			second[host] = true
			all = append(all, [2]int{f, p})
		}
	}
	return all[:min(len(all), mostLinks)]
}

// linkProbe describes how a link is measured.
var linkProbe = world.Probe{Trips: 200, From: 4 * world.FrameBytes, Most: 1 << 30, Long: 100 * time.Millisecond}

// Links measures the connections of a world with one rank per process, one after the other. All
// processes must call it and get the same result. They also exchange mine, numbers about
// themselves: a list of the same length in every process.
func Links(w *world.World, mine []float64) (links []Link, reports [][]float64, err error) {
	f, err := join(w)
	if err != nil {
		return nil, nil, err
	}
	defer f.close()
	if reports, err = f.exchange(mine); err != nil {
		return nil, nil, err
	}
	hosts := w.Self().At.Hosts
	for _, pair := range pairs(hosts) {
		if _, err := f.together(0); err != nil {
			return nil, nil, err
		}
		found := make([]float64, 3)
		if pair[0] == f.me || pair[1] == f.me {
			if err := f.link(pair, found); err != nil {
				return nil, nil, fmt.Errorf("processes %d and %d: %w", pair[0], pair[1], err)
			}
		}
		all, err := f.exchange(found)
		if err != nil {
			return nil, nil, err
		}
		found = all[pair[0]]
		links = append(links, Link{A: pair[0], B: pair[1], SameHost: hosts[pair[0]] == hosts[pair[1]],
			RoundTrip: found[0], Rate: found[1], By: world.Carriers[int(found[2])]})
	}
	return links, reports, nil
}

// link measures a connection of this process. The first process of the pair records the seconds of
// a round trip, the bytes per second and what carries data.
func (f *member) link(pair [2]int, found []float64) error {
	first, peer := pair[0] == f.me, pair[0]
	if first {
		peer = pair[1]
	}
	trip, rate, err := linkProbe.Run(f.wire, peer, first, nil)
	if err != nil {
		return err
	}
	if first {
		found[0], found[1], found[2] = trip, rate, float64(slices.Index(world.Carriers, f.Carrier(peer)))
	}
	return nil
}
