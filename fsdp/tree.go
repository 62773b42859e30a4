package fsdp

import (
	"slices"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/shard"
)

// Tree describes sums of gradients whose bits do not depend on the ranks. Its leaves are the
// micro-batches of a step in the order of samples. They form rounds of one micro-batch for each rank
// of a shard group, in rank order, and replicas share the rounds as shard.Turn says.
type Tree struct {
	Leaves shard.Tree
	Rounds int
}

// folding is how a rank takes part in the sums of a Tree. The nodes it has are a stack in the order of
// leaves: the i-th is in Unit.sums[i], and a micro-batch changes the last ones.
type folding struct {
	Tree
	ranks  int            // of a shard group
	rounds []int          // of this rank, by micro-batch
	before [][]shard.Node // its nodes before each micro-batch
	own    int            // number of its nodes after the last one
	ends   []piece        // the nodes of all replicas then, in the order of leaves
	sums   int            // most nodes of any rank after a micro-batch
	pieces int            // most nodes of a replica after the last one

	rooms []device.Buffer // float32: parts from other ranks, see allocateSums

	nodes []shard.Node // of a sum in progress
	bufs  []device.Buffer
}

// piece is a node of a replica, the i-th.
type piece struct {
	shard.Node
	replica, i int
}

// plant prepares the sums. All units have equally many ranks and replicas.
func (r *Runner) plant() {
	if r.cfg.Tree == nil || r.cfg.Micro == 0 {
		return
	}
	u, f := r.Units[0], &folding{Tree: *r.cfg.Tree}
	if r.tree != nil {
		f.rooms = r.tree.rooms
	}
	f.ranks = u.Shard.Size()
	for replica := range u.Replica.Size() {
		own := replica == u.Replica.Rank()
		nodes := f.climb(u.Replica.Size(), replica, own)
		if own {
			f.own = len(nodes)
		}
		for i, n := range nodes {
			f.ends = append(f.ends, piece{n, replica, i})
		}
	}
	slices.SortFunc(f.ends, func(a, b piece) int { return a.At<<a.Level - b.At<<b.Level })
	r.tree = f
}

// climb returns the nodes of a replica, of several, after its last round.
func (f *folding) climb(replicas, replica int, own bool) (nodes []shard.Node) {
	for micro := range shard.Turns(f.Rounds, replicas, replica) {
		round := shard.Turn(f.Rounds, replicas, replica, micro)
		if own {
			f.rounds, f.before = append(f.rounds, round), append(f.before, slices.Clone(nodes))
		}
		for leaf := range f.ranks {
			nodes = f.Leaves.Fold(nodes, shard.Node{At: round*f.ranks + leaf})
		}
		f.sums = max(f.sums, len(nodes))
	}
	f.pieces = max(f.pieces, len(nodes))
	return nodes
}

// allocateSums allocates memory for all nodes but the first, which is in Grad, and rooms: one for each node that
// replicas exchange, of which the first is also for the parts of a shard group and for what replicas do not divide.
func (r *Runner) allocateSums(a *allocation) {
	if r.tree == nil {
		return
	}
	need, replicas := *r.tree, r.Units[0].Replica.Size()
	whole, own, rest := 0, 0, 0
	if r.cfg.More { // for any that may be left
		for n := range replicas {
			for i := range n {
				need.climb(n, i, false)
			}
		}
		rest = replicas - 1
	}
	for _, u := range r.Units {
		if u.Frozen {
			continue
		}
		n := u.Own().Len()
		u.sums = []device.Buffer{{}} // Grad, see view
		for len(u.sums) < need.sums {
			u.sums = append(u.sums, a.take(r.cfg.Device, device.F32, n, device.Grads))
		}
		whole, own, rest = max(whole, u.Layout.Len()), max(own, n), max(rest, n%replicas)
	}
	lens := make([]int, need.pieces)
	if replicas > 1 {
		for i := range lens {
			lens[i] = own
		}
		lens[0] = max(own, replicas*need.pieces*rest)
	}
	if need.ranks > 1 {
		lens[0] = max(lens[0], whole)
	}
	for _, n := range lens {
		r.tree.rooms = append(r.tree.rooms, a.take(r.cfg.Device, device.F32, n, device.Staging))
	}
}

// fold adds a unit's gradient of a micro-batch, whole on this rank, to the sums of its shard.
func (r *Runner) fold(u *Unit, whole device.Buffer, micro int) {
	q, f, parts := r.cfg.Comm, r.tree, whole
	if f.ranks > 1 {
		parts = f.rooms[0].Slice(0, whole.N)
		u.Shard.Exchange(q, parts, whole)
	}
	u.sums[0] = u.Grad
	f.begin(f.before[micro], u.sums)
	for leaf := range f.ranks {
		f.push(q, shard.Node{At: f.rounds[micro]*f.ranks + leaf}, collective.Part(u.Shard, parts, leaf))
	}
	for i, b := range f.bufs {
		if b != u.sums[i] {
			q.Copy(u.sums[i], b)
		}
	}
}

// foldReplicas replaces a unit's gradient by its sum over the replicas: each sums the nodes of all in
// its part of the shard and gathers the parts. Elements that replicas do not divide are summed by all.
func (r *Runner) foldReplicas(u *Unit, grad device.Buffer) {
	q, f, g := r.cfg.Comm, r.tree, u.Replica
	p := g.Size()
	if p == 1 {
		return
	}
	n := grad.N / p * p
	if rest := grad.N - n; rest > 0 {
		all := f.rooms[0].Slice(0, p*f.pieces*rest)
		part := func(replica, i int) device.Buffer {
			return collective.Part(g, all, replica).Slice(i*rest, (i+1)*rest)
		}
		for i := range f.own {
			q.Copy(part(g.Rank(), i), u.sums[i].Slice(n, grad.N))
		}
		collective.AllGather(g, q, all)
		q.Copy(grad.Slice(n, grad.N), f.sum(q, part))
	}
	if n == 0 {
		return
	}
	for i := range f.pieces { // replicas with fewer nodes send any
		g.Exchange(q, f.rooms[i].Slice(0, n), u.sums[min(i, f.own-1)].Slice(0, n))
	}
	to := grad.Slice(0, n)
	q.Copy(collective.Own(g, to), f.sum(q, func(replica, i int) device.Buffer { return collective.Part(g, f.rooms[i].Slice(0, n), replica) }))
	collective.AllGather(g, q, to)
}

// sum returns the sum of the nodes of all replicas, in the memory of the first.
func (f *folding) sum(q Comm, part func(replica, i int) device.Buffer) device.Buffer {
	f.begin(nil, nil)
	for _, e := range f.ends {
		f.push(q, e.Node, part(e.replica, e.i))
	}
	return f.bufs[0]
}

// begin begins a sum with nodes and their memory.
func (f *folding) begin(nodes []shard.Node, bufs []device.Buffer) {
	f.nodes, f.bufs = append(f.nodes[:0], nodes...), append(f.bufs[:0], bufs[:len(nodes)]...)
}

// push adds a node to a sum, which may use its memory.
func (f *folding) push(q Comm, n shard.Node, b device.Buffer) {
	at := len(f.nodes)
	for f.nodes = f.Leaves.Fold(f.nodes, n); at >= len(f.nodes); at-- {
		q.AddTo(f.bufs[at-1], f.bufs[at-1], b)
		b = f.bufs[at-1]
	}
	f.bufs = append(f.bufs[:at], b)
}
