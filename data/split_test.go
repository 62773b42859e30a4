package data

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// counting returns a corpus of n tokens in uneven segments; token i is i.
func counting(n int) *Corpus {
	var segments []segment
	for at, size := 0, 1; at < n; at, size = at+size, size%7+1 {
		size = min(size, n-at)
		s := segment{name: "counting", width: 4}
		for i := range size {
			s.data = binary.LittleEndian.AppendUint32(s.data, uint32(at+i))
		}
		segments = append(segments, s)
	}
	return newCorpus(segments)
}

func splits(n, T int, f float64, seed uint64) (train, held *Split) {
	c, l := counting(n), layOut(int64(n), int64(T), f)
	return &Split{corpus: c, context: int64(T), stretches: l.train, shuffle: true, seed: seed},
		&Split{corpus: c, context: int64(T), stretches: l.held}
}

// windows checks that each sample of an epoch is T+1 consecutive tokens of the corpus, and
// returns their first tokens, sorted.
func windows(t rapid.TB, s *Split, epoch int64) (starts []int64) {
	T := int(s.context)
	input, target := make([]int32, T), make([]int32, T)
	for i := range s.Windows() {
		s.Batch(Tokens(input, target, nil), epoch*s.Windows()+i)
		for j := range T {
			if input[j] != input[0]+int32(j) || target[j] != input[j]+1 {
				t.Fatalf("sample %d: input %v, target %v", i, input, target)
			}
		}
		starts = append(starts, int64(input[0]))
	}
	slices.Sort(starts)
	return starts
}

// TestWindowsPartitionTheCorpus checks that without validation the windows of an epoch start
// at 0, T, 2T ... and miss fewer than T targets at the end.
func TestWindowsPartitionTheCorpus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		T := rapid.IntRange(1, 20).Draw(t, "T")
		n := rapid.IntRange(T+1, 900).Draw(t, "n")
		train, _ := splits(n, T, 0, 1)
		for epoch := range int64(2) {
			starts := windows(t, train, epoch)
			for i, at := range starts {
				if at != int64(i*T) {
					t.Fatalf("window %d begins at %d", i, at)
				}
			}
			if rest := n - 1 - len(starts)*T; rest < 0 || rest >= T {
				t.Fatalf("%d windows of %d targets leave %d of %d", len(starts), T, rest, n-1)
			}
		}
	})
}

// TestNoLeakage checks that no token is in windows of both sets, that windows of a set overlap
// in at most one token, and that the fraction is as requested.
func TestNoLeakage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		T := rapid.IntRange(1, 12).Draw(t, "T")
		f := rapid.SampledFrom([]float64{0.001, 0.01, 0.05, 0.1, 1.0 / 3, 0.5}).Draw(t, "f")
		n := rapid.IntRange(2, 20000).Draw(t, "n")
		train, held := splits(n, T, f, 1)
		a, b := windows(t, train, 0), windows(t, held, 0)
		owner := make([]byte, n)
		for set, starts := range map[byte][]int64{'t': a, 'v': b} {
			for i, at := range starts {
				if i > 0 && at < starts[i-1]+int64(T) {
					t.Fatalf("%c: windows at %d and %d", set, starts[i-1], at)
				}
				for j := at; j <= at+int64(T); j++ {
					if owner[j] != 0 && owner[j] != set {
						t.Fatalf("token %d is in both sets", j)
					}
					owner[j] = set
				}
			}
		}
		total := float64(len(a) + len(b))
		if want := f * total; want > 20 && (float64(len(b)) < 0.9*want-1 || float64(len(b)) > 1.1*want+1) {
			t.Fatalf("%d of %.0f windows held for validation, want %.0f", len(b), total, want)
		}
		// Each stretch costs at most one target at its end, the corpus fewer than T.
		if lost := float64(n) - total*float64(T); lost > float64(T)+2*(2+float64(n)/float64(train.stretches.stride)) {
			t.Fatalf("%.0f of %d tokens lost", lost, n)
		}
	})
}

// TestValidationIsSpread checks that every tenth of a corpus has its share.
func TestValidationIsSpread(t *testing.T) {
	_, held := splits(100000, 8, 0.02, 1)
	var tenths [10]int
	for _, at := range windows(t, held, 0) {
		tenths[at/10000]++
	}
	if slices.Min(tenths[:]) < 20 || slices.Max(tenths[:]) > 30 { // 25 is even
		t.Errorf("validation windows in each tenth: %v", tenths)
	}
}

