package collective

import (
	"zeroth/device"
	"zeroth/shard"
)

// Dry is a rank of a group without other ranks: its operations do nothing. It is used on devices
// that only count.
type Dry struct {
	At, Of int
	Sums   map[Sum]bool // the group's reductions so far; nil: not recorded
	Sent   *int64       // bytes that this rank, the first, has broadcast so far; nil: not recorded

	stage int // bytes of staging memory for each operation, see Staged; 0: none
}

// Sum describes a reduction: the type and number of the elements of the part that this rank receives.
type Sum struct {
	Type device.DType
	N    int
}

// DryWorld returns the groups of rank r of a mesh without other ranks.
func DryWorld(m shard.Mesh, r int) (ranks Ranks) {
	for _, g := range dimensions(m) {
		if g.role != Saves && g.role != Ends {
			*ranks.slot(g.role, 0) = newDry(m.Index(r, g.axes...), m.Size(g.axes...))
		}
	}
	if m.Pipeline < 2 {
		return ranks
	}
	if at, of := m.At(r, shard.Pipeline), ranks.Replica.Size(); at == 0 || at == m.Pipeline-1 {
		ranks.Ends = newDry(min(1, at)*of+ranks.Replica.Rank(), 2*of)
	}
	for l := range ranks.Links {
		ranks.Links[l] = newDry(l&1, 2) // rank 0 sends
	}
	return ranks
}

func newDry(at, of int) Dry { return Dry{At: at, Of: of, Sums: map[Sum]bool{}, Sent: new(int64)} }

func (d Dry) Rank() int                                          { return d.At }
func (d Dry) Size() int                                          { return d.Of }
func (d Dry) AllGather(_ device.Queue, _, _ device.Buffer)       {}
func (d Dry) ReduceScatter(_ device.Queue, own, _ device.Buffer) { d.sum(own, d.Of) }
func (d Dry) Exchange(_ device.Queue, _, _ device.Buffer)        {}
func (d Dry) Close() error                                       { return nil }

func (d Dry) Broadcast(_ device.Queue, b device.Buffer) {
	if d.At == 0 && d.Sent != nil {
		*d.Sent += int64(b.Bytes())
	}
}

func (d Dry) Reduce(_ device.Queue, b device.Buffer) {
	if d.At == 0 { // the others only send
		d.sum(b, 1)
	}
}

// sum records a reduction, in pieces if it is staged: of each part if there are several.
func (d Dry) sum(own device.Buffer, parts int) {
	if d.Sums == nil || d.Of == 1 {
		return
	}
	whole, n := own.N, own.N
	if d.stage > 0 {
		n = min(n, StagedPiece(d.stage, parts, own.Type))
	}
	for _, n := range []int{n, whole % max(1, n)} {
		if n > 0 {
			d.Sums[Sum{own.Type, n}] = true
		}
	}
}
