package kernel

// Worker is the private memory of one goroutine that runs pieces of kernels.
type Worker struct {
	Scratch []float32
	More    func(n int)    // makes scratch n floats or more
	Turns   *Turns         // its device's
	ends    [5][16]float32 // the last elements of arrays, filled up to a vector
	window  squareWindow
	args    callArgs
	keep    [BlockLen / 64]uint64              // of dropout: bits of columns that are kept,
	keys    [10][2]uint32                      // and Philox's of its rounds
	kept    [queryBlock * keyBlock / 64]uint64 // of a tile of attention's scores
	packed  columnGroup                        // what a product's last piece left in scratch, while it is computed
}

// Floats is work space of n elements, valid until the next call; its contents
// are undefined.
func (w *Worker) Floats(n int) []float32 {
	if len(w.Scratch) < n {
		w.More(n)
	}
	return w.Scratch[:n]
}
