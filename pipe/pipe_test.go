package pipe

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// shapes calls f with pipelines of many sizes.
func shapes(f func(Shape)) {
	for _, ranks := range []int{1, 2, 3, 4, 5, 8, 16} {
		for _, micro := range []int{1, 2, 3, 4, 6, 8, 9, 16, 31, 64} {
			for _, sched := range Schedules {
				for _, virtual := range []int{1, 2, 3, 4} {
					if s := (Shape{Schedule(sched), ranks, virtual, micro}); s.Check() == nil {
						f(s)
					}
				}
			}
		}
	}
}

// costs holds the seconds of a forward pass through all stages of a rank, of both parts of the
// backward pass, and of a transfer.
type costs struct{ f, i, w, transfer float64 }

// clock runs programs whose transfers only block receivers. It returns the end of the last action
// and the maximum number of micro-batches in flight by rank.
func clock(s Shape, programs [][]Action, c costs) (end float64, flights []int) {
	v := float64(s.Virtual)
	took := [kinds]float64{Forward: c.f / v, Backward: (c.i + c.w) / v, InputGrad: c.i / v, WeightGrad: c.w / v}
	next, free := make([]int, s.Ranks), make([]float64, s.Ranks)
	live := make([]int, s.Ranks)
	flights = make([]int, s.Ranks)
	done := map[Action]float64{}
	for moved := true; moved; {
		moved = false
		for r, program := range programs {
			for ; next[r] < len(program); next[r]++ {
				a := program[next[r]]
				switch a.Kind {
				case RecvForward, RecvBackward:
					of, _ := s.Needs(computes(a, s))
					if _, ok := done[of]; !ok {
						goto waits
					}
					done[a] = done[of] + c.transfer
				case SendForward, SendBackward:
				default:
					begin := free[r]
					if of, some := s.Needs(a); some {
						if of.Stage%s.Ranks != r {
							of = receives(a)
						}
						t, ok := done[of]
						if !ok {
							goto waits
						}
						begin = max(begin, t)
					}
					free[r] = begin + took[a.Kind]
					done[a], end = free[r], max(end, free[r])
					if a.Kind == Forward {
						live[r]++
						flights[r] = max(flights[r], live[r])
					} else if a.Kind != InputGrad {
						live[r]--
					}
				}
				moved = true
			}
		waits:
		}
	}
	for r, program := range programs {
		if next[r] < len(program) {
			panic(fmt.Sprintf("%+v: rank %d ends before %v", s, r, program[next[r]]))
		}
	}
	return end, flights
}

// computes returns the action that needs the result of receives.
func computes(a Action, s Shape) Action {
	switch {
	case a.Kind == RecvForward:
		return Action{Forward, a.Stage, a.Micro}
	case s.Schedule == ZBH1:
		return Action{InputGrad, a.Stage, a.Micro}
	}
	return Action{Backward, a.Stage, a.Micro}
}

// receives returns the action that receives the input of another.
func receives(a Action) Action {
	if a.Kind == Forward {
		return Action{RecvForward, a.Stage, a.Micro}
	}
	return Action{RecvBackward, a.Stage, a.Micro}
}

// TestFormulas compares time and memory with the papers' formulas, which apply if there are at
// least as many micro-batches as ranks.
func TestFormulas(t *testing.T) {
	settings := 0
	shapes(func(s Shape) {
		programs := s.Programs()
		p, m, v := float64(s.Ranks), float64(s.Micro), float64(s.Virtual)
		for _, c := range []costs{{1, 1, 1, 0}, {1, 1.5, 0.5, 0}, {2, 3, 2.5, 0}, {1, 1.25, 0.75, 0}, {3, 3, 3, 0}} {
			b := c.i + c.w
			want := (m + p - 1) * (c.f + b)
			switch s.Schedule {
			case Interleaved:
				want = m*(c.f+b) + (p-1)*(c.f+b)/v
			case ZBH1:
				if c.f != c.i || c.i != c.w || s.Micro < s.Ranks {
					continue // the formula assumes passes of equal length
				}
				want = m*(c.f+b) + (p-1)*(c.f+c.i-c.w)
			}
			end, flights := clock(s, programs, c)
			if math.Abs(end-want) > 1e-9*want {
				t.Errorf("%+v, %+v: a step takes %g, want %g", s, c, end, want)
			}
			for r, got := range flights {
				want := map[Schedule]int{GPipe: s.Micro, OneF1B: min(s.Micro, s.Ranks-r), ZBH1: min(s.Micro, s.Ranks),
					Interleaved: min(s.Micro*s.Virtual, 2*(s.Ranks-r-1)+(s.Virtual-1)*s.Ranks+1)}[s.Schedule]
				if got != want {
					t.Errorf("%+v: rank %d has %d micro-batches in flight, want %d", s, r, got, want)
				}
			}
			settings++
		}
	})
	t.Logf("%d settings", settings)
	if settings < 1000 {
		t.Error("want 1,000 or more")
	}
}

