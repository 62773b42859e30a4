package rendezvous

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Waiting is what a rank waits for, in all its groups, when it is asked.
type Waiting struct {
	Rank int    `json:"rank"`
	For  []int  `json:"for,omitempty"` // ranks; none: nobody
	In   string `json:"in"`            // the operation that it waits in, or was in last
}

// asking is how long process 0 waits for what the others answer, and a process for
// what process 0 makes of it: it is more, so that who does not answer is found by one.
const asking, told = 2 * time.Second, 4 * time.Second

// fresh is how long what was found holds: ranks that come to their deadlines one after the
// other are told the same.
const fresh = 10 * time.Second

// mostWaiting is how many ranks of a process answer, and inText the bytes of an operation: more is
// left out.
const mostWaiting, inText = 64, 200

// inquiry is one question of process 0's to all, and what they have answered.
type inquiry struct {
	answers [][]Waiting // by process; nil: none yet
	left    int         // that have not answered
	all     chan struct{}
}

// found is what came of the last inquiry, and when.
type found struct {
	text string
	at   time.Time
	next chan struct{} // closed when there is another; nil: nobody waits for it
}

// Answer has f say for whom the ranks of this process wait, from now on. Any goroutine
// may call it, and it waits for nobody.
func (s *Star) Answer(f func() []Waiting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = f
}

