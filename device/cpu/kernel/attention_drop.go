package kernel

import (
	"unsafe"

	"zeroth/device"
)

// scoreDrop is attention's dropout: it selects elements of a tile of scores (queries, keys) after
// softmax.
type scoreDrop struct {
	w     *Worker // nil: no dropout
	scale float32
	row   uint64 // see device.Attn's DropRow
}

func newScoreDrop(t *Args, w *Worker) scoreDrop {
	d, p := &t.Attn.Drop, &w.args.drop
	if d.Drop == 0 {
		return scoreDrop{}
	}
	p.Keys, p.Place, p.Drop = unsafe.Pointer(w.roundKeys(d.Key())), int(d.Site), int(d.Drop)
	return scoreDrop{w: w, scale: d.Scale()}
}

// mask computes the mask of a tile (nq, nk) with ld elements per row, a multiple of 64. The
// tile's keys start at k0 and its rows at row; the first row sees see keys.
func (x *scoreDrop) mask(row uint64, k0, ld, nq, nk, see int) {
	p := &x.w.args.drop
	p.Group = k0 / 8
	for i := range nq {
		p.Row, p.Words = int(row)+i, Ceil(min(nk, see+i), 64)
		p.Keep = unsafe.Pointer(&x.w.kept[i*ld/64])
		BestVec.keeps(p)
	}
}

// apply drops the elements of tile s that the mask excludes and scales the others.
func (x *scoreDrop) apply(s []float32, ld, nq, nk, see int) {
	for i := range nq {
		row := FloatPtr(s, i*ld)
		BestVec.drop[device.F32](row, row, nil, unsafe.Pointer(&x.w.kept[i*ld/64]), padded(min(nk, see+i), 16), x.scale)
	}
}
