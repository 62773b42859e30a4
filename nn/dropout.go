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

// dropping says whether a pass drops anything with a probability.
func (b *Batch) dropping(p float64) bool { return b.Drops.Train && device.DropOf(p) > 0 }

// dropout is what a pass drops at a place, of rows from one on.
func (b *Batch) dropout(p float64, place, cols int, row uint64) device.Dropout {
	return device.Dropout{Seed: b.Drops.Seed, Place: uint32(place), Drop: device.DropOf(p), Row: row, Cols: cols}
}

// drop sets y to what is kept at a place of x, which has the rank's rows of the stream, plus
// add if that is not empty, and returns true; or does nothing, if a pass drops nothing.
func (b *Batch) drop(q Ops, y, x, add device.Buffer, p float64, place, cols int) bool {
	if !b.dropping(p) {
		return false
	}
	own, end := b.Own()
	for at := own; at < end; { // rows whose numbers follow each other
		hi, row := end, b.Drops.Row+uint64(at)
		if b.Context != nil {
			hi = min(end, (at/b.T+1)*b.T)
			_, before := b.before(at / b.T)
			row = b.Drops.Row + uint64(before+at%b.T)
		}
		rows := func(x device.Buffer) device.Buffer {
			if x.N == 0 {
				return x
			}
			return x.Slice((at-own)*cols, (hi-own)*cols)
		}
		q.Dropout(rows(y), rows(x), rows(add), b.dropout(p, place, cols, row))
		at = hi
	}
	return true
}

// dropsWeights is what a pass drops of attention's weights in a layer, of heads from first on.
func (b *Batch) dropsWeights(p float64, layer, first int) device.Dropout {
	if !b.dropping(p) {
		return device.Dropout{}
	}
	return b.dropout(p, placeWeights|layer, 0, b.Drops.Row+uint64(first)<<44) // see device.Attn
}

// dropped is the gradient d of what was added where the pass dropped some of it, in
// memory of its own then.
func (b *Batch) dropped(q Ops, mem Scratch, d device.Mat, p float64, place int) device.Mat {
	if !b.dropping(p) {
		return d
	}
	kept := device.Matrix(mem.Take(d.Buf.Type, d.Rows*d.Cols), d.Rows, d.Cols)
	b.drop(q, kept.Buf, d.Buf, device.Buffer{}, p, place, d.Cols)
	return kept
}
