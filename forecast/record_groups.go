package forecast

import (
	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/internal/setup"
	"zeroth/pipe"
	"zeroth/zero"
)

// recordedGroup is a group whose operations are recorded.
type recordedGroup struct {
	collective.Primitives
	collective.Under
	stride int    // distance between neighbouring ranks
	host   bool   // it moves host memory
	meets  int32  // junction of ranks of several places, or alone
	link   [2]int // world ranks of a link's group
}

// Junctions are numbered groups with ranks of several places of a pipeline. They are followed by
// the links of each sending place, forward and backward.
const (
	alone      = iota // no junction: all ranks of the group have one place
	everywhere        // of all ranks
	atEnds            // of the first and the last place
	fromPlace
)

// junctions returns the number of junctions of a pipeline.
func junctions(places int) int { return fromPlace + 2*places }

// members returns the number of places at a junction.
func members(junction int32, places int) int {
	if junction == everywhere {
		return places
	}
	return 2
}

// Separate is the form of a collective whose own part is not in place. It then has another use, which
// identifies it even on devices that only count.
const Separate = 1

// over puts the group in front of another. An exchange takes the time of a gather of as many bytes.
func (g recordedGroup) over(group collective.Group) collective.Group {
	g.Under = collective.Under{Group: group}
	g.Issue = func(q device.Queue, o collective.Op, whole, own device.Buffer) {
		r, op := q.(*recordedQueue), o.String()
		if op == collective.ExchangeName {
			op = collective.AllGatherName
		}
		r.meet(g.meets, g.kernel(op, whole, own), Work{Bytes: float64(whole.Bytes())}, func() { collective.Do(group, r.ops, o, whole, own) })
	}
	return g
}

func (g recordedGroup) kernel(op string, whole, own device.Buffer) Kernel {
	k := Kernel{Op: op, In: whole.Type, Out: whole.Type, N: whole.N, Group: Group{g.Size(), g.stride}, Host: g.host, Link: g.link}
	if own.Use != whole.Use {
		k.Form = Separate
	}
	return k
}

// RecordAll puts recorders in front of all queues and groups of a trainer.
func RecordAll(z *zero.Config) *Recording {
	l := newRecording()
	put := func(role setup.QueueRole, q any) *recordedQueue { return l.queue(role, q.(ops)) }
	z.Compute, z.Comm, z.Update = put(setup.Compute, z.Compute), put(setup.Comm, z.Comm), put(setup.Update, z.Update)
	o := &z.Offload
	if z.HostUpdate != nil {
		z.HostUpdate = put(setup.HostUpdate, z.HostUpdate)
	}
	if o.ToHost != nil {
		o.ToHost, o.ToDevice = put(setup.ToHost, o.ToHost), put(setup.ToDevice, o.ToDevice)
	}
	if o.Read != nil {
		o.Read, o.Write = put(setup.Read, o.Read), put(setup.Write, o.Write)
	}
	o.Listener = l
	if z.Listener == nil {
		z.Listener = l
	}
	l.rank, l.pipeline = z.Groups.World.Rank(), max(1, z.Mesh.Pipeline)
	if l.rounds = []round{{of: fsdp.Backward}}; z.Shape().Schedule == pipe.GPipe {
		l.rounds = []round{{of: fsdp.Forward}, {of: fsdp.Backward}}
	}
	meets := int32(alone)
	if l.pipeline > 1 {
		meets = everywhere
	}
	z.Groups.World = recordedGroup{stride: 1, host: true, meets: meets}.over(z.Groups.World) // for statistics
	of := groups(z.Mesh)
	for role, g := range z.Groups.All() {
		if at, some := of[role]; some {
			*g = recordedGroup{stride: at.Stride}.over(*g)
		}
	}
	if l.pipeline > 1 {
		l.recordLinks(z, put)
	}
	return l
}

// recordLinks puts recorders in front of the links between places of a pipeline.
func (l *Recording) recordLinks(z *zero.Config, put func(setup.QueueRole, any) *recordedQueue) {
	stride := z.Mesh.World() / l.pipeline
	place := l.rank / stride
	around := func(place int) int { return (place + l.pipeline) % l.pipeline }
	next, previous := around(place+1), around(place-1)
	ends := [collective.PipelineLinks][2]int{
		collective.ToNext: {place, next}, collective.FromPrevious: {previous, place},
		collective.ToPrevious: {place, previous}, collective.FromNext: {next, place},
	}
	for i, e := range ends {
		z.Pipeline.Queues[i] = put(setup.LinkQueue(collective.Link(i)), z.Pipeline.Queues[i])
		meets := fromPlace + 2*e[0]
		if link := collective.Link(i); link == collective.ToPrevious || link == collective.FromNext {
			meets++
		}
		within := l.rank % stride
		z.Groups.Links[i] = recordedGroup{stride: stride, meets: int32(meets), link: [2]int{e[0]*stride + within, e[1]*stride + within}}.over(z.Groups.Links[i])
	}
	if g := z.Groups.Ends; g != nil {
		span := z.Groups.Shard.Size() * max(1, (l.pipeline*z.Groups.Replica.Size()-1)/(g.Size()-1)) // as if ranks were evenly spaced
		z.Groups.Ends = recordedGroup{stride: span, meets: atEnds}.over(g)
	}
}
