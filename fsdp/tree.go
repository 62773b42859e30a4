package fsdp

import (
	"slices"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/shard"
)

// Tree describes sums of gradients whose bits do not depend on the ranks. Its leaves are the
// micro-batches of a step in the order of samples. They form rounds of one micro-batch for each rank
// of a shard group, in rank order, and replicas have consecutive rounds.
type Tree struct {
	Leaves shard.Tree
	Rounds int
}

// folding is how a rank takes part in the sums of a Tree. The nodes it has are a stack in the order of
// leaves: the i-th is in Unit.sums[i], and a micro-batch changes the last ones.
type folding struct {
	Tree
	ranks  int            // of a shard group
	first  int            // this rank's first round
	before [][]shard.Node // its nodes before each micro-batch
	ends   [][]shard.Node // the nodes of each replica after the last one
	sums   int            // most nodes of any rank after a micro-batch
	pieces int            // most nodes of a replica after the last one

	rooms []device.Buffer // float32: parts from other ranks, see allocateSums

	nodes []shard.Node // of a sum in progress
	bufs  []device.Buffer
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
	f.ranks, f.first = u.Shard.Size(), shard.Begin(f.Rounds, u.Replica.Size(), u.Replica.Rank())
	for i := range u.Replica.Size() {
		f.ends = append(f.ends, f.climb(u.Replica.Size(), i, i == u.Replica.Rank()))
	}
	r.tree = f
}

// climb returns the nodes of a replica, of several, after its last round.
func (f *folding) climb(replicas, i int, own bool) (nodes []shard.Node) {
	for round := shard.Begin(f.Rounds, replicas, i); round < shard.Begin(f.Rounds, replicas, i+1); round++ {
		if own {
			f.before = append(f.before, slices.Clone(nodes))
		}
		for leaf := range f.ranks {
			nodes = f.Leaves.Fold(nodes, shard.Node{At: round*f.ranks + leaf})
		}
		f.sums = max(f.sums, len(nodes))
	}
	f.pieces = max(f.pieces, len(nodes))
	return nodes
}

// allocateSums allocates memory for all nodes but the first, which is in Grad, and rooms: the first for
// the parts of a shard group, and one for each node that replicas exchange.
func (r *Runner) allocateSums(a *allocation) {
	if r.tree == nil {
		return
	}
	need, replicas, whole, own := *r.tree, len(r.tree.ends), 0, 0
	if r.cfg.More { // for any that may be left
		for n := range replicas {
			for i := range n {
				need.climb(n, i, false)
			}
		}
		own = replicas * replicas // to gather what they do not divide
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
		whole, own = max(whole, u.Layout.Len()), max(own, n)
	}
	lens := make([]int, need.pieces)
	for i := range lens {
		if replicas > 1 {
			lens[i] = own
		}
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
		f.push(q, shard.Node{At: (f.first+micro)*f.ranks + leaf}, collective.Part(u.Shard, parts, leaf))
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
	p, own := g.Size(), len(f.ends[g.Rank()])
	if p == 1 {
		return
	}
	n := grad.N / p * p
	for _, at := range []shard.Range{{Hi: n}, {Lo: n, Hi: grad.N}} {
		if at.Len() == 0 {
			continue
		}
		whole := at.Len()
		if at.Lo > 0 || n == 0 {
			whole *= p
		}
		for i := range f.pieces { // replicas with fewer nodes send any
			to, from := f.rooms[i].Slice(0, whole), u.sums[min(i, own-1)].Slice(at.Lo, at.Hi)
			if whole == from.N {
				g.Exchange(q, to, from)
			} else {
				g.AllGather(q, to, from)
			}
		}
		f.begin(nil, nil)
		for rank, nodes := range f.ends {
			for i, node := range nodes {
				f.push(q, node, collective.Part(g, f.rooms[i].Slice(0, whole), rank))
			}
		}
		if to := grad.Slice(at.Lo, at.Hi); whole == to.N {
			q.Copy(collective.Own(g, to), f.bufs[0])
			collective.AllGather(g, q, to)
		} else {
			q.Copy(to, f.bufs[0])
		}
	}
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
