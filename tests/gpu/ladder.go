package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// rung is one step of the ladder: a check of the machine with a time limit.
type rung struct {
	name  string
	part  int
	limit time.Duration
	run   func(*session, context.Context) error
}

// lastPart is the number of parts.
const lastPart = 3

// leftOut is the error of a rung that cannot run on this machine.
type leftOut string

func (l leftOut) Error() string { return string(l) }

// result is the result of a rung.
type result struct {
	Rung    string
	Verdict string // "ok", "FAILED: why" or "left out: why"
	Seconds float64
	Speed   float64 `json:",omitempty"` // tokens per second, if measured
	Rows    []row
}

func (r *result) failed() bool { return strings.HasPrefix(r.Verdict, "FAILED") }

// session is one run of the command.
type session struct {
	options
	dir     string   // for programs and runs
	env     []string // environment of the programs, added to this one's
	log     *os.File
	order   []string           // names of all rungs
	results map[string]*result // by rung, including those of earlier runs with the same folder
	now     *result            // of the running rung

	// patience is how long to wait for a program to end after interrupting it, and again after
	// killing it. Then it is abandoned, since a driver may block it for longer.
	patience time.Duration
}

// newSession opens the folder of results and reads the existing ones.
func newSession(o options) (s *session, err error) {
	s = &session{options: o, dir: os.Getenv(ladder), results: map[string]*result{}, patience: 5 * time.Second}
	if s.out, err = filepath.Abs(s.out); err != nil { // programs run in other folders
		return nil, err
	}
	if info, err := os.Stat(s.out); err != nil || !info.IsDir() {
		return nil, wrongFlag(fmt.Sprintf("%s is not a folder for results: set OUT to one that exists", s.out))
	}
	raw, err := os.ReadFile(s.file("results.jsonl"))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	for line := range strings.Lines(string(raw)) {
		r := &result{}
		if err := json.Unmarshal([]byte(line), r); err != nil {
			return nil, fmt.Errorf("%s: %w; move it away to start again", s.file("results.jsonl"), err)
		}
		s.results[r.Rung] = r
	}
	s.log, err = os.OpenFile(s.file("log.txt"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	return s, err
}

func (s *session) file(name string) string { return filepath.Join(s.out, name) }

func (s *session) close() {
	_ = s.log.Close()
}

// climb runs rungs one after the other, as long as the time limit allows each to end.
func (s *session) climb(ctx context.Context, rungs []rung) error {
	end := time.Now().Add(s.limit)
	for i, r := range rungs {
		if i > 0 && time.Now().Add(r.limit).After(end) {
			return fmt.Errorf("the time is up; to go on: run.sh --from %s", r.name)
		}
		s.step(ctx, r)
		if ctx.Err() != nil { // an interrupted rung has no result
			return fmt.Errorf("interrupted; to go on: run.sh --from %s", r.name)
		}
		s.results[r.name] = s.now
		if err := s.write(); err != nil {
			return err
		}
	}
	names := s.ordered() // a continued run also reports the rungs before it
	if s.selects() {
		names = nil
		for _, r := range rungs {
			names = append(names, r.name)
		}
	}
	return s.failures(names)
}

// failures returns an error that names the failed rungs, or nil if there are none.
func (s *session) failures(names []string) error {
	var bad []string
	for _, name := range names {
		if s.results[name].failed() {
			bad = append(bad, name)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("%d of %d rungs failed: %s", len(bad), len(names), strings.Join(bad, ", "))
	}
	return nil
}

// step runs a rung and prints its line.
func (s *session) step(ctx context.Context, r rung) {
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	begin := time.Now()
	s.now = &result{Rung: r.name}
	fmt.Fprintf(s.log, "\n==== %s, %s\n", r.name, begin.UTC().Format(time.RFC3339))
	err := r.run(s, ctx)
	s.now.Seconds = time.Since(begin).Round(10 * time.Millisecond).Seconds()
	s.now.Verdict = s.now.verdict(err)
	said := s.now.Verdict
	for _, x := range s.now.Rows {
		said += "; " + x.What + ": " + x.Measured
	}
	fmt.Printf("%-40s %6.1f s  %s\n", r.name, s.now.Seconds, shortened(strings.Join(strings.Fields(said), " "), 160))
}

// verdict returns the verdict of a rung that ended with err, which may be nil.
func (r *result) verdict(err error) string {
	if out, ok := err.(leftOut); ok {
		return "left out: " + string(out)
	}
	if err != nil {
		return failed(firstLine(err.Error()))
	}
	for _, x := range r.Rows {
		if strings.HasPrefix(x.Verdict, "FAILED") {
			return failed(x.What + ": " + strings.TrimPrefix(x.Verdict, "FAILED: "))
		}
	}
	return "ok"
}

// write replaces the results and the table in the folder of results.
func (s *session) write() error {
	var lines strings.Builder
	var t table
	for _, name := range s.ordered() {
		r := s.results[name]
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		lines.Write(append(line, '\n'))
		t.add(r)
	}
	if err := replace(s.file("results.jsonl"), lines.String()); err != nil {
		return err
	}
	return replace(s.file("table.md"), t.markdown())
}

// ordered returns the rungs that have results: first in the ladder's order, then those from an
// older ladder.
func (s *session) ordered() (names []string) {
	for _, name := range s.order {
		if s.results[name] != nil {
			names = append(names, name)
		}
	}
	var others []string
	for name := range s.results {
		if !slices.Contains(names, name) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	return append(names, others...)
}

// replace writes a file atomically.
func replace(path, text string) error {
	if err := os.WriteFile(path+".new", []byte(text), 0o666); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// row adds a row to the result of the running rung.
func (s *session) row(what, measured, beside, verdict string) {
	s.now.Rows = append(s.now.Rows, row{what, measured, beside, verdict})
}

// check adds a row that fails the rung unless holds is true.
func (s *session) check(what, measured, beside string, holds bool, why string) {
	verdict := "ok"
	if !holds {
		verdict = failed(why)
	}
	s.row(what, measured, beside, verdict)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// shortened returns at most n characters of a text.
func shortened(text string, n int) string {
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}
