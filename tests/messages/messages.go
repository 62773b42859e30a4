// Package messages compares the texts of errors with a table that tests write themselves,
// testdata/messages.txt of a package: tests name the input, and the table has each message once.
// After a change of words,
//
//	go test ./PACKAGE -messages
//
// writes the table again, for review.
package messages

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var update = flag.Bool("messages", false, "write testdata/messages.txt")

// temporary matches folders of t.TempDir.
var temporary = regexp.MustCompile(regexp.QuoteMeta(os.TempDir()) + `/Test[^/ ]*/\d+`)

// Table is a package's messages. Its tests share one, created before they change their folder.
type Table struct {
	path string // absolute

	mu   sync.Mutex
	want map[string]string // by test and input
}

// Open reads the table of the package whose tests run. It must be called before a test starts.
func Open() *Table {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	t := &Table{path: filepath.Join(dir, "testdata", "messages.txt"), want: map[string]string{}}
	text, err := os.ReadFile(t.path)
	if err != nil && !*update {
		return t
	}
	for entry := range strings.SplitSeq(string(text), "\n\n") {
		if of, message, ok := strings.Cut(strings.TrimSpace(entry), "\n"); ok {
			t.want[of] = strings.ReplaceAll(message, "\n\t", "\n")[1:]
		}
	}
	return t
}

// Same compares the text of an error with the table's message for this test and input.
func (t *Table) Same(tb testing.TB, input string, err error) {
	tb.Helper()
	of, got := fmt.Sprintf("%s %#.200q", tb.Name(), input), temporary.ReplaceAllString(fmt.Sprint(err), "DIR")
	t.mu.Lock()
	defer t.mu.Unlock()
	if *update {
		t.want[of] = got
		t.write(tb)
	}
	if want, ok := t.want[of]; err == nil || !ok || got != want {
		tb.Errorf("%s:\n got %s\nwant %s\n(-messages writes testdata/messages.txt again)", of, got, cmp.Or(want, "a message"))
	}
}

// Fails compares like Same if fails is true; otherwise there must be no error.
func (t *Table) Fails(tb testing.TB, input string, err error, fails bool) {
	tb.Helper()
	if fails {
		t.Same(tb, input, err)
	} else if err != nil {
		tb.Errorf("%.200q: %v", input, err)
	}
}

func (t *Table) write(tb testing.TB) {
	var b strings.Builder
	for _, of := range slices.Sorted(maps.Keys(t.want)) {
		fmt.Fprintf(&b, "%s\n\t%s\n\n", of, strings.ReplaceAll(t.want[of], "\n", "\n\t"))
	}
	err := os.MkdirAll(filepath.Dir(t.path), 0o777)
	if err == nil {
		err = os.WriteFile(t.path, []byte(strings.TrimSuffix(b.String(), "\n")), 0o666)
	}
	if err != nil {
		tb.Fatal(err)
	}
}
