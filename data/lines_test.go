package data

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// endless is a reader that repeats a text.
type endless struct {
	text  string
	reads int
}

func (e *endless) Read(b []byte) (int, error) {
	e.reads++
	return copy(b, strings.Repeat(e.text, len(b)/len(e.text))), nil
}

// Lines are numbered as in an editor, however many blank lines are between them, and wherever
// the buffer ends.
func TestLinesAreNumbered(t *testing.T) {
	const many = 200_000
	for _, gap := range []string{"\n", "\r\n", " \t\n", "\n \n", strings.Repeat(" ", 70_000) + "\n"} {
		count := min(many, 1<<20/len(gap))
		text := "a\n" + strings.Repeat(gap, count) + " b \r\nc" + "\n\n"
		per := strings.Count(gap, "\n")
		want := map[int]string{1: "a", 2 + per*count: " b ", 3 + per*count: "c"}
		l := newLines(t.Context(), strings.NewReader(text))
		for l.Scan() {
			if got := l.Text(); got != want[l.n] {
				t.Errorf("%.10q: line %d is %q", gap, l.n, got)
			}
			delete(want, l.n)
		}
		if err := l.wrong(); err != nil || len(want) > 0 {
			t.Errorf("%.10q: not read: %v, %v", gap, want, err)
		}
	}
}

// Blank lines are skipped a buffer at a time: cancelling stops the reading between them, and
// the reader is not called again.
func TestBlankLinesAreCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e := &endless{text: "\n"}
	l := newLines(ctx, io.TeeReader(e, writer(func() {
		if e.reads == 10 {
			cancel()
		}
	})))
	if l.Scan() || l.wrong() != nil || e.reads != 10 {
		t.Errorf("got line %q, error %v after %d reads", l.Text(), l.wrong(), e.reads)
	}
}

// Each byte of a line is examined once, however little a reader returns at a time: a line of
// the maximum size arrives soon.
func TestLongLinesAreLinear(t *testing.T) {
	for _, char := range []string{"x", " "} {
		begin := time.Now()
		l := newLines(t.Context(), trickle{&endless{text: char}})
		if l.Scan() || l.wrong() == nil {
			t.Errorf("a line of %d bytes, %v", len(l.Bytes()), l.wrong())
		}
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("%q: %v", char, took)
		}
	}
}

// trickle returns few bytes at a time.
type trickle struct{ io.Reader }

func (r trickle) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(len(b), 4096)]) }

// The error for a line that is too long gives its number; that for a read error, the line
// before it.
func TestBadLines(t *testing.T) {
	for want, r := range map[string]io.Reader{
		"line 4 has more than 67108864 bytes": io.MultiReader(strings.NewReader("a\n\n\n"), &endless{text: "x"}),
		"after line 4: unexpected EOF":        io.MultiReader(strings.NewReader("a\n\nb\n\n"), brokenOff{}),
	} {
		l := newLines(t.Context(), r)
		var got []string
		for l.Scan() {
			got = append(got, l.Text())
		}
		if err := l.wrong(); err == nil || err.Error() != want || !slices.Contains(got, "a") {
			t.Errorf("%v after %q, want %s", err, got, want)
		}
	}
}

type writer func()

func (w writer) Write(b []byte) (int, error) { w(); return len(b), nil }

type brokenOff struct{}

func (brokenOff) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
