package zero

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"zeroth/collective"
	"zeroth/data"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/offload"
	"zeroth/shard"
)

// When other ranks are lost, a step that some rank has passed is done: it has the statistics of all
// ranks, which each sent when its own gradients were summed. The ranks that lack them finish the step
// with its Verdict. A step that nobody has passed is computed again.

// Verdict returns the result of the last step, for Finish.
func (t *Trainer) Verdict() string {
	s, b := t.passed, new(bytes.Buffer)
	s.Join = false // who finishes the step has been through a change since
	if err := gob.NewEncoder(b).Encode(s); err != nil {
		panic(err) // it consists of numbers
	}
	return hex.EncodeToString(b.Bytes())
}

// Finish does the rest of a step of which this rank has its gradients, with the verdict of a rank that
// has passed it.
func (t *Trainer) Finish(lr float64, verdict string) (s Stats, err error) {
	err = gob.NewDecoder(hex.NewDecoder(strings.NewReader(verdict))).Decode(&s)
	if got, want := len(s.Metrics), len(t.cfg.Model.Metrics); err != nil || got != want {
		return s, fmt.Errorf("zero: the verdict on step %d has %d metrics, want %d (%v)", t.Steps+1, got, want, err)
	}
	if err := t.Scale.Update(s.Skipped); err != nil {
		return s, err
	}
	t.apply(lr, s)
	t.pass(s)
	return s, nil
}

// Regroup makes the trainer of a rank that has failed because of others one of a mesh without some of
// the replicas. The queues must be idle and without errors. The state, and the gradients until the
// next Step, stay as they are.
func (t *Trainer) Regroup(g collective.Ranks, m shard.Mesh, s data.Share) {
	t.transfers.Wait() // they close the groups before
	c := &t.cfg
	c.Groups, c.Mesh, c.Share, c.Micro = g, m, s, s.Micro(m.DataRank(g.World.Rank()))
	tied, _ := c.tied() // New has checked it
	for i, u := range c.Part().Units() {
		t.runner.Units[i].Groups = c.groups(u, slices.Contains(tied, u.Name))
	}
	t.runner.Clear(c.Micro, c.tree())
	t.pipeline.begins(c)
	t.shareMatrices()
	t.failed.Store(nil)
	for i := range t.inputs {
		b := &t.inputs[i].batch
		b.Tensor, b.Context, b.Experts = t.exchange(g.Tensor, fsdp.Exchange), t.exchange(g.Context, fsdp.ExchangeKeys), t.exchange(g.Experts, fsdp.ExchangeRows)
	}
	t.Paces = t.Paces[:g.World.Size()]
	t.stats = t.room.Slice(0, g.World.Size()*t.statLen())
	clear(t.Paces)
	clear(t.stats.I64())
	if t.hostSums.N > 0 {
		clear(t.hostSums.I64())
	}
	c.Update.Zero(t.sums.Device)
	_ = c.Update.Wait() // before another queue adds losses; the next step reports an error
}

// Meet waits for all ranks. Their statistics are zero, as between steps.
func (t *Trainer) Meet() error {
	t.cfg.Comm.Label("all ranks: all-gather")
	collective.AllGather(t.cfg.Groups.World, t.cfg.Comm, t.stats)
	return t.cfg.Comm.Wait()
}

// HandOver gives the state of each first replica's rank to the ranks that hold the same shard. Those that are empty take it; the
// others only pass it on. It returns an error if what they hold then differs.
func (t *Trainer) HandOver(empty bool) error {
	to, sum, memory := unchanged, uint32(0), Staging()
	if empty {
		to = following
	}
	all := func(u int) shard.Range { return shard.Range{Hi: t.runner.Units[u].Own().Len()} }
	for _, u := range t.runner.Units {
		if u.Own().Len() == 0 {
			u.MarkUpdated(device.Event{})
		}
	}
	err := t.eachTile(to, all, func(q Update, u int, in shard.Range, st offload.State) error {
		t.cfg.Comm.Label("unit " + t.runner.Units[u].Name + ": state for newcomers")
		t.cfg.Comm.After(q.Mark())
		kinds := t.kindsOf(u, t.Kinds())
		for _, kind := range kinds {
			t.runner.Units[u].Replica.Broadcast(t.cfg.Comm, t.vector(u, kind, st))
		}
		if err := t.cfg.Comm.Wait(); err != nil {
			return err
		}
		for _, kind := range kinds {
			err := t.parts(kind, u, in, st, func(_ Part, at device.Buffer) error {
				w := device.Onto(at, func(n int) device.Buffer { return device.Narrowed(memory(max(2, n))[:n], at.Type) })
				w.Fetch(q)
				err := q.Wait()
				sum = crc32.Update(sum, castagnoli, w.Host.Raw())
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.filled = true
	same := t.cfg.Groups.Replica
	if t.cfg.Groups.Experts != nil { // others of that have other experts
		same = t.cfg.Groups.ExpertReplica
	}
	sums, err := collective.GatherBytes(same, t.cfg.Comm, binary.LittleEndian.AppendUint32(nil, sum))
	if err == nil && empty && !bytes.Equal(sums[0], sums[same.Rank()]) {
		err = fmt.Errorf("the state of rank %d has checksum %x, but %x arrived", t.cfg.Groups.World.Rank(), sums[0], sums[same.Rank()])
	}
	if err == nil {
		_ = t.Meet() // the first to end begins a change, which ends what others do
	}
	return err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
