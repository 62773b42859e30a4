package data

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// drawn returns documents with the given numbers of positions and unique tokens: document i
// has 1000i, 1000i+1, ...
func drawn(lengths []int) (*documents, []int32) {
	d, all := &documents{starts: []int64{0}}, []int32(nil)
	for i, n := range lengths {
		x := tokens{}
		for k := range n + 1 {
			x.ids, x.learn = append(x.ids, int32(1000*i+k)), append(x.learn, k == n || (i+k)%3 > 0)
		}
		d.add(example{documents: []tokens{x}}, n, &counts{})
		all = append(all, int32(i))
	}
	return d, all
}

// bestFit packs by best fit decreasing, examining every sequence, and returns the documents of
// each.
func bestFit(lengths []int, T int) (seqs [][]int32) {
	var gap, used []int
	order := make([]int, len(lengths))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return lengths[b] - lengths[a] })
	for clock, i := range order {
		best := -1
		for s, r := range gap {
			if r >= lengths[i] && (best < 0 || r < gap[best] || r == gap[best] && used[s] > used[best]) {
				best = s
			}
		}
		if best < 0 {
			best, gap, used, seqs = len(gap), append(gap, T), append(used, 0), append(seqs, nil)
		}
		gap[best], used[best], seqs[best] = gap[best]-lengths[i], clock, append(seqs[best], int32(i))
	}
	for _, docs := range seqs {
		slices.Sort(docs)
	}
	return seqs
}

// TestPackIsBestFit compares with the slow loop, including gaps of many words and lengths that
// fill a sequence.
func TestPackIsBestFit(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 300 {
		T := 1 + rng.IntN([]int{3, 70, 5000, 9000}[round%4])
		lengths := make([]int, rng.IntN(120))
		for i := range lengths {
			lengths[i] = 1 + rng.IntN(1+rng.IntN(T))
		}
		d, all := drawn(lengths)
		got, want := d.arrange([][]int32{all}, T, true), bestFit(lengths, T)
		if got.len() != len(want) {
			t.Fatalf("%d documents in %d: %d sequences, want %d", len(lengths), T, got.len(), len(want))
		}
		for i, docs := range want {
			if !slices.Equal(got.documentsOf(int64(i)), docs) {
				t.Fatalf("%d documents in %d: sequence %d is %v, want %v", len(lengths), T, i, got.documentsOf(int64(i)), docs)
			}
		}
	}
}

// TestPackedSamples reads all sequences of two groups: every document occurs once,
// contiguously, with the targets and masks it has alone; no position predicts another
// document's token; padding has no loss and attends to nothing.
func TestPackedSamples(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const T = 40
	var lengths []int
	for range 150 {
		lengths = append(lengths, 1+rng.IntN(1+rng.IntN(T)))
	}
	d, all := drawn(lengths)
	s := newDocumentSplit(d.arrange([][]int32{all[:70], all[70:]}, T, true), Source{Context: T})
	alone := newDocumentSplit(d.arrange([][]int32{all}, T, false), Source{Context: T})
	seen, learned := map[int32]int{}, 0
	for w := range s.Windows() {
		input, target, start := make([]int32, T), make([]int32, T), make([]int32, T)
		for i := range T {
			input[i], target[i], start[i] = -7, -7, -7
		}
		s.Batch(Tokens(input, target, start), w)
		for at := 0; at < T; {
			if int(start[at]) != at {
				t.Fatalf("sequence %d: position %d starts at %d", w, at, start[at])
			}
			if input[at] == 0 && target[at] == Padding && (len(seen) == 0 || seen[0] > 0) { // behind the last document
				at++
				continue
			}
			doc := input[at] / 1000
			n := lengths[doc]
			wantIn, wantOut := make([]int32, T), make([]int32, T)
			alone.Batch(Tokens(wantIn, wantOut, nil), int64(doc))
			if !slices.Equal(input[at:at+n], wantIn[:n]) || !slices.Equal(target[at:at+n], wantOut[:n]) {
				t.Fatalf("sequence %d: document %d is %v and %v, alone %v and %v", w, doc, input[at:at+n], target[at:at+n], wantIn[:n], wantOut[:n])
			}
			for _, from := range start[at : at+n] {
				if int(from) != at {
					t.Fatalf("sequence %d: document %d begins at %d, but start is %d", w, doc, at, from)
				}
			}
			if seen[doc]++; (doc < 70) != (w < int64(s.docs.groups[0])) {
				t.Fatalf("document %d is in sequence %d, of another group", doc, w)
			}
			at += n
		}
		learned += s.Learned(w, 1)
	}
	if len(seen) != len(lengths) || learned != alone.Learned(0, alone.Windows()) {
		t.Errorf("%d documents of %d, %d targets of %d", len(seen), len(lengths), learned, alone.Learned(0, alone.Windows()))
	}
	for doc, n := range seen {
		if n != 1 {
			t.Errorf("document %d occurs %d times", doc, n)
		}
	}
}

