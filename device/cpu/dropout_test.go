package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/tests/nightly"
)

// droppedSlowly implements device.Dropout's definition for one element.
func droppedSlowly(d device.Dropout, i int, x, add float32) float32 {
	row, c := d.Row+uint64(i/d.Cols), d.First+i%d.Cols
	r := device.Philox([4]uint32{uint32(c / 8), d.Site, uint32(row), uint32(row >> 32)}, d.Key())
	if r[c%8/2]>>(16*(c%2))&0xffff < d.Drop {
		return add
	}
	return float32(x*d.Scale()) + add
}

// TestDropout compares bits with the definition, for rows that are and are not multiples of a
// register, a word of bits and a block; in all types, in place and not.
func TestDropout(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for _, cols := range []int{1, 7, 16, 63, 64, 130, 768, 1024, 2100} {
				for _, way := range []string{"apart", "over x", "over add", "alone", "alone, over x"} {
					dropout(t, dt, cols, way)
				}
			}
		})
	})
}

func dropout(t *testing.T, dt device.DType, cols int, way string) {
	const rows = 5
	var d device.Dropout
	var xs, adds []float64
	out := onWorkers(t, func(q *Queue) []*guarded {
		r := rand.New(rand.NewPCG(uint64(cols), 4))
		d = device.Dropout{Seed: r.Uint64(), Site: r.Uint32(), Drop: 1 + r.Uint32N(65535), Row: r.Uint64() >> 2, Cols: cols, First: 8 * r.IntN(2) * r.IntN(1000)}
		x, add, y := newVec(dt, rows*cols).normal(r, 0, 1), newVec(dt, rows*cols).normal(r, 0, 1), newVec(dt, rows*cols)
		xs, adds = x.values(), add.values()
		with := add.Buf
		if strings.HasPrefix(way, "alone") {
			with, adds = device.Buffer{}, make([]float64, rows*cols)
		}
		switch {
		case strings.HasSuffix(way, "over x"):
			y = x
		case way == "over add":
			y = add
		}
		q.Dropout(y.Buf, x.Buf, with, d)
		return []*guarded{y}
	})
	for i, got := range out[0].values() {
		if want := round(dt, float64(droppedSlowly(d, i, float32(xs[i]), float32(adds[i])))); got != want {
			t.Fatalf("%s, rows of %d: element %d is %v, want %v", way, cols, i, got, want)
		}
	}
}

// TestDropoutOfSomeRows checks that computing some rows drops the same elements as computing all.
func TestDropoutOfSomeRows(t *testing.T) {
	const rows, cols = 9, 70
	q, d := queueOf(t, 1), device.Dropout{Seed: 9, Site: 2, Drop: 30000, Row: 1<<40 - 4, Cols: cols}
	x, all, some := newVec(device.F32, rows*cols).fill(func(i int) float64 { return float64(1 + i) }), newVec(device.F32, rows*cols), newVec(device.F32, 3*cols)
	q.Dropout(all.Buf, x.Buf, device.Buffer{}, d)
	d.Row += 5
	q.Dropout(some.Buf, x.Buf.Slice(5*cols, 8*cols), device.Buffer{}, d)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(some.values(), all.values()[5*cols:8*cols]) {
		t.Error("rows 5 to 7 by themselves are others than among all")
	}
}

// TestDropoutIsRandom checks that the number of dropped elements matches the probability, in
// every column and between neighbors, within five standard deviations, and that another seed,
// place or row drops others.
func TestDropoutIsRandom(t *testing.T) {
	const rows, cols = 512, 200
	q := queueOf(t, 2)
	ones := make([]float32, rows*cols)
	for i := range ones {
		ones[i] = 1
	}
	kept := func(d device.Dropout) []float32 {
		y := make([]float32, rows*cols)
		q.Dropout(device.OfF32(y), device.OfF32(ones), device.Buffer{}, d)
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		return y
	}
	within := func(what string, n, hits int, p float64) {
		t.Helper()
		if sigma := math.Sqrt(float64(n) * p * (1 - p)); math.Abs(float64(hits)-float64(n)*p) > 5*sigma {
			t.Errorf("%s: %d of %d, want %v ± %v", what, hits, n, float64(n)*p, 5*sigma)
		}
	}
	for _, p := range []float64{0.001, 0.1, 0.5, 0.9} {
		d := device.Dropout{Seed: 11, Site: 3, Drop: device.DropOf(p), Row: 77, Cols: cols}
		y := kept(d)
		all, both, columns, sum := 0, 0, make([]int, cols), 0.0
		for i, v := range y {
			sum += float64(v)
			if v == 0 {
				all++
				columns[i%cols]++
				if i > 0 && y[i-1] == 0 {
					both++
				}
			}
		}
		within("dropped", len(y), all, p)
		within("dropped with its neighbour", len(y)-1, both, p*p)
		for c, n := range columns {
			within(fmt.Sprintf("dropped in column %d", c), rows, n, p)
		}
		if mean := sum / float64(len(y)); math.Abs(mean-1) > 5*math.Sqrt(p/(1-p)/float64(len(y))) {
			t.Errorf("p %v: the mean of what is kept is %v", p, mean)
		}
		for what, other := range map[string]device.Dropout{
			"seed": {Seed: 12, Site: 3, Drop: d.Drop, Row: 77, Cols: cols}, "seed's upper half": {Seed: 11 + 1<<40, Site: 3, Drop: d.Drop, Row: 77, Cols: cols},
			"place": {Seed: 11, Site: 4, Drop: d.Drop, Row: 77, Cols: cols}, "row": {Seed: 11, Site: 3, Drop: d.Drop, Row: 77 + 1<<40, Cols: cols},
		} {
			together := 0
			for i, v := range kept(other) {
				if v == 0 && y[i] == 0 {
					together++
				}
			}
			within("dropped by another "+what+" too", len(y), together, p*p)
		}
	}
}