// Ask is for whom all wait in the end: ranks that wait for others have others ask, and
// process 0 follows who waits for whom. It is empty if nobody does, or nobody says so in
// time.
func (s *Star) Ask() string {
	s.mu.Lock()
	if !s.found.at.IsZero() && time.Since(s.found.at) < fresh {
		defer s.mu.Unlock()
		return s.found.text
	}
	if s.found.next == nil {
		s.found.next = make(chan struct{})
	}
	next := s.found.next
	s.mu.Unlock()
	if s.cfg.Me.Process == 0 {
		s.inquire()
	} else {
		_ = s.peers[0].send(kindLate, nil) // listen finds out if it is gone
	}
	select {
	case <-next:
	case <-time.After(told):
	case <-s.deserted:
	case <-s.ended:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.found.text
}

// inquire has process 0 ask all, unless it is at it.
func (s *Star) inquire() {
	q := &inquiry{answers: make([][]Waiting, s.cfg.Processes), left: s.cfg.Processes, all: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return
	default:
	}
	if s.asked != nil {
		return
	}
	s.asked = q
	s.all.Go(func() {
		_ = s.tell(kindAsk, nil) // who does not answer is named
		s.answered(0, s.mine())
		select {
		case <-q.all:
		case <-time.After(asking):
		case <-s.closed:
		}
		s.mu.Lock()
		answers := slices.Clone(q.answers)
		s.asked = nil
		s.mu.Unlock()
		text := s.stuck(answers)
		s.find(text)
		body, _ := encode(message{Text: text})
		_ = s.tell(kindStuck, body)
	})
}

// mine is what this process answers.
func (s *Star) mine() []Waiting {
	s.mu.Lock()
	f := s.waits
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	all := f()
	all = all[:min(len(all), mostWaiting)]
	for i := range all {
		all[i].In = all[i].In[:min(len(all[i].In), inText)]
	}
	return all
}

// answered notes what the ranks of a process wait for.
func (s *Star) answered(process int, w []Waiting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.asked
	if q == nil || q.answers[process] != nil {
		return // it comes too late
	}
	q.answers[process] = append([]Waiting{}, w...)
	if q.left--; q.left == 0 {
		close(q.all)
	}
}

// find keeps what was found, and wakes who waits for it.
func (s *Star) find(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found.next != nil {
		close(s.found.next)
	}
	s.found = found{text: text, at: time.Now()}
}

// hearWaits takes what belongs to an inquiry: process 0 asks and tells, the others want to
// know and answer.
func (s *Star) hearWaits(p *peer, kind uint32, body []byte) error {
	if first := s.cfg.Me.Process == 0; first != (kind == kindLate || kind == kindWaits) {
		return fmt.Errorf("a frame of kind %d from process %d", kind, p.process)
	}
	switch kind {
	case kindLate:
		s.inquire()
	case kindAsk:
		s.all.Go(func() {
			body, _ := encode(s.mine())
			_ = p.send(kindWaits, body) // likewise
		})
	case kindStuck:
		var m message
		if err := decode(kind, kindStuck, body, &m); err != nil {
			return err
		}
		s.find(printable(m.Text))
	case kindWaits:
		var w []Waiting
		if err := decode(kind, kindWaits, body, &w); err != nil {
			return err
		}
		for _, x := range w {
			if x.Rank < 0 || x.Rank/s.cfg.PerProcess != p.process || slices.ContainsFunc(x.For, func(r int) bool { return r < 0 || r >= s.ranksInAll() }) {
				return errors.New("it tells of ranks that it cannot know of")
			}
		}
		s.answered(p.process, w)
	}
	return nil
}

func (s *Star) ranksInAll() int { return s.cfg.Processes * s.cfg.PerProcess }

// stuck is where following who waits for whom ends, by what the processes have answered:
// at ranks that wait for nobody or whose process does not answer, and at ranks that wait
// for each other. It is empty if nobody waits.
func (s *Star) stuck(answers [][]Waiting) string {
	n := s.ranksInAll()
	waits, in := make([][]int, n), make([]string, n)
	waited := make([]bool, n)
	for _, all := range answers {
		for _, w := range all {
			waits[w.Rank], in[w.Rank] = w.For, w.In
			for _, r := range w.For {
				waited[r] = true
			}
		}
	}
	var silent, idle []int
	var said []string
	for _, ends := range lastOf(waits) {
		switch r := ends[0]; {
		case !waited[r]: // nobody waits for it
		case len(ends) > 1:
			said = append(said, fmt.Sprintf("%s wait for each other in the %s", s.named(ends), printable(cmp.Or(in[r], "same operation"))))
		case answers[r/s.cfg.PerProcess] == nil:
			silent = append(silent, r)
		default:
			idle = append(idle, r)
		}
	}
	if len(idle) > 0 {
		text := s.named(idle) + waitFor(idle) + " for nobody and " + map[bool]string{true: "has", false: "have"}[len(idle) == 1] + " not come"
		if last := in[idle[0]]; len(idle) == 1 && last != "" {
			text += "; its last was the " + printable(last)
		}
		said = append([]string{text}, said...)
	}
	if len(silent) > 0 {
		said = append([]string{s.named(silent) + map[bool]string{true: " does", false: " do"}[len(silent) == 1] + " not answer"}, said...)
	}
	if len(said) == 0 {
		return ""
	}
	return "in the end all wait for this: " + strings.Join(said, "; ")
}

func waitFor(ranks []int) string {
	if len(ranks) == 1 {
		return " waits"
	}
	return " wait"
}

// named is ranks with their hosts: `rank 3 ("node1")`.
func (s *Star) named(ranks []int) string {
	slices.Sort(ranks)
	words, spans := "ranks ", []string{}
	if len(ranks) == 1 {
		words = "rank "
	}
	for _, r := range ranks[:min(len(ranks), 16)] {
		spans = append(spans, strconv.Itoa(r))
	}
	if len(ranks) > 16 {
		spans = append(spans, "...")
	}
	var hosts []string
	for _, r := range ranks {
		if name := strconv.QuoteToGraphic(s.Members[r/s.cfg.PerProcess].Host); !slices.Contains(hosts, name) && len(hosts) < 4 {
			hosts = append(hosts, name)
		}
	}
	return words + strings.Join(spans, ",") + " (" + strings.Join(hosts, ", ") + ")"
}

// lastOf is where every way along edges ends: sets of nodes that all reach each other and
// nothing else, one of a node alone that has no edge. (Tarjan's strongly connected
// components, of which those that no edge leaves.)
func lastOf(edges [][]int) (last [][]int) {
	t := &components{edges: edges, number: make([]int, len(edges)), low: make([]int, len(edges)), of: make([]int, len(edges))}
	for v := range edges {
		if t.number[v] == 0 {
			t.visit(v)
		}
	}
	for i, set := range t.sets {
		leaves := slices.ContainsFunc(set, func(v int) bool {
			return slices.ContainsFunc(edges[v], func(w int) bool { return t.of[w] != i+1 })
		})
		if !leaves {
			slices.Sort(set)
			last = append(last, set)
		}
	}
	slices.SortFunc(last, func(a, b []int) int { return cmp.Compare(a[0], b[0]) })
	return last
}

type components struct {
	edges           [][]int
	number, low, of []int // of: 1 + index in sets; 0: none yet
	count           int
	open            []int
	sets            [][]int
}

func (t *components) visit(v int) {
	t.count++
	t.number[v], t.low[v] = t.count, t.count
	t.open = append(t.open, v)
	for _, w := range t.edges[v] {
		if t.number[w] == 0 {
			t.visit(w)
			t.low[v] = min(t.low[v], t.low[w])
		} else if t.of[w] == 0 {
			t.low[v] = min(t.low[v], t.number[w])
		}
	}
	if t.low[v] != t.number[v] {
		return
	}
	at := slices.Index(t.open, v)
	set := slices.Clone(t.open[at:])
	t.open = t.open[:at]
	t.sets = append(t.sets, set)
	for _, w := range set {
		t.of[w] = len(t.sets)
	}
}
