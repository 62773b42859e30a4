//go:build campaign && linux

package campaign

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// tally counts the cases of a test by kind and outcome.
type tally struct {
	mu        sync.Mutex
	kinds     map[string]map[string]int
	processes int
	slowest   time.Duration
	largest   int64     // bytes resident
	which     [2]string // the slowest's command and the largest's, with their case
}

var (
	talliesMu sync.Mutex
	tallies   = map[string]*tally{}
)

func tallyOf(test string) *tally {
	talliesMu.Lock()
	defer talliesMu.Unlock()
	if tallies[test] == nil {
		tallies[test] = &tally{kinds: map[string]map[string]int{}}
	}
	return tallies[test]
}

func (c *tally) ended(kind, outcome string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds[kind] == nil {
		c.kinds[kind] = map[string]int{}
	}
	c.kinds[kind][outcome]++
}

func (c *tally) failed(kind string) { c.ended(kind, "FAILED") }

func (c *tally) process(e ended, command string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes++
	if e.took > c.slowest {
		c.slowest, c.which[0] = e.took, command
	}
	if e.rss > c.largest {
		c.largest, c.which[1] = e.rss, command
	}
}

// cases is the number of cases of a kind: each has an outcome, and one more if
// it failed.
func cases(outcomes map[string]int) (n int) {
	for outcome, times := range outcomes {
		if outcome != "FAILED" {
			n += times
		}
	}
	return n
}

// table is the counts in Markdown.
func (c *tally) table() string {
	var b strings.Builder
	fmt.Fprint(&b, "| kind | cases | how they ended |\n|---|---:|---|\n")
	all, failures := 0, 0
	for _, kind := range slices.Sorted(maps.Keys(c.kinds)) {
		outcomes := c.kinds[kind]
		var how []string
		for _, o := range slices.Sorted(maps.Keys(outcomes)) {
			how = append(how, fmt.Sprintf("%s %d", o, outcomes[o]))
		}
		n := cases(outcomes)
		all, failures = all+n, failures+outcomes["FAILED"]
		fmt.Fprintf(&b, "| %s | %d | %s |\n", kind, n, strings.Join(how, ", "))
	}
	fmt.Fprintf(&b, "| all | %d | failures: %d |\n\n", all, failures)
	fmt.Fprintf(&b, "%d processes; the slowest took %.1f s, the largest was seen with %d MB resident.\n", c.processes, c.slowest.Seconds(), c.largest/1e6)
	return b.String()
}

// report prints the tables, and writes those that a page has places for.
func report(w io.Writer, page string) error {
	text := ""
	if page != "" {
		raw, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		text = string(raw)
	}
	for _, test := range slices.Sorted(maps.Keys(tallies)) {
		table := tallies[test].table()
		fmt.Fprintf(w, "%s, seed %d\n\n%s\nslowest: %s\nlargest: %s\n\n", test, *seed, table, tallies[test].which[0], tallies[test].which[1])
		begin, end := "<!-- "+test+" -->\n", "<!-- end "+test+" -->\n"
		before, rest, ok := strings.Cut(text, begin)
		_, after, closed := strings.Cut(rest, end)
		if ok && closed {
			text = before + begin + table + end + after
		}
	}
	if page == "" {
		return nil
	}
	return os.WriteFile(page, []byte(text), 0o644)
}
