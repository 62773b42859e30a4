package optim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/device"
)

// vectors has the buffers of one parameter that a rule uses.
type vectors struct{ w, p, g, m, v []float32 }

func randomVectors(seed uint64, n int) vectors {
	r := rand.New(rand.NewPCG(seed, 1))
	x := vectors{make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)}
	for i := range n {
		x.w[i] = float32(r.NormFloat64())
	}
	return x
}

func (x vectors) piece(lo, hi, states int) Piece {
	b := Piece{
		Master: device.OfF32(x.w[lo:hi]),
		Param:  device.OfF32(x.p[lo:hi]),
		Grad:   device.OfF32(x.g[lo:hi]),
	}
	for _, s := range [][]float32{x.m, x.v}[:states] {
		b.State = append(b.State, device.OfF32(s[lo:hi]))
	}
	return b
}

// gradient fills g with the gradient of step t.
func (x vectors) gradient(t int) {
	r := rand.New(rand.NewPCG(uint64(t), 2))
	for i := range x.g {
		x.g[i] = float32(r.NormFloat64() * 3)
	}
}

// reference applies a rule to one element in float64, as written in its paper.
type reference func(t int, lr, g, w float64, state *[2]float64) float64

func adamReference(b1, b2, eps, decay, l2 float64) reference {
	return func(t int, lr, g, w float64, s *[2]float64) float64 {
		g += l2 * w
		s[0] = b1*s[0] + (1-b1)*g
		s[1] = b2*s[1] + (1-b2)*g*g
		mHat := s[0] / (1 - math.Pow(b1, float64(t)))
		vHat := s[1] / (1 - math.Pow(b2, float64(t)))
		return w - lr*decay*w - lr*mHat/(math.Sqrt(vHat)+eps)
	}
}

func sgdReference(momentum, decay float64) reference {
	return func(_ int, lr, g, w float64, s *[2]float64) float64 {
		s[0] = momentum*s[0] + g + decay*w
		return w - lr*s[0]
	}
}

func lionReference(b1, b2, decay float64) reference {
	return func(_ int, lr, g, w float64, s *[2]float64) float64 {
		u := b1*s[0] + (1-b1)*g
		s[0] = b2*s[0] + (1-b2)*g
		return w - lr*decay*w - lr*math.Copysign(1, u)
	}
}

var rules = []struct {
	name       string
	rule       Elementwise
	decayed    reference
	undecayed  reference
	stateNames []string
	lr         float64
}{
	{"AdamW", AdamW{0.9, 0.95, 1e-8}, adamReference(0.9, 0.95, 1e-8, 0.1, 0), adamReference(0.9, 0.95, 1e-8, 0, 0),
		[]string{"exp_avg", "exp_avg_sq"}, 6e-3},
	{"Adam", Adam{0.9, 0.999, 1e-8}, adamReference(0.9, 0.999, 1e-8, 0, 0.1), adamReference(0.9, 0.999, 1e-8, 0, 0),
		[]string{"exp_avg", "exp_avg_sq"}, 6e-3},
	{"SGD", SGD{0.9}, sgdReference(0.9, 0.1), sgdReference(0.9, 0), []string{"momentum_buffer"}, 0.01},
	{"SGD without momentum", SGD{0}, sgdReference(0, 0.1), sgdReference(0, 0), nil, 0.01},
	{"Lion", Lion{0.9, 0.99}, lionReference(0.9, 0.99, 0.1), lionReference(0.9, 0.99, 0), []string{"exp_avg"}, 1e-3},
}

