package kernel

// Worker is the private memory of a goroutine that runs pieces of kernels.
type Worker struct {
	Scratch []float32
	More    func(n int)    // grows Scratch to at least n floats
	Turns   *Turns         // of its device
	ends    [5][16]float32 // the last elements of arrays, padded to a vector
	window  squareWindow
	args    callArgs
	keep    [BlockLen / 64]uint64              // of dropout: mask of the current columns
	keys    [10][2]uint32                      // of dropout: Philox's keys of the rounds
	kept    [queryBlock * keyBlock / 64]uint64 // mask of a tile of attention's scores
	packed  columnGroup                        // the column group of a product that is in scratch, while it is computed
}

// Floats returns working space of n elements, valid until the next call; its contents are
// undefined.
func (w *Worker) Floats(n int) []float32 {
	if len(w.Scratch) < n {
		w.More(n)
	}
	return w.Scratch[:n]
}
