package nn

import "zeroth/device"

// Dropout is the probabilities with which training drops elements: of what the
// embedding puts out, of what each half of a block adds to the residual stream, and of
// the weights with which attention adds up values. See device.Dropout, to whose multiples of
// 1/65536 they are rounded.
type Dropout struct{ Embed, Residual, Attention float64 }

// Drops is what the dropped elements of a training pass follow from, beside their
// place in the model.
type Drops struct {
	Train bool // the pass is one: else nothing is dropped
	Seed  uint64
	Row   uint64 // number of the batch's first position among all that are trained on
}

// The places where a model drops elements: the embedding, and of each block what
// attention adds and what the MLP does.
const (
	placeEmbed = 0
	placeAttn  = 1
	placeMLP   = 2
)

// placeWeights is the place of attention's weights in layer 0; those of the next follow.
const placeWeights = 1 << 31

// placeOf is a place in a block.
func placeOf(layer, which int) int { return 2*layer + which }

// drops is what a pass drops at a place with a probability; false if nothing.
func (b *Batch) drops(p float64, place, cols int) (device.Dropout, bool) {
	lo, _ := b.Own()
	d := device.Dropout{Seed: b.Drops.Seed, Place: uint32(place), Drop: device.DropOf(p), Row: b.Drops.Row + uint64(lo), Cols: cols}
	return d, b.Drops.Train && d.Drop > 0
}

// dropsWeights is what a pass drops of attention's weights in a layer, of heads from first on.
func (b *Batch) dropsWeights(p float64, layer, first int) device.Dropout {
	d, some := b.drops(p, placeWeights|layer, 0)
	if !some {
		return device.Dropout{}
	}
	d.Row = b.Drops.Row + uint64(first)<<44 // see device.Attn
	return d
}

// dropped is the gradient d of what was added where the pass dropped some of it, in
// memory of its own then.
func (b *Batch) dropped(q Ops, mem Scratch, d device.Mat, p float64, place int) device.Mat {
	drop, some := b.drops(p, place, d.Cols)
	if !some {
		return d
	}
	kept := device.Matrix(mem.Take(d.Buf.Type, d.Rows*d.Cols), d.Rows, d.Cols)
	q.Dropout(kept.Buf, d.Buf, device.Buffer{}, drop)
	return kept
}
