package data

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// mixed opens three files of 60, 30 and 10 documents, packed or not, with weights.
func mixed(t *testing.T, pack bool, weights ...float64) (*Set, error) {
	t.Helper()
	files := map[string]string{}
	for i, n := range []int{60, 30, 10} {
		var all []any
		for k := range n {
			all = append(all, map[string]string{"text": strings.Repeat(string(rune('a'+i)), 5+k%3)})
		}
		files[fmt.Sprintf("%d.jsonl", i)] = records(t, all...)
	}
	set, err := Open(t.Context(), Source{Documents: Documents{Files: []string{"0.jsonl", "1.jsonl", "2.jsonl"}, Format: "text", Weights: weights, Pack: pack},
		Dir: tree(t, files), Tokenizer: "bytes", Context: 20, Seed: 3})
	if err == nil {
		t.Cleanup(func() { set.Close() })
	}
	return set, err
}

// TestMixture counts draws: in every epoch each component has its part of the samples, to
// within one, at changing positions; within a component the counts of windows differ by at
// most one.
func TestMixture(t *testing.T) {
	for _, pack := range []bool{false, true} {
		for _, weights := range [][]float64{{0.2, 0.3, 0.5}, {6, 3, 1}, {1, 1, 1}, {0.9, 0.05, 0.05}, {1e-3, 2e-4, 5e-3}} {
			set, err := mixed(t, pack, weights...)
			if err != nil {
				t.Fatal(err)
			}
			s, all := set.Train, 0.0
			for _, w := range weights {
				all += w
			}
			var places []string
			drawnOf := make([][]int64, len(weights))
			for epoch := range int64(7) {
				counts, positions := make([]int, len(weights)), ""
				for i := range s.Windows() {
					w := s.Window(epoch*s.Windows() + i)
					k := 0
					for w >= int64(s.docs.groups[k]) {
						k++
					}
					counts[k]++
					positions += fmt.Sprint(k)
					drawnOf[k] = append(drawnOf[k], w)
				}
				places = append(places, positions)
				for k, n := range counts {
					if want := weights[k] / all * float64(s.Windows()); math.Abs(float64(n)-want) >= 1 {
						t.Errorf("pack %t, %v: %d samples of component %d, want %.2f", pack, weights, n, k, want)
					}
				}
			}
			if places[0] == places[1] {
				t.Errorf("%v: the positions of components are the same in two epochs", weights)
			}
			for k, windows := range drawnOf {
				seen, first := map[int64]int{}, int64(0)
				if k > 0 {
					first = int64(s.docs.groups[k-1])
				}
				size := int64(s.docs.groups[k]) - first
				for _, w := range windows {
					seen[w-first]++
				}
				least, most := math.MaxInt, 0
				for w := range size {
					least, most = min(least, seen[w]), max(most, seen[w])
				}
				if most-least > 1 {
					t.Errorf("pack %t, %v: windows of component %d were drawn %d to %d times", pack, weights, k, least, most)
				}
			}
			notes := slices.DeleteFunc(slices.Clone(set.Notes), func(n string) bool { return strings.HasPrefix(n, "documents fill ") })
			if len(notes) < 3 || !strings.HasPrefix(notes[len(notes)-1], fmt.Sprintf("2.jsonl: weight %g: %.1f %% of the samples", weights[2], 100*float64(s.mix[2].samples)/float64(s.Windows()))) {
				t.Errorf("notes %q", set.Notes)
			}
		}
	}
}

// TestMixtureValidates checks that some documents of every item are used for validation, and
// that each document is in exactly one set.
func TestMixtureValidates(t *testing.T) {
	d, _ := drawn(slices.Repeat([]int{3, 1, 7, 2}, 25))
	d.groups = []int32{60, 60, 100} // an item without a document among them
	for _, pack := range []bool{false, true} {
		var set Set
		set.splitDocuments(Source{Documents: Documents{Pack: pack}, Context: 8, Validation: 0.1}, d, &documents{starts: []int64{0}})
		train, held := set.Train.docs, set.Validation.docs
		all := slices.Sorted(slices.Values(slices.Concat(train.index, held.index)))
		if len(held.index) != 10 || len(all) != 100 || len(slices.Compact(all)) != 100 || len(train.groups) != 3 || train.groups[0] != train.groups[1] {
			t.Errorf("pack %t: %d and %d documents, groups %v", pack, len(train.index), len(held.index), train.groups)
		}
		for g, end := range train.groups {
			for w := range int64(end) {
				for _, doc := range train.documentsOf(w) {
					if doc >= d.groups[g] {
						t.Errorf("pack %t: document %d is before the end of group %d", pack, doc, g)
					}
				}
			}
		}
		if first := held.index[0]; first >= 60 || !slices.ContainsFunc(held.index, func(i int32) bool { return i >= 60 }) {
			t.Errorf("pack %t: held out are %v", pack, held.index)
		}
	}
}

// TestMixtureOfSizes checks that with weights equal to the numbers of documents each comes once
// per epoch, that invalid or too small weights are refused, and that weights change the
// fingerprint.
func TestMixtureOfSizes(t *testing.T) {
	set, err := mixed(t, false, 60, 30, 10)
	if err != nil {
		t.Fatal(err)
	}
	for epoch := range int64(3) {
		var all []int64
		for i := range int64(100) {
			all = append(all, set.Train.Window(100*epoch+i))
		}
		slices.Sort(all)
		if len(slices.Compact(all)) != 100 {
			t.Errorf("epoch %d misses windows", epoch)
		}
	}
	if want := "0.jsonl: weight 60: 60.0 % of the samples, 60.0 % of the learned tokens; in an epoch of 100 samples it is read 1.00 times"; set.Notes[0] != strings.Replace(want, "60.0 % of the learned", fmt.Sprintf("%.1f %% of the learned", learnedPart(set.Train)), 1) {
		t.Errorf("%q", set.Notes[0])
	}
	other, err := mixed(t, false, 60, 30, 11)
	plain, err2 := mixed(t, false)
	if err != nil || err2 != nil || other.Fingerprint == set.Fingerprint || plain.Fingerprint == set.Fingerprint {
		t.Errorf("the same fingerprint with other weights: %v %v", err, err2)
	}
	for want, weights := range map[string][]float64{
		"data.documents[2]: 2.jsonl: its weight, 1e-05 of 2.00001, is less than one of 100 samples; raise the weight or remove the pattern": {1, 1, 1e-5},
		"data.documents[1]: a weight of 0; want a positive number":                                                                          {1, 0, 1},
		"data.documents[0]: a weight of NaN; want a positive number":                                                                        {math.NaN(), 1, 1},
		"data.documents: 2 weights for 3 patterns; give every pattern a weight, or none":                                                    {1, 1},
	} {
		if _, err := mixed(t, false, weights...); err == nil || err.Error() != want {
			t.Errorf("%v: %v, want %s", weights, err, want)
		}
	}
}

// learnedPart returns the first component's share of all targets in the samples, in percent.
func learnedPart(s *Split) float64 {
	var own, all float64
	for i := range s.Windows() {
		n := float64(s.Learned(i, 1))
		if all += n; s.Window(i) < int64(s.docs.groups[0]) {
			own += n
		}
	}
	return 100 * own / all
}
