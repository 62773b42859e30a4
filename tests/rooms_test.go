package tests

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A room of more lines than mostLines says in its package comment why.
const (
	mostLines = 2000
	reason    = "It is larger than other rooms because"
)

// room is a package's comment and its lines, without those of tests.
type room struct {
	comment string
	lines   int
}

// faults are what is missing in a room's package comment.
func (r room) faults() (out []string) {
	text := strings.Join(strings.Fields(r.comment), " ")
	if text == "" {
		out = append(out, "there is no package comment")
	}
	switch large := r.lines > mostLines; {
	case large && !strings.Contains(text, reason+" "):
		out = append(out, fmt.Sprintf("%d lines, and the package comment does not say: %s", r.lines, reason))
	case !large && strings.Contains(text, reason):
		out = append(out, fmt.Sprintf("%d lines need no reason in the package comment", r.lines))
	}
	return out
}

func readRoom(folder string) (r room, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return r, err
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return r, err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return r, err
		}
		if f.Doc != nil && r.comment != "" {
			return r, fmt.Errorf("%s: a second package comment", name)
		}
		r.comment += f.Doc.Text()
		r.lines += bytes.Count(src, []byte{'\n'})
	}
	return r, nil
}

// Every package says what it is; rooms under job also what never enters and
// where to begin.
func TestRooms(t *testing.T) {
	for name := range places {
		r, err := readRoom(filepath.Join("..", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.faults() {
			t.Errorf("%s: %s", name, f)
		}
		if name != "job" && !strings.HasPrefix(name, "job/") {
			continue
		}
		for _, part := range []string{"What never enters: ", "Begin with "} {
			if !strings.Contains(r.comment, part) {
				t.Errorf("%s: the package comment has no %q", name, part)
			}
		}
	}
}

func TestRoomsAreJudged(t *testing.T) {
	for _, c := range []struct {
		room  room
		fails bool
	}{
		{room{"Package a is.", mostLines}, false},
		{room{"", 10}, true},
		{room{"Package a is.", mostLines + 1}, true},
		{room{"Package a is. It is larger\nthan other rooms because of b.", mostLines + 1}, false},
		{room{"Package a is. It is larger than other rooms because of b.", 10}, true},
	} {
		if got := c.room.faults(); len(got) > 0 != c.fails {
			t.Errorf("%+v: %v", c.room, got)
		}
	}
}
