package setup

import (
	"fmt"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/job/config"
	"zeroth/optim"
	"zeroth/shard"
)

// Sharded is what ranks exchange of a unit.
type Sharded struct {
	Part           int // elements of a rank's shard
	Shard, Replica int // ranks of its groups
	Rule           int // of the job's, that updates it
	Tied           bool
	Frozen         bool
}

// ShardedUnits is that of the units of a trainer.
func ShardedUnits(units []*fsdp.Unit) (all []Sharded) {
	for _, u := range units {
		all = append(all, Sharded{u.Layout.ShardLen(), u.Shard.Size(), u.Replica.Size(), u.Rule, u.Tied, u.Frozen})
	}
	return all
}

// Bounce is the bytes of bounce memory of a rank's shard and replica groups, and of those of
// both ends of a pipeline, for gradients of units: what collective.BounceBytes says of the largest reduction, in
// the group that needs most. Of ranks of one process nothing bounces. The groups of all
// ranks gather alone. With stage, its bytes of memory that operations are staged through are
// the most that is reduced at once.
func Bounce(c *Job, units []Sharded, stage int) (inShard, inReplica, inEnds int) {
	m, hosts := config.Mesh(c.Config), c.At.Hosts
	if hosts == nil {
		return 0, 0, 0
	}
	shards, replicas, ends := map[part]bool{}, map[part]bool{}, map[part]bool{}
	rules := Rules(c.Optimizer)
	for _, u := range units {
		if u.Frozen {
			continue
		}
		types := []device.DType{device.F32} // of gradients, and of updates
		if r, ok := rules[u.Rule].(optim.Whole); ok {
			types = append(types, r.Input())
		}
		for _, t := range types {
			reduced(shards, t, u.Part, collective.StagedPiece(stage, u.Shard, t))
			in := replicas
			if u.Tied {
				in = ends
			}
			reduced(in, t, u.Part/u.Replica, collective.StagedPiece(stage, u.Replica, t))
		}
	}
	seen := map[string]bool{}
	most := func(ranks []int, parts map[part]bool) (n int) {
		at := make([]int, len(ranks))
		for i, r := range ranks {
			at[i] = hosts[r]
		}
		if seen[spread(at)] {
			return 0
		}
		seen[spread(at)] = true
		for p := range parts {
			n = max(n, collective.BounceBytes(at, p.n, p.of))
		}
		return n
	}
	all := func(groups [][]int, parts map[part]bool) (n int) {
		clear(seen)
		for _, g := range groups {
			n = max(n, most(g, parts))
		}
		return n
	}
	inShard, inReplica = all(m.Groups(shard.Shard), shards), all(m.Groups(shard.Replicate), replicas)
	if len(ends) > 0 {
		inEnds = all(collective.BothEnds(m), ends)
	}
	return inShard, inReplica, inEnds
}

// part is what a rank has of a reduction: so many elements of a type.
type part struct {
	of device.DType
	n  int
}

// reduced adds the parts in which n elements of a type are reduced, of at most so many
// where that is not 0.
func reduced(parts map[part]bool, of device.DType, n, most int) {
	if most > 0 && n > most {
		parts[part{of, most}], parts[part{of, n % most}] = true, true
		return
	}
	parts[part{of, n}] = true
}

// spread is how a group is spread over hosts, whichever they are: equal for equal
// groups elsewhere.
func spread(hosts []int) string {
	first, text := map[int]int{}, make([]byte, 0, 2*len(hosts))
	for _, h := range hosts {
		at, ok := first[h]
		if !ok {
			at = len(first)
			first[h] = at
		}
		text = fmt.Append(text, at, " ")
	}
	return string(text)
}

// lendBounce allocates the rank's bounce memory and gives it to its groups.
func (r *Rank) lendBounce(c *Job) error {
	if addsExactly(c) {
		b, err := r.Device.Alloc(device.F32, ExactBounce(c, ShardedUnits(r.Trainer.Units()))/4, device.Bounce)
		if err != nil {
			return err
		}
		r.adds = b
		for _, j := range r.joined {
			j.end.AddExactly(b)
		}
	}
	inShard, inReplica, inEnds := Bounce(c, ShardedUnits(r.Trainer.Units()), r.wires.Bytes())
	for _, of := range []struct {
		g     collective.Group
		bytes int
	}{{r.Groups.Shard, inShard}, {r.Groups.Replica, inReplica}, {r.Groups.Ends, inEnds}} {
		if of.g == nil {
			continue
		}
		b, err := r.HostMemory().Alloc(device.F64, of.bytes/8, device.Bounce)
		if err != nil {
			return err
		}
		r.bounce = append(r.bounce, b)
		collective.UseBounce(of.g, b)
	}
	return nil
}
