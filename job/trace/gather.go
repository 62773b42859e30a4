package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// encoded is a rank's part of a trace as sent to process 0.
type encoded struct {
	Rank   int
	Host   string   // empty if all ranks are on one
	Origin int64    // nanoseconds since 1970
	Words  []string // the labels and tasks
	Tracks []string // names
	Spans  [][]int64
}

// Each span of a track is encoded as these numbers.
const (
	spanLabel  = iota // index of Words
	spanTask          // index of Words
	spanAfter         // nanoseconds since the start of the span before it, or since Origin
	spanLength        // nanoseconds
	spanNumbers
)

// Encode returns the sample for Merge, in at most most bytes; see Trace.Encode. It returns nil for
// a nil Sample.
func (s *Sample) Encode(host string, most int) []byte {
	if s == nil {
		return nil
	}
	return s.trace.Encode(0, host, most)
}

// Encode returns the work of a rank of this process for Merge, in at most most bytes: older tasks
// that do not fit are omitted. The host names the clock. It returns nil if no task fits.
func (t *Trace) Encode(local int, host string, most int) []byte {
	if t == nil {
		return nil
	}
	for from, end := int64(0), t.ranks[local].end(); from < end; from += (end - from + 1) / 2 {
		if b := t.encode(local, host, from); len(b) <= most {
			return b
		}
	}
	return nil
}

// encode encodes the spans that end after from.
func (t *Trace) encode(local int, host string, from int64) []byte {
	e := encoded{Rank: t.names[local], Host: host, Origin: t.origin.UnixNano()}
	at := map[string]int64{}
	index := func(word string) int64 {
		i, ok := at[word]
		if !ok {
			i = int64(len(e.Words))
			at[word], e.Words = i, append(e.Words, word)
		}
		return i
	}
	for _, k := range t.ranks[local] {
		var spans []int64
		var last int64
		for _, r := range k.All() {
			if r.End > from {
				spans = append(spans, index(r.Label), index(r.Task), r.Start-last, r.End-r.Start)
				last = r.Start
			}
		}
		e.Tracks, e.Spans = append(e.Tracks, k.name), append(e.Spans, spans)
	}
	b, err := json.Marshal(e)
	if err != nil {
		panic("trace: " + err.Error())
	}
	return b
}

// Merge combines the encoded work of ranks into one trace, omitting ranks without any. Clocks of
// hosts other than the first rank's are corrected.
func Merge(all [][]byte) (*Trace, error) {
	t := &Trace{}
	var host string
	for _, b := range all {
		if len(b) == 0 {
			continue
		}
		var e encoded
		if err := json.Unmarshal(b, &e); err != nil {
			return nil, fmt.Errorf("a rank's part of the trace: %w", err)
		}
		own, err := e.tracks()
		if err != nil {
			return nil, fmt.Errorf("rank %d's part of the trace: %w", e.Rank, err)
		}
		if t.ranks == nil {
			host = e.Host
		} else if e.Host != host {
			own.shift(-ahead(t.ranks[0], own))
		}
		t.ranks, t.names = append(t.ranks, own), append(t.names, e.Rank)
	}
	if t.ranks == nil {
		return nil, errors.New("no rank has a part of the trace")
	}
	begin := t.ranks[0].begin()
	for _, own := range t.ranks {
		begin = min(begin, own.begin())
	}
	for _, own := range t.ranks {
		own.shift(-begin)
	}
	return t, nil
}

// tracks decodes the tracks, in nanoseconds since 1970.
func (e *encoded) tracks() (own tracks, err error) {
	if len(e.Tracks) < 2 || len(e.Spans) != len(e.Tracks) {
		return nil, fmt.Errorf("%d tracks and spans of %d", len(e.Tracks), len(e.Spans))
	}
	for i, name := range e.Tracks {
		k := &Track{name: name}
		start := e.Origin
		for s := range slices.Chunk(e.Spans[i], spanNumbers) {
			if len(s) < spanNumbers || min(s[spanLabel], s[spanTask]) < 0 || max(s[spanLabel], s[spanTask]) >= int64(len(e.Words)) {
				return nil, fmt.Errorf("track %q is damaged", name)
			}
			start += s[spanAfter]
			k.spans = append(k.spans, Span{e.Words[s[spanLabel]], e.Words[s[spanTask]], start, start + s[spanLength]})
		}
		k.n = len(k.spans)
		own = append(own, k)
	}
	return own, nil
}

// ahead returns by how much b's clock is ahead of a's: the median difference between the ends of
// their waits for the norm, which all ranks of a step receive at the same time.
func ahead(a, b tracks) int64 {
	x, y := a.host().All(), b.host().All()
	n := min(len(x), len(y))
	if n == 0 {
		return 0
	}
	late := make([]int64, n)
	for i := range late {
		late[i] = y[len(y)-n+i].End - x[len(x)-n+i].End
	}
	slices.Sort(late)
	return late[n/2]
}

// shift moves all spans.
func (k tracks) shift(by int64) {
	for _, q := range k {
		for i := range q.spans {
			q.spans[i].Start += by
			q.spans[i].End += by
		}
	}
}

// begin returns the first start of a span.
func (k tracks) begin() int64 {
	first := int64(1<<63 - 1)
	for _, q := range k {
		if len(q.spans) > 0 {
			first = min(first, q.spans[0].Start)
		}
	}
	return first
}

// end returns the last end of a span, 0 without spans.
func (k tracks) end() (last int64) {
	for _, q := range k {
		for _, r := range q.All() {
			last = max(last, r.End)
		}
	}
	return last
}
