package nn

import (
	"hash/fnv"
	"math"
	"runtime"
	"sync"

	"zeroth/device"
	"zeroth/shard"
)

// Fill writes the initial values of the elements at of a parameter to dst. A value depends only on
// the seed, the parameter's name and the element's index in its tensor, so every rank computes its
// own part, and the result is the same for any sharding or cut.
func Fill(seed uint64, p shard.Param, at shard.Range, dst []float32) {
	if p.Init.Std == 0 {
		for i := range dst {
			dst[i] = p.Init.Mean
		}
		return
	}
	h := fnv.New64a()
	h.Write([]byte(p.Name))
	stream := h.Sum64()
	var pieces sync.WaitGroup
	for piece := max(1<<14, len(dst)/(4*runtime.GOMAXPROCS(0))); at.Len() > 0; {
		n := min(piece, at.Len())
		in, to := shard.Range{Lo: at.Lo, Hi: at.Lo + n}, dst[:n]
		pieces.Go(func() { fillNormals(seed, stream, p, in, to) })
		at.Lo, dst = in.Hi, dst[n:]
	}
	pieces.Wait()
}

func fillNormals(seed, stream uint64, p shard.Param, at shard.Range, dst []float32) {
	for run, own := range p.Runs(at) {
		to := dst[own.Lo-at.Lo : own.Hi-at.Lo]
		for i := run.Lo &^ 1; i < run.Hi; i += 2 {
			n := normals(seed, stream, uint64(i/2))
			for j, x := range n {
				if run.Lo <= i+j && i+j < run.Hi {
					to[i+j-run.Lo] = p.Init.Mean + p.Init.Std*float32(x)
				}
			}
		}
	}
}

// normals returns a pair of independent standard normal numbers at a position of a stream, with the
// Box-Muller transform.
func normals(seed, stream, at uint64) [2]float64 {
	r := device.Philox([4]uint32{uint32(at), uint32(at >> 32), uint32(stream), uint32(stream >> 32)}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	u := (float64(uint64(r[0])<<20|uint64(r[1])>>12) + 1) / (1 << 52) // (0, 1]
	v := float64(uint64(r[2])<<20|uint64(r[3])>>12) / (1 << 52)       // [0, 1)
	radius := math.Sqrt(-2 * math.Log(u))
	sin, cos := math.Sincos(2 * math.Pi * v)
	return [2]float64{radius * cos, radius * sin}
}
