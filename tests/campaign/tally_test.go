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
	kinds     map[string]*row
	processes int
	slowest   time.Duration
	largest   int64     // bytes resident
	which     [2]string // commands of the slowest and the largest case
}

// row counts the cases of a kind.
type row struct {
	cases int
	how   map[string]int // counts by outcome and other events
}

const failure = "FAILED"

var (
	talliesMu sync.Mutex
	tallies   = map[string]*tally{}
)

func tallyOf(test string) *tally {
	talliesMu.Lock()
	defer talliesMu.Unlock()
	if tallies[test] == nil {
		tallies[test] = &tally{kinds: map[string]*row{}}
	}
	return tallies[test]
}

// ended counts a case and its outcome.
func (c *tally) ended(kind, how string) {
	c.count(kind, how, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[kind].cases++
}

// count adds n to a count of a kind of case.
func (c *tally) count(kind, what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds[kind] == nil {
		c.kinds[kind] = &row{how: map[string]int{}}
	}
	c.kinds[kind].how[what] += n
}

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

// table returns the counts as Markdown.
func (c *tally) table() string {
	var b strings.Builder
	fmt.Fprint(&b, "| kind | cases | how they ended |\n|---|---:|---|\n")
	sum := row{how: map[string]int{}}
	for _, kind := range slices.Sorted(maps.Keys(c.kinds)) {
		r := c.kinds[kind]
		fmt.Fprintf(&b, "| %s | %d | %s |\n", kind, r.cases, r)
		sum.cases += r.cases
		for how, n := range r.how {
			sum.how[how] += n
		}
	}
	sum.how[failure] += 0
	fmt.Fprintf(&b, "| **all** | %d | %s |\n", sum.cases, sum)
	if c.processes > 0 {
		fmt.Fprintf(&b, "\n%d processes; the slowest took %.1f s, the largest was seen with %d MB resident.\n", c.processes, c.slowest.Seconds(), c.largest/1e6)
	}
	return b.String()
}

func (r row) String() string {
	var all []string
	for _, how := range slices.Sorted(maps.Keys(r.how)) {
		all = append(all, fmt.Sprintf("%s: %d", how, r.how[how]))
	}
	return strings.Join(all, "; ")
}

// report prints the tables and writes those that page has places for.
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
