package nn

import "zeroth/device"

// Dropout contains the probabilities with which training drops elements: of the embedding's output,
// of what each half of a block adds to the residual stream, and of attention weights. They are
// rounded to multiples of 1/65536; see device.Dropout.
type Dropout struct{ Embed, Residual, Attention float64 }

// Drops determines the dropout masks of a training pass, together with the place in the model.
type Drops struct {
	Train bool // the pass is for training; otherwise nothing is dropped
	Seed  uint64
	Row   uint64 // number of the batch's first position among all training positions
	Every int    // positions from the first of a sequence to that of the next; 0: as many as a sequence has
}

// The places where a model drops elements: the embedding, and in each block the outputs of
// attention and of the MLP.
const (
	placeEmbed = 0
	placeAttn  = 1
	placeMLP   = 2
)

// placeWeights is the place of layer 0's attention weights; those of other layers follow.
// placeAdapters is that of the inputs of layer 0's adapters, at most adaptersPerBlock, and placeExperts
// that of its experts' adapters, which are of three layers.
const (
	placeWeights     = 1 << 31
	placeAdapters    = 1 << 30
	placeExperts     = placeAdapters + 1<<29
	adaptersPerBlock = 8
)

// placeOf returns a place in a block.
func placeOf(layer, which int) int { return 2*layer + which }

// dropping reports whether a pass drops elements with a probability.
func (b *Batch) dropping(p float64) bool { return b.Drops.Train && device.DropOf(p) > 0 }

// dropout returns the dropout of a pass at a place, for rows from row on.
func (b *Batch) dropout(p float64, place, cols int, row uint64) device.Dropout {
	return device.Dropout{Seed: b.Drops.Seed, Site: uint32(place), Drop: device.DropOf(p), Row: row, Cols: cols}
}

// drop sets y to the kept elements of x, which has the rank's rows of the stream, plus add if that
// is not empty. If the pass drops nothing, it does nothing.
func (b *Batch) drop(q Ops, y, x, add device.Buffer, p float64, place, cols int) {
	if b.dropping(p) {
		own, end := b.Own()
		b.dropRows(q, y, x, add, b.dropout(p, place, cols, b.Drops.Row), 1, own, end)
	}
}

// dropRows sets y to the kept elements of x plus add, which contain some rows for each of rows
// [own, end) of the batch; d numbers rows of the batch from the first.
func (b *Batch) dropRows(q Ops, y, x, add device.Buffer, d device.Dropout, each, own, end int) {
	for at := own; at < end; { // rows with consecutive numbers
		hi, row := end, d.Row+uint64(at)
		if b.Context != nil || b.Drops.Every > 0 {
			hi = min(end, (at/b.T+1)*b.T)
			before := at / b.T * b.Drops.Every
			if b.Context != nil {
				_, before = b.before(at / b.T)
			}
			row = d.Row + uint64(before+at%b.T)
		}
		rows := func(x device.Buffer) device.Buffer {
			if x.N == 0 {
				return x
			}
			return x.Slice((at-own)*each*d.Cols, (hi-own)*each*d.Cols)
		}
		part := d
		part.Row = row * uint64(each)
		q.Dropout(rows(y), rows(x), rows(add), part)
		at = hi
	}
}

// dropsWeights returns the dropout of attention weights in a layer, for heads from first on.
func (b *Batch) dropsWeights(p float64, layer, first int) device.Dropout {
	if !b.dropping(p) {
		return device.Dropout{}
	}
	return b.dropout(p, placeWeights|layer, 0, b.Drops.Row+uint64(first)<<44) // see device.Attn
}

// dropped returns the gradient of a sum's term, given the gradient d of the sum: in new memory if
// the pass drops elements of it, else d.
func (b *Batch) dropped(q Ops, mem Scratch, d device.Mat, p float64, place int) device.Mat {
	if !b.dropping(p) {
		return d
	}
	kept := device.Matrix(mem.Take(d.Buf.Type, d.Rows*d.Cols), d.Rows, d.Cols)
	b.drop(q, kept.Buf, d.Buf, device.Buffer{}, p, place, d.Cols)
	return kept
}
