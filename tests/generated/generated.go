// Package generated compares the generated parts of pages with the output of the program.
package generated

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the program prints into the pages")

// Compare compares the parts of a page with the program's output, or rewrites them.
func Compare(t *testing.T, page string, parts map[string]string) {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for name, content := range parts {
		begin, end := "<!-- "+name+" -->", "<!-- end "+name+" -->"
		if strings.HasSuffix(content, "\n") {
			begin += "\n"
		}
		before, rest, ok := strings.Cut(text, begin)
		is, after, closed := strings.Cut(rest, end)
		if !ok || !closed {
			t.Errorf("%s has no part %s", page, name)
			continue
		}
		if d := cmp.Diff(content, is); d != "" && !*update {
			t.Errorf("%s of %s; go test ./tests ./tests/repo -run Readme -update writes it (-program +page):\n%s", name, page, d)
		}
		text = before + begin + content + end + after
	}
	if *update && text != string(raw) {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