// TestPackedFiles covers the masks of prompts, cut documents, validation documents and notes,
// and checks that the order is a function of the seed and the sample.
func TestPackedFiles(t *testing.T) {
	var all, dev []any
	for i := range 120 {
		x := map[string]string{"prompt": fmt.Sprintf("%c:", 'A'+i%26), "completion": strings.Repeat(string(rune('a'+i%26)), 1+i%19)}
		if all = append(all, x); i%10 == 0 {
			dev = append(dev, map[string]string{"prompt": "??", "completion": x["completion"]})
		}
	}
	dir := tree(t, map[string]string{"a.jsonl": records(t, all...), "dev.jsonl": records(t, dev...)})
	source := Source{Documents: Documents{Files: []string{"a.jsonl"}, Validation: []string{"dev.jsonl"}, Format: "prompt", Pack: true}, Dir: dir, Tokenizer: "bytes", Context: 16, Seed: 5}
	set := open(t, source)
	want := []string{
		"documents longer than 17 tokens: 25, cut by 61 tokens in all",
		fmt.Sprintf("120 documents are packed into %d sequences of 16 tokens, %.1f %% full", set.Train.Windows(), 100*set.Train.docs.fillRatio(16)),
	}
	if !slices.Equal(set.Notes, want) {
		t.Errorf("notes %q, want %q", set.Notes, want)
	}
	if full := set.Train.docs.fillRatio(16); full < 0.95 {
		t.Errorf("%.3f full", full)
	}
	count := func(s *Split, first int64) (targets map[int32]int) {
		targets = map[int32]int{}
		input, target, start := make([]int32, 16), make([]int32, 16), make([]int32, 16)
		for i := range s.Windows() {
			s.Batch(Tokens(input, target, start), first+i)
			for k, id := range target {
				if id < 0 {
					continue
				}
				targets[id]++
				if low := id >= 'a' && id <= 'z'; !low || input[k] != id && input[k] != ':' && input[k] != '?' {
					t.Fatalf("%q is learned after %q", id, input[k])
				}
			}
		}
		return targets
	}
	first, second := count(set.Train, 0), count(set.Train, set.Train.Windows())
	for id, n := range first {
		if second[id] != n {
			t.Errorf("%q is learned %d times in an epoch, %d in the next", id, n, second[id])
		}
	}
	if held := count(set.Validation, 0); len(held) == 0 || set.Validation.Windows() >= 12 {
		t.Errorf("%d tokens of validation in %d sequences", len(held), set.Validation.Windows())
	}
	again := open(t, source)
	source.Seed++
	other := open(t, source)
	same, differ := true, false
	for i := range 3 * set.Train.Windows() {
		w := set.Train.Window(i)
		same = same && again.Train.Window(i) == w
		differ = differ || other.Train.Window(i) != w
	}
	if !same || !differ {
		t.Errorf("the same order again: %t, another with another seed: %t", same, differ)
	}
	source.Documents.Validation, source.Validation = nil, 0.25
	parted := open(t, source)
	held := map[int32]bool{}
	for _, doc := range parted.Validation.docs.index {
		held[doc] = true
	}
	for _, doc := range parted.Train.docs.index {
		if held[doc] {
			t.Errorf("document %d is in both", doc)
		}
	}
	if len(held) != 30 || len(parted.Train.docs.index) != 90 {
		t.Errorf("%d and %d documents", len(held), len(parted.Train.docs.index))
	}
	source.Batch = 1000
	if _, err := Open(t.Context(), source); err == nil || !strings.Contains(err.Error(), "sequences, of 90 documents, to train on, fewer than the 1000 of one global batch") {
		t.Errorf("%v", err)
	}
}

func TestPackedBatchAllocatesNothing(t *testing.T) {
	d, all := drawn([]int{3, 5, 2, 7, 1, 1, 4})
	s := newDocumentSplit(d.arrange([][]int32{all}, 8, true), Source{Context: 8})
	s.shuffle = true
	input, target, start, at := make([]int32, 16), make([]int32, 16), make([]int32, 16), int64(0)
	if n := testing.AllocsPerRun(100, func() { s.Batch(Tokens(input, target, start), at); at += 2 }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkPack packs a million documents.
func BenchmarkPack(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	lengths := make([]int, 1<<20)
	d := &documents{starts: []int64{0}}
	all := make([]int32, len(lengths))
	for i := range lengths {
		d.starts, d.learned = append(d.starts, d.starts[i]+2+int64(rng.ExpFloat64()*300)%2048), append(d.learned, 1)
		all[i] = int32(i)
	}
	for b.Loop() {
		s := d.arrange([][]int32{all}, 2048, true)
		b.ReportMetric(100*s.fillRatio(2048), "%full")
	}
}

// Tokens returns the values of the fields of tokens; start is nil unless documents are packed.
func Tokens(input, target, start []int32) []Values {
	if start == nil {
		return []Values{{I32: input}, {I32: target}}
	}
	return []Values{{I32: input}, {I32: target}, {I32: start}}
}