// TestRulesFollowTheirPapers compares 20 steps of each rule, with and without decay, with
// its float64 reference. The bound is the float32 error of 20 steps of three roundings each
// with |w| < 4.
func TestRulesFollowTheirPapers(t *testing.T) {
	const n, scale, bound = 37, 0.25, 20 * 3 * 4 * 0x1p-24
	for _, c := range rules {
		for _, decay := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s decay=%v", c.name, decay), func(t *testing.T) {
				if got := c.rule.States(); !slices.Equal(got, c.stateNames) {
					t.Fatalf("states %q, want %q", got, c.stateNames)
				}
				ref, h := c.undecayed, Hyper{LR: c.lr, GradScale: scale}
				if decay {
					ref, h.Decay = c.decayed, 0.1
				}
				x := randomVectors(1, n)
				want, state := make([]float64, n), make([][2]float64, n)
				for i, w := range x.w {
					want[i] = float64(w)
				}
				for step := 1; step <= 20; step++ {
					x.gradient(step)
					c.rule.Step(host{}, step, h, x.piece(0, n, len(c.stateNames)))
					for i := range want {
						want[i] = ref(step, c.lr, scale*float64(x.g[i]), want[i], &state[i])
					}
				}
				for i := range want {
					if math.Abs(float64(x.w[i])-want[i]) > bound {
						t.Errorf("element %d: %g, want %g", i, x.w[i], want[i])
					}
				}
				if !slices.Equal(x.p, x.w) {
					t.Error("the parameter is not its master")
				}
			})
		}
	}
}

// TestSplitGivesTheSameBits updates one vector at once and in uneven pieces.
func TestSplitGivesTheSameBits(t *testing.T) {
	const n = 101
	for _, c := range rules {
		whole, split := randomVectors(3, n), randomVectors(3, n)
		for step := 1; step <= 5; step++ {
			h := Hyper{LR: c.lr, Decay: 0.1, GradScale: 0.5}
			whole.gradient(step)
			split.gradient(step)
			c.rule.Step(host{}, step, h, whole.piece(0, n, len(c.stateNames)))
			cuts := []int{0, 1, 1, 8 + step, 64, n}
			for i := range len(cuts) - 1 {
				c.rule.Step(host{}, step, h, split.piece(cuts[i], cuts[i+1], len(c.stateNames)))
			}
		}
		for _, pair := range [][2][]float32{{whole.w, split.w}, {whole.m, split.m}, {whole.v, split.v}} {
			if !slices.Equal(pair[0], pair[1]) {
				t.Errorf("%s: bits depend on the split", c.name)
			}
		}
	}
}

// TestAdamAgainstPyTorch compares with four steps of the algorithms in the
// documentation of torch.optim.AdamW and torch.optim.Adam, evaluated in
// float64: lr 0.1, betas (0.9, 0.999), eps 1e-8, weight_decay 0.01, w = 1,
// gradients 0.1, -0.2, 0.3, 0.05.
func TestAdamAgainstPyTorch(t *testing.T) {
	for _, c := range []struct {
		rule Elementwise
		want [4]float64
	}{
		{AdamW{0.9, 0.999, 1e-8}, [4]float64{0.89900001, 0.9347113604, 0.8994525426, 0.8629823071}},
		{Adam{0.9, 0.999, 1e-8}, [4]float64{0.9000000091, 0.9310643012, 0.8929585921, 0.8531981464}},
	} {
		x := vectors{w: []float32{1}, p: []float32{0}, g: []float32{0}, m: []float32{0}, v: []float32{0}}
		for i, g := range []float32{0.1, -0.2, 0.3, 0.05} {
			x.g[0] = g
			c.rule.Step(host{}, i+1, Hyper{LR: 0.1, Decay: 0.01, GradScale: 1}, x.piece(0, 1, 2))
			if math.Abs(float64(x.w[0])-c.want[i]) > 3e-7 {
				t.Errorf("%T step %d: %.9g, want %.9g", c.rule, i+1, x.w[0], c.want[i])
			}
		}
	}
}

// TestFirstAdamStepIsExact checks that the bias correction uses the kernel's rounded betas:
// then the first step has length LR whatever the gradient.
func TestFirstAdamStepIsExact(t *testing.T) {
	for _, beta2 := range []float64{0.9, 0.95, 0.999, 0.9999} {
		x := vectors{w: []float32{0}, p: []float32{0}, g: []float32{0.3}, m: []float32{0}, v: []float32{0}}
		AdamW{0.9, beta2, 0}.Step(host{}, 1, Hyper{LR: 1, GradScale: 1}, x.piece(0, 1, 2))
		if math.Abs(float64(x.w[0])+1) > 3e-7 {
			t.Errorf("beta2 %g: the first step is %.9g, want -1", beta2, x.w[0])
		}
	}
}
