package setup

import (
	"fmt"

	"zeroth/collective"
	"zeroth/config"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/optim"
)

// Sharded describes the part of a unit that ranks exchange.
type Sharded struct {
	Part           int // elements of the rank's shard
	Shard, Replica int // sizes of its groups
	Rule           int // index of its update rule in the job
	Tied           bool
	Whole          bool // no part of a matrix that is divided among ranks
	Frozen         bool
}

// ShardedUnits describes the units of a trainer.
func ShardedUnits(units []*fsdp.Unit) (all []Sharded) {
	for _, u := range units {
		all = append(all, Sharded{u.Own().Len(), u.Shard.Size(), u.Replica.Size(), u.Rule, u.Tied, u.Layout.Params[0].Cut.Full == nil, u.Frozen})
	}
	return all
}

// Bounce returns the bytes of bounce memory of a rank's groups by role. It is
// collective.BounceBytes for the largest reduction of gradients or activations, in the group that
// needs most. Ranks of one process need none. Groups of all ranks only gather. Staging memory
// limits the size of a single reduction.
func Bounce(c *Job, units []Sharded) (bytes map[collective.Role]int) {
	m, hosts := config.Mesh(c.Config), c.At.Hosts
	share, _ := m.Holders()
	bytes = map[collective.Role]int{}
	if hosts == nil {
		return bytes
	}
	parts := map[collective.Role]map[part]bool{}
	add := func(role collective.Role, t device.DType, n, ranks int) {
		if parts[role] == nil {
			parts[role] = map[part]bool{}
		}
		reduced(parts[role], t, n, collective.StagedPiece(StagingShare(c, WireStagingOf(c)), ranks, t))
	}
	rules := Rules(c.Config)
	for _, u := range units {
		if u.Frozen {
			continue
		}
		shards := u.Shard
		if c.Parallel.Master {
			shards = 1
		}
		types := []device.DType{device.F32} // of gradients and of updates
		if r, ok := rules[u.Rule].(optim.Whole); ok {
			types = append(types, r.Input())
		}
		inShard, inReplica := collective.Shard, collective.Replica
		switch joint := m.Tensor > 1 && u.Whole; {
		case u.Tied:
			inReplica = collective.Ends
		case joint && m.Size(share...) > 1:
			inShard = collective.Joint
		case joint:
			inReplica = collective.Joint
		}
		for i, t := range types {
			add(inShard, t, u.Part, shards)
			add(inReplica, t, u.Part/u.Replica, u.Replica)
			if i > 0 && m.Tensor > 1 && !u.Whole {
				add(collective.Updates, t, u.Part*u.Shard, m.Tensor)
			}
		}
	}
	if m.Tensor > 1 {
		add(collective.Tensor, c.Precision, activations(c.Config), m.Tensor)
	}
	if m.Context > 1 {
		add(collective.Context, device.F32, keys(c.Config), m.Context)
	}
	for role, parts := range parts {
		seen := map[string]bool{}
		for _, g := range collective.RoleGroups(m, role) {
			at := make([]int, len(g))
			for i, r := range g {
				if !c.Parallel.Master { // all ranks send to the master, wherever they are
					at[i] = hosts[r]
				}
			}
			if seen[spread(at)] {
				continue
			}
			seen[spread(at)] = true
			for p := range parts {
				bytes[role] = max(bytes[role], collective.BounceBytes(at, p.n, p.of))
			}
		}
	}
	return bytes
}

// part is a rank's part of a reduction: n elements of a type.
type part struct {
	of device.DType
	n  int
}

// reduced adds the part sizes of a reduction of n elements, which is done in pieces of at most
// most elements unless most is 0.
func reduced(parts map[part]bool, of device.DType, n, most int) {
	if most > 0 && n > most {
		parts[part{of, most}], parts[part{of, n % most}] = true, true
		return
	}
	parts[part{of, n}] = true
}

// spread describes how a group is spread over hosts. Groups with the same pattern on other hosts
// have the same description.
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

// lendBounce allocates the rank's bounce memory and lends it to its groups.
func (r *Rank) lendBounce(c *Job) error {
	if addsExactly(c) {
		ofUnits, ofActivations := ExactBounce(c, ShardedUnits(r.Trainer.Units()))
		for i, n := range []int{ofUnits, ofActivations} {
			b, err := r.Device.Alloc(device.F32, n/4, device.Bounce)
			if err != nil {
				return err
			}
			r.adds = append(r.adds, b)
			for _, j := range r.joined {
				if insideModules(j.role) == (i == 1) {
					j.end.AddExactly(b)
				}
			}
		}
	}
	bytes := Bounce(c, ShardedUnits(r.Trainer.Units()))
	for role, g := range r.Groups.All() {
		if role < collective.Shard || role >= collective.Forward {
			continue // they do not reduce
		}
		b, err := r.HostMemory().Alloc(device.F64, bytes[role]/8, device.Bounce)
		if err != nil {
			return err
		}
		r.bounce = append(r.bounce, b)
		collective.UseBounce(*g, b)
	}
	return nil
}