// TestPublishedRates compares bubbles of 1F1B and ZB-H1 with table 5 of arXiv 2401.10241, computed
// from the profiled milliseconds of its table 9.
func TestPublishedRates(t *testing.T) {
	tests := []struct {
		ranks, micro int
		costs
		oneF1B, zbh1 float64
	}{
		{8, 24, costs{18.522, 18.086, 9.337, 0.601}, 0.2431, 0.1585},
		{8, 32, costs{18.513, 18.086, 9.331, 0.626}, 0.1985, 0.1242},
		{8, 64, costs{18.546, 18.097, 9.321, 0.762}, 0.1240, 0.0674},
		{8, 24, costs{29.718, 29.444, 19.927, 0.527}, 0.2347, 0.1323},
		{8, 32, costs{29.802, 29.428, 19.530, 0.577}, 0.1898, 0.1045},
		{8, 64, costs{29.935, 29.621, 19.388, 0.535}, 0.1091, 0.0554},
		{16, 48, costs{11.347, 11.248, 8.132, 0.377}, 0.2552, 0.1397},
		{16, 64, costs{11.307, 11.254, 8.101, 0.379}, 0.2082, 0.1088},
		{16, 128, costs{11.325, 11.308, 8.109, 0.378}, 0.1251, 0.0576},
		{32, 96, costs{10.419, 10.207, 7.715, 0.408}, 0.2646, 0.1421},
		{32, 128, costs{10.408, 10.204, 7.703, 0.408}, 0.2168, 0.1106},
		{32, 256, costs{10.402, 10.248, 7.698, 0.460}, 0.1352, 0.0594},
	}
	for _, x := range tests {
		for schedule, want := range map[Schedule]float64{OneF1B: x.oneF1B, ZBH1: x.zbh1} {
			s := Shape{schedule, x.ranks, 1, x.micro}
			end, _ := clock(s, s.Programs(), x.costs)
			if got := 1 - float64(x.micro)*(x.f+x.i+x.w)/end; math.Abs(got-want) > 0.0006 {
				t.Errorf("%s with %d ranks: bubble %.4f of a step, published %.4f", schedule, x.ranks, got, want)
			}
		}
	}
}

// TestOrder checks that each rank does everything once, with the backward passes of a stage in the
// order of micro-batches.
func TestOrder(t *testing.T) {
	shapes(func(s Shape) {
		for r := range s.Ranks {
			seen, last := map[Action]bool{}, map[Action]int{}
			for _, a := range s.Order(r) {
				if seen[a] || a.Stage%s.Ranks != r || a.Micro >= s.Micro {
					t.Fatalf("%+v: rank %d does %v", s, r, a)
				}
				seen[a] = true
				of := Action{Kind: a.Kind, Stage: a.Stage}
				if a.Kind != Forward && a.Micro < last[of] {
					t.Fatalf("%+v: rank %d does %v after that of micro-batch %d", s, r, a, last[of])
				}
				last[of] = a.Micro
			}
			each := 2
			if s.Schedule == ZBH1 {
				each = 3
			}
			if len(seen) != each*s.Micro*s.Virtual {
				t.Fatalf("%+v: rank %d does %d actions", s, r, len(seen))
			}
		}
	})
}

// meet runs programs with transfers that block both ranks, as the hosts of GPUs do, and returns an
// error on deadlock.
func meet(s Shape, programs [][]Action) error {
	next, did := make([]int, s.Ranks), map[Action]bool{}
	for moved := true; moved; {
		moved = false
		for r, program := range programs {
			if next[r] == len(program) {
				continue
			}
			a := program[next[r]]
			switch a.Kind {
			case SendForward, SendBackward:
				in := Action{RecvForward, a.Stage + 1, a.Micro}
				of := Action{Forward, a.Stage, a.Micro}
				if a.Kind == SendBackward {
					in, of = Action{RecvBackward, a.Stage - 1, a.Micro}, computes(Action{RecvBackward, a.Stage, a.Micro}, s)
				}
				if !did[of] {
					return fmt.Errorf("%v before it is computed", a)
				}
				to := in.Stage % s.Ranks
				if next[to] == len(programs[to]) || programs[to][next[to]] != in {
					continue
				}
				did[in] = true
				next[to]++
			case RecvForward, RecvBackward:
				continue
			default:
				if of, some := s.Needs(a); some {
					if of.Stage%s.Ranks != r {
						of = receives(a)
					}
					if !did[of] {
						return fmt.Errorf("%v before %v", a, of)
					}
				}
			}
			did[a] = true
			next[r]++
			moved = true
		}
	}
	var stuck []string
	for r, program := range programs {
		if next[r] < len(program) {
			stuck = append(stuck, fmt.Sprintf("rank %d in %v", r, program[next[r]]))
		}
	}
	if stuck != nil {
		return fmt.Errorf("wait for each other: %s", strings.Join(stuck, ", "))
	}
	return nil
}

