package kernel

// Worker is the private memory of a goroutine that runs pieces of kernels.
type Worker struct {
	Scratch []float32
	More    func(n int)    // grows Scratch to at least n floats
	Rope    *RopeTable     // the device's table
	ends    [5][16]float32 // the last elements of five operands, each padded to a vector
	window  squareWindow
	args    callArgs
	keep    [BlockLen / 64]uint64              // dropout: mask of the current columns
	keys    [10][2]uint32                      // dropout: Philox's keys, by round
	kept    [queryBlock * keyBlock / 64]uint64 // attention: dropout mask of a tile of scores
	packed  columnGroup                        // the column group of a product whose panels are in Scratch
}

// Floats returns working space of n elements, valid until the next call; its contents are
// undefined.
func (w *Worker) Floats(n int) []float32 {
	if len(w.Scratch) < n {
		w.More(n)
	}
	return w.Scratch[:n]
}
