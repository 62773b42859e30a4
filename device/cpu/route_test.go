package cpu

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"zeroth/device"
)

// routers are those of published models, and others.
var routers = map[string]device.Router{
	"mixtral, qwen3_moe":           {TopK: 2, Normalize: true, Scale: 1},
	"qwen2_moe, olmoe":             {TopK: 3, Scale: 1},
	"glm4_moe":                     {Score: device.Sigmoid, TopK: 3, Bias: true, Groups: 4, TopGroups: 2, GroupBest: 2, Normalize: true, Floor: 1e-20, Scale: 2.5},
	"minimax_m2":                   {Score: device.Sigmoid, TopK: 4, Bias: true, Normalize: true, Scale: 1},
	"deepseek_v2":                  {TopK: 3, Groups: 4, TopGroups: 1, GroupBest: 1, Scale: 16},
	"softmax with a bias":          {TopK: 2, Bias: true, Normalize: true, Scale: 0.5},
	"below the floor":              {Score: device.Sigmoid, TopK: 2, Normalize: true, Floor: 5, Scale: 3},
	"softmax below the floor":      {TopK: 2, Normalize: true, Floor: 5, Scale: 3},
	"all experts":                  {TopK: 16, Normalize: true, Scale: 1},
	"sigmoid, not normalized, one": {Score: device.Sigmoid, TopK: 1, Scale: 2},
}

// scores64 returns the scores of a row.
func scores64(r device.Router, row []float64) (s []float64) {
	top, sum := slices.Max(row), 0.0
	for _, l := range row {
		if r.Score == device.Sigmoid {
			s, sum = append(s, 1/(1+math.Exp(-l))), 1
			continue
		}
		s = append(s, math.Exp(l-top))
		sum += s[len(s)-1]
	}
	for i := range s {
		s[i] /= sum
	}
	return s
}

// byValue returns the indices of the n largest values; of equal ones, those of lower indices.
func byValue(values []float64, n int) []int {
	is := make([]int, len(values))
	for i := range is {
		is[i] = i
	}
	slices.SortStableFunc(is, func(a, b int) int { return cmp.Compare(values[b], values[a]) })
	return is[:n]
}

// experts64 returns a row's experts.
func experts64(r device.Router, row, bias []float64) []int {
	choice := scores64(r, row)
	for i := range choice {
		choice[i] += bias[i]
	}
	if r.Groups > 1 {
		var best []float64
		n := len(row) / r.Groups
		for g := range r.Groups {
			sum := 0.0
			for _, i := range byValue(choice[g*n:(g+1)*n], r.GroupBest) {
				sum += choice[g*n+i]
			}
			best = append(best, sum)
		}
		for i := range choice {
			if !slices.Contains(byValue(best, r.TopGroups), i/n) {
				choice[i] = math.Inf(-1)
			}
		}
	}
	experts := byValue(choice, r.TopK)
	slices.Sort(experts)
	return experts
}

// weights64 returns the weights of a row's experts.
func weights64(r device.Router, row []float64, experts []int) (w []float64) {
	s, sum := scores64(r, row), 0.0
	for _, e := range experts {
		w = append(w, s[e])
		sum += s[e]
	}
	for i := range w {
		if r.Normalize {
			w[i] /= max(sum, float64(r.Floor))
		}
		w[i] *= float64(r.Scale)
	}
	return w
}

// TestRoute compares experts and weights with the formula in float64, and the gradient with central
// differences of it.
func TestRoute(t *testing.T) {
	const R, E = 33, 16
	for name, r := range routers {
		eachType(t, func(t *testing.T, dt device.DType) {
			var logits0, bias0, dw0 []float64
			out := onWorkers(t, func(q *Queue) []*guarded {
				rng := rand.New(rand.NewPCG(9, 10))
				logits, bias := newMat(device.F32, R, E).normal(rng, 0, 2), newVec(dt, E).normal(rng, 0, 0.1)
				if !r.Bias {
					bias.fill(func(int) float64 { return 0 })
				}
				experts, weights := newVec(device.I32, R*r.TopK), newVec(device.F32, R*r.TopK)
				dlogits, dweights := newMat(dt, R, E), newVec(device.F32, R*r.TopK).normal(rng, 0, 1)
				logits0, bias0, dw0 = logits.values(), bias.values(), dweights.values()
				q.Route(experts.Buf, weights.Buf, logits.Mat, bias.Buf, r)
				q.RouteGrad(dlogits.Mat, logits.Mat, experts.Buf, weights.Buf, dweights.Buf, r)
				return []*guarded{experts, weights, dlogits}
			})
			var weights, grads []float64
			for i := range R {
				row, dw := logits0[i*E:(i+1)*E], dw0[i*r.TopK:(i+1)*r.TopK]
				experts := experts64(r, row, bias0)
				for j, e := range experts {
					if got := int(out[0].Buf.I32()[i*r.TopK+j]); got != e {
						t.Fatalf("%s: row %d has expert %d at %d, want %v", name, i, got, j, experts)
					}
				}
				weights = append(weights, weights64(r, row, experts)...)
				grads = append(grads, slopes(row, func() float64 { return dot(weights64(r, row, experts), dw) })...)
			}
			near(t, name, out[1], weights, 2e-7)
			near(t, name+": gradient", out[2], grads, 3e-6)
		})
	}
}

