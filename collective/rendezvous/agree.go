package rendezvous

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"zeroth/collective"
)

// Agree returns nil if all processes state the same facts, else an error, the
// same on all, that says which ranks differ in what. All processes call it
// equally often.
func (s *Star) Agree(ctx context.Context, facts []Fact) error {
	if s.cfg.Me.Process == 0 {
		return s.compare(ctx, facts)
	}
	body, err := encode(facts)
	if err != nil {
		return err
	}
	_ = s.peers[0].send(kindFacts, body) // listen finds out if it is gone
	verdict, err := s.hears(ctx, s.said)
	if err == nil && verdict != "" {
		err = Differences(verdict)
	}
	return err
}

// hears is what process 0 says next. What it has said before it ended counts.
func (s *Star) hears(ctx context.Context, what chan string) (text string, err error) {
	select {
	case text = <-what:
		return text, nil
	case <-s.ended:
		err = s.Err()
	case <-s.deserted:
		err = errDeserted
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	select {
	case text = <-what:
		return text, nil
	default:
		return "", err
	}
}

// Share gives every process what process 0 passes, at most 16 KiB. All processes
// call it equally often.
func (s *Star) Share(ctx context.Context, mine string) (string, error) {
	if s.cfg.Me.Process > 0 {
		return s.hears(ctx, s.shared)
	}
	body, err := encode(message{Text: mine})
	if err == nil {
		_ = s.tell(kindShare, body) // listen finds out who is gone
		err = s.Err()
	}
	return mine, err
}

// compare holds the facts of all processes against each other and tells them.
func (s *Star) compare(ctx context.Context, mine []Fact) error {
	all := make([][]Fact, s.cfg.Processes)
	all[0] = mine
	for range s.cfg.Processes - 1 {
		select {
		case f := <-s.facts:
			if f.done {
				s.end(Lost{Process: f.process, Why: "it has ended, and the others wait for it"})
				return s.Err()
			}
			all[f.process] = f.facts
		case <-s.ended:
			return s.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	verdict := s.differences(all)
	body, err := encode(message{Text: verdict})
	if err != nil {
		return err
	}
	_ = s.tell(kindVerdict, body) // listen finds out who is gone
	if verdict != "" {
		return Differences(verdict)
	}
	return s.Err()
}

// differences is which ranks differ from most in what; empty if none do.
func (s *Star) differences(all [][]Fact) string {
	name := spans
	if slices.ContainsFunc(s.Members, func(m Member) bool { return m.Host != s.Members[0].Host }) {
		name = s.named
	}
	var lines []string
	for i, f := range all[0] {
		by := map[string][]int{}
		var values []string
		for p, facts := range all {
			v := "nothing"
			if i < len(facts) && facts[i].Name == f.Name {
				v = facts[i].Value
			}
			if by[v] == nil {
				values = append(values, v)
			}
			by[v] = append(by[v], s.ranksOf(p)...)
		}
		if len(values) == 1 {
			continue
		}
		slices.SortStableFunc(values, func(a, b string) int { return len(by[a]) - len(by[b]) })
		var said []string
		for _, v := range values[:min(len(values), 4)] {
			said = append(said, fmt.Sprintf("%s: %s", name(by[v]), printable(v)))
		}
		if len(values) > 4 {
			said = append(said, fmt.Sprintf("and %d more", len(values)-4))
		}
		lines = append(lines, fmt.Sprintf("the processes differ in %s: %s", f.Name, strings.Join(said, "; ")))
	}
	if more := len(lines) - mostDifferences; more > 0 {
		lines = append(lines[:mostDifferences], fmt.Sprintf("and in %d more", more))
	}
	return strings.Join(lines, "\n")
}

// mostDifferences is how many are told: jobs that have nothing to do with each other
// differ in all.
const mostDifferences = 20

// named is ranks with their hosts: `rank 3 ("node1")`.
func (s *Star) named(ranks []int) string {
	var hosts []string
	for _, r := range ranks {
		if name := strconv.QuoteToGraphic(s.Members[r/s.cfg.PerProcess].Host); !slices.Contains(hosts, name) {
			hosts = append(hosts, name)
		}
	}
	if len(hosts) > 4 {
		hosts = append(hosts[:4], "...")
	}
	return spans(ranks) + " (" + strings.Join(hosts, ", ") + ")"
}

// ranksOf is the ranks of processes.
func (s *Star) ranksOf(processes ...int) (all []int) {
	for _, p := range processes {
		for i := range s.cfg.PerProcess {
			all = append(all, p*s.cfg.PerProcess+i)
		}
	}
	return all
}

// spans is the first of ranks: "rank 3", or "ranks 0-3,6,7".
func spans(ranks []int) string {
	first := strings.SplitN(collective.RankNames(ranks), ",", 9)
	if len(first) == 9 {
		first[8] = "..."
	}
	return strings.Join(first, ",")
}
