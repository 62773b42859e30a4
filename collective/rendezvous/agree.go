package rendezvous

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"zeroth/collective"
)

// Agree returns nil if all processes pass the same facts, else the same error everywhere, which
// lists the differences and their ranks. All processes must call Agree the same number of times.
func (s *Star) Agree(ctx context.Context, facts []Fact) error {
	if s.cfg.Me.Process == 0 {
		return s.compare(ctx, facts)
	}
	body, err := encode(facts)
	if err != nil {
		return err
	}
	_ = s.peers[0].send(kindFacts, body) // listen detects its loss
	verdict, err := s.await(ctx, s.verdicts)
	if err == nil && verdict != "" {
		err = Differences(verdict)
	}
	return err
}

// await returns the next message of process 0, including one sent before it ended.
func (s *Star) await(ctx context.Context, what chan string) (text string, err error) {
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

// Share returns on every process the value passed by process 0, of at most 16 KiB. All processes
// must call Share the same number of times.
func (s *Star) Share(ctx context.Context, mine string) (string, error) {
	if s.cfg.Me.Process > 0 {
		return s.await(ctx, s.shared)
	}
	body, err := encode(message{Text: mine})
	if err == nil {
		_ = s.broadcast(kindShare, body) // listen detects lost peers
		err = s.Err()
	}
	return mine, err
}

// compare collects the facts of all processes and distributes the verdict.
func (s *Star) compare(ctx context.Context, mine []Fact) error {
	all := make([][]Fact, s.cfg.Processes)
	all[0] = mine
	for range s.cfg.Processes - 1 {
		select {
		case f := <-s.facts:
			if f.done {
				s.end(Lost{Process: f.process, Why: "it has ended while others were waiting for it"})
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
	_ = s.broadcast(kindVerdict, body) // listen detects lost peers
	if verdict != "" {
		return Differences(verdict)
	}
	return s.Err()
}

// differences describes which ranks differ from the majority in which facts; empty if none do.
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
		var parts []string
		for _, v := range values[:min(len(values), 4)] {
			parts = append(parts, fmt.Sprintf("%s: %s", name(by[v]), printable(v)))
		}
		if len(values) > 4 {
			parts = append(parts, fmt.Sprintf("and %d more", len(values)-4))
		}
		lines = append(lines, fmt.Sprintf("the processes differ in %s: %s", f.Name, strings.Join(parts, "; ")))
	}
	if more := len(lines) - mostDifferences; more > 0 {
		lines = append(lines[:mostDifferences], fmt.Sprintf("and in %d more", more))
	}
	return strings.Join(lines, "\n")
}

// mostDifferences is the number of differences listed: unrelated jobs differ in everything.
const mostDifferences = 20

// named formats ranks with their hosts: `rank 3 ("node1")`.
func (s *Star) named(ranks []int) string {
	var hosts []string
	for _, r := range ranks {
		if name := strconv.QuoteToGraphic(s.Members[s.processOf(r)].Host); !slices.Contains(hosts, name) {
			hosts = append(hosts, name)
		}
	}
	if len(hosts) > 4 {
		hosts = append(hosts[:4], "...")
	}
	return spans(ranks) + " (" + strings.Join(hosts, ", ") + ")"
}

// ranksOf returns the ranks of processes.
func (s *Star) ranksOf(processes ...int) (all []int) {
	for _, p := range processes {
		if s.cfg.Seats != nil {
			p = s.cfg.Seats[p]
		}
		for i := range s.cfg.PerProcess {
			all = append(all, p*s.cfg.PerProcess+i)
		}
	}
	return all
}

// processOf returns the process of a rank, or -1.
func (s *Star) processOf(rank int) int {
	p := rank / s.cfg.PerProcess
	switch {
	case rank < 0:
		return -1
	case s.cfg.Seats != nil:
		return slices.Index(s.cfg.Seats, p)
	case p >= s.cfg.Processes:
		return -1
	}
	return p
}

// spans formats the first spans of ranks: "rank 3", or "ranks 0-3,6,7".
func spans(ranks []int) string {
	first := strings.SplitN(collective.RankNames(ranks), ",", 9)
	if len(first) == 9 {
		first[8] = "..."
	}
	return strings.Join(first, ",")
}