// TestRoutesAreTransformers compares routing with that of transformers 5.24.0 for rows of small random
// models of six families.
func TestRoutesAreTransformers(t *testing.T) {
	text, err := os.ReadFile("testdata/routes.json")
	if err != nil {
		t.Fatal(err)
	}
	var families []struct {
		Model                 string
		Router                device.Router
		Bias, Logits, Weights []float64
		Experts               []int32
	}
	if err := json.Unmarshal(text, &families); err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		pairs := len(f.Experts)
		rows := pairs / f.Router.TopK
		E := len(f.Logits) / rows
		out := onWorkers(t, func(q *Queue) []*guarded {
			logits := newMat(device.F32, rows, E).fill(func(i int) float64 { return f.Logits[i] })
			bias := newVec(device.F32, len(f.Bias)).fill(func(i int) float64 { return f.Bias[i] })
			experts, weights := newVec(device.I32, pairs), newVec(device.F32, pairs)
			q.Route(experts.Buf, weights.Buf, logits.Mat, bias.Buf, f.Router)
			return []*guarded{experts, weights}
		})
		if got := out[0].Buf.I32(); !slices.Equal(got, f.Experts) {
			t.Errorf("%s: experts %v, want %v", f.Model, got, f.Experts)
		}
		near(t, f.Model, out[1], f.Weights, 2e-7)
	}
}

// TestTiesOfRoutes checks that of equal scores, the lower index is selected, and that rows that are not
// numbers select as many different experts.
func TestTiesOfRoutes(t *testing.T) {
	nan := math.NaN()
	rows := [][]float64{{1, 1, 1, 1, 1, 1}, {0, 1, 2, 2, 1, 2}, {nan, nan, nan, nan, nan, nan}, {0, nan, 1, 2, nan, 0}, {0, 1, 0, 1, 0, 1}}
	want := [][]int32{{0, 1, 2}, {2, 3, 5}, {0, 1, 2}, nil, {1, 3, 5}}
	for _, r := range []device.Router{{TopK: 3}, {TopK: 3, Score: device.Sigmoid, Bias: true}} {
		q := queueOf(t, 1)
		logits := newMat(device.F32, len(rows), 6).fill(func(i int) float64 { return rows[i/6][i%6] })
		experts, weights, bias := newVec(device.I32, 3*len(rows)), newVec(device.F32, 3*len(rows)), newVec(device.F32, 6).fill(func(int) float64 { return 0.25 })
		q.Route(experts.Buf, weights.Buf, logits.Mat, bias.Buf, r)
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		for i, w := range want {
			got := experts.Buf.I32()[3*i : 3*i+3]
			if w != nil && !slices.Equal(got, w) || got[0] < 0 || got[0] >= got[1] || got[1] >= got[2] || got[2] > 5 {
				t.Errorf("%v selects %v, want %v", rows[i], got, fmt.Sprint(w))
			}
		}
	}
}

// TestBalance compares statistics with the formula in float64, and the gradient with central differences of the
// loss over the rows that are no padding.
func TestBalance(t *testing.T) {
	const R, E, K = 21, 12, 3
	eachType(t, func(t *testing.T, dt device.DType) {
		var logits0, before []float64
		out := onWorkers(t, func(q *Queue) []*guarded {
			rng := rand.New(rand.NewPCG(11, 12))
			logits, dlogits, stats := newMat(device.F32, R, E).normal(rng, 0, 2), newMat(dt, R, E).normal(rng, 0, 1e-3), newMat(device.F32, R, 2*E)
			target := newVec(device.I32, R).fill(func(i int) float64 { return []float64{3, -1, -2}[i%3] })
			sums, counts, total := newVec(device.F32, 2*E), newVec(device.F32, 2*E), newVec(device.F32, 1).fill(func(int) float64 { return 0 })
			logits0, before = logits.values(), dlogits.values()
			q.Balance(stats.Mat, logits.Mat, target.Buf, K)
			q.SumRows(counts.Buf, stats.Mat)
			q.SumRows(sums.Buf, stats.Mat)
			q.BalanceTotal(sums.Buf, total.Buf, K)
			q.BalanceGrad(dlogits.Mat, logits.Mat, target.Buf, sums.Buf.Slice(0, E), 3)
			return []*guarded{stats, counts, dlogits, total}
		})
		r := device.Router{TopK: K}
		counts, stats, loss, rows := make([]float64, E), []float64(nil), 0.0, 0.0
		row := func(i int) []float64 { return logits0[i*E : (i+1)*E] }
		for i := range R {
			chosen, scores := make([]float64, E), make([]float64, E)
			if i%3 < 2 {
				rows++
				for _, e := range experts64(r, row(i), make([]float64, E)) {
					chosen[e] = 1
					counts[e]++
				}
				scores = scores64(r, row(i))
			}
			stats = append(append(stats, chosen...), scores...)
		}
		var grads []float64
		for i := range R {
			each := func() float64 { return 3 * E * dot(scores64(r, row(i)), counts) / rows / rows }
			slope := make([]float64, E)
			if i%3 < 2 {
				slope = slopes(row(i), each)
				loss += each() / 3
			}
			for j, s := range slope {
				grads = append(grads, before[i*E+j]+s)
			}
		}
		near(t, "statistics", out[0], stats, 2e-7)
		near(t, "gradient", out[2], grads, 2e-6)
		if got := out[1].values()[:E]; !slices.Equal(got, counts) {
			t.Errorf("counts %v, want %v", got, counts)
		}
		near(t, "loss", out[3], []float64{loss}, 1e-6)
	})
}