// TestNoRankWaitsInACircle runs programs whose transfers block both ranks. It also checks that
// placing sends right after their computation and receives right before would deadlock.
func TestNoRankWaitsInACircle(t *testing.T) {
	naive, stuck := 0, 0
	shapes(func(s Shape) {
		if err := meet(s, s.Programs()); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
		if err := meet(s, s.Evaluation()); err != nil {
			t.Errorf("%+v, forward alone: %v", s, err)
		}
		if s.Ranks == 1 || s.Schedule == GPipe || s.Micro < s.Ranks {
			return
		}
		naive++
		if meet(s, adjacent(s)) != nil {
			stuck++
		}
	})
	t.Logf("transfers beside what they are for: %d of %d wait in a circle", stuck, naive)
	if stuck < naive/2 {
		t.Error("programs that are known to wait in a circle do not: the test sees nothing")
	}
}

// adjacent returns programs with each transfer right next to the computation that needs it.
func adjacent(s Shape) [][]Action {
	programs := make([][]Action, s.Ranks)
	for r := range programs {
		for _, a := range s.Order(r) {
			of, some := s.Needs(a)
			if some && of.Stage%s.Ranks != r {
				programs[r] = append(programs[r], receives(a))
			}
			programs[r] = append(programs[r], a)
			switch {
			case a.Kind == Forward && a.Stage < s.Stages()-1:
				programs[r] = append(programs[r], Action{SendForward, a.Stage, a.Micro})
			case (a.Kind == Backward || a.Kind == InputGrad) && a.Stage > 0:
				programs[r] = append(programs[r], Action{SendBackward, a.Stage, a.Micro})
			}
		}
	}
	return programs
}

// TestSwappedActionsAreCaught swaps adjacent actions of programs: either meet must refuse the
// result, or it is valid and takes at least as long.
func TestSwappedActionsAreCaught(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	caught, valid := 0, 0
	shapes(func(s Shape) {
		if s.Ranks == 1 || s.Ranks > 8 || s.Micro > 16 {
			return
		}
		programs := s.Programs()
		least, _ := clock(s, programs, costs{1, 1, 1, 0})
		for range 40 {
			p := programs[rng.IntN(s.Ranks)]
			i := rng.IntN(len(p) - 1)
			p[i], p[i+1] = p[i+1], p[i]
			if meet(s, programs) != nil {
				caught++
			} else if end, _ := clock(s, programs, costs{1, 1, 1, 0}); end < least {
				t.Errorf("%+v: with %v before %v a step takes %g, not %g", s, p[i], p[i+1], end, least)
			} else {
				valid++
			}
			p[i], p[i+1] = p[i+1], p[i]
		}
	})
	t.Logf("%d swaps are caught, %d are programs still", caught, valid)
	if caught < valid {
		t.Error("too few swaps are caught")
	}
}

func TestShapesThatCannotBe(t *testing.T) {
	for want, s := range map[string]Shape{
		"6 micro-batches are not a multiple of 4 ranks":          {Interleaved, 4, 2, 6},
		"1F1B has one stage per rank, not 2":                     {OneF1B, 4, 2, 8},
		"Interleaved1F1B needs several stages per rank, not one": {Interleaved, 4, 1, 8},
		"1024 stages × 1024 micro-batches are more than 262144":  {GPipe, 1024, 1, 1024},
		`no schedule "ZBV"`: {"ZBV", 2, 1, 2},
		"Ranks:0":           {GPipe, 0, 1, 2},
	} {
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}

// BenchmarkPrograms computes the programs of a large pipeline.
func BenchmarkPrograms(b *testing.B) {
	s := Shape{OneF1B, 64, 1, 1024}
	for range b.N {
		if got := s.Programs(); !slices.Contains(got[63], Action{RecvForward, 63, 1023}) {
			b.Fatal("a transfer is missing")
		}
	}
}
