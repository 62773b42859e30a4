package collective

import "testing"

// TestRecordOfSent checks the bytes sent in a step: parts to all others and, for a broadcast,
// everything to each, by the first rank only.
func TestRecordOfSent(t *testing.T) {
	r := Record{
		Groups: []RecordedGroup{{Name: "world", Ranks: []int{0, 1, 2, 3}}, {Name: "shard", Ranks: []int{0, 2}}, {Name: "replica", Ranks: []int{0, 1, 2, 3}}, {Name: "saves", Ranks: []int{0, 1, 2, 3}, background: true}},
		Operations: []Operation{
			{Group: 1, Step: 1, Op: "all-gather", Bytes: 7000},
			{Group: 0, Step: 2, Op: "all-gather", Bytes: 800}, {Group: 3, Step: 2, Op: "all-gather", Bytes: 800},
			{Group: 1, Step: 2, Op: "all-gather", Bytes: 100}, {Group: 2, Step: 2, Op: "reduce-scatter", Bytes: 400}, {Group: 1, Step: 2, Op: "broadcast", Bytes: 1000},
			{Group: 1, Step: 2, Op: "reduce", Bytes: 3000},
		},
	}
	for rank, want := range map[int]int64{0: 50 + 300 + 1000, 2: 50 + 300 + 3000} {
		if got, whole := r.Sent(rank, 2); got != want || !whole {
			t.Errorf("rank %d: %d bytes, whole %v; want %d", rank, got, whole, want)
		}
	}
	r.Forgotten = 1
	if _, whole := r.Sent(0, 2); !whole {
		t.Error("step 2 is there, and is not whole")
	}
	if _, whole := r.Sent(0, 1); whole {
		t.Error("of step 1 something is forgotten")
	}
}