func TestValidationOrderIsTheCorpus(t *testing.T) {
	_, held := splits(5000, 4, 0.1, 3)
	for i := range held.Windows() {
		if held.Window(i) != i || held.Window(i+held.Windows()) != i {
			t.Fatalf("sample %d is window %d", i, held.Window(i))
		}
	}
}

// TestStepIsTheSameForAnyShare distributes the same global batch in every way and compares the
// samples that all ranks together read in a step.
func TestStepIsTheSameForAnyShare(t *testing.T) {
	const T, global = 5, 12
	train, _ := splits(331, T, 0.1, 8)
	for step := range int64(20) { // several epochs
		want := map[int32]int{}
		input, target := make([]int32, global*T), make([]int32, global*T)
		train.Batch(Tokens(input, target, nil), step*global)
		for i := 0; i < len(input); i += T {
			want[input[i]]++
		}
		for i := range global * global * global {
			for _, inOrder := range []bool{false, true} {
				share := Share{global, 1 + i%global, 1 + i/global%global, 1 + i/global/global, inOrder}
				if !share.Valid() {
					continue
				}
				if got := together(train, share, step); !maps.Equal(got, want) {
					t.Fatalf("%+v step %d: %v, want %v", share, step, got, want)
				}
			}
		}
	}
}

// together returns the first tokens of all samples that the ranks read in a step.
func together(s *Split, share Share, step int64) map[int32]int {
	n := share.MicroBatch * int(s.context)
	input, target := make([]int32, n), make([]int32, n)
	got := map[int32]int{}
	for rank := range share.Replicas * share.Ranks {
		if n := share.Micro(rank); n > share.Most() || n < share.Most()-1 || share.Even() && n < share.Most() {
			panic(fmt.Sprintf("%+v: %d micro-batches of rank %d", share, n, rank))
		}
		for micro := range share.Micro(rank) {
			s.Batch(Tokens(input, target, nil), share.First(step, micro, rank))
			for i := 0; i < n; i += int(s.context) {
				got[input[i]]++
			}
		}
	}
	return got
}

func TestCorpusReads(t *testing.T) {
	c := counting(100)
	for at := range 100 {
		for n := range 100 - at {
			got := make([]int32, n)
			c.Read(got, int64(at))
			for i, id := range got {
				if id != int32(at+i) {
					t.Fatalf("tokens [%d:%d): %v", at, at+n, got)
				}
			}
		}
		if c.At(int64(at)) != int32(at) {
			t.Fatalf("token %d is %d", at, c.At(int64(at)))
		}
	}
	for _, bad := range []func(){
		func() { c.At(100) },
		func() { c.At(-1) },
		func() { c.Read(make([]int32, 2), 99) },
		func() { (&Split{corpus: c, context: 3}).Batch(Tokens(make([]int32, 4), make([]int32, 4), nil), 0) },
		func() { (&Split{corpus: c, context: 3}).Window(0) },
	} {
		if !panics(bad) {
			t.Error("a read out of range did not panic")
		}
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func TestBatchAllocatesNothing(t *testing.T) {
	train, _ := splits(5000, 16, 0.1, 1)
	input, target := make([]int32, 4*16), make([]int32, 4*16)
	sample := int64(0)
	if n := testing.AllocsPerRun(100, func() { train.Batch(Tokens(input, target, nil), sample); sample += 4 }); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

// BenchmarkBatch reads batches of 8 windows of 1024 from 64 Mi tokens.
func BenchmarkBatch(b *testing.B) {
	for _, width := range []int{1, 2, 4} {
		b.Run(string(rune('0'+width))+"bytes", func(b *testing.B) {
			const T, n = 1024, 64 << 20
			c := newCorpus([]segment{{data: make([]byte, n*width), width: width}})
			s := Split{corpus: c, context: T, stretches: layOut(n, T, 0.01).train, shuffle: true}
			input, target := make([]int32, 8*T), make([]int32, 8*T)
			b.SetBytes(8 * T)
			for i := range b.N {
				s.Batch(Tokens(input, target, nil), int64(8*i))
			}
		})
	}
}
