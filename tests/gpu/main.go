// Command gpu tells, in one table, what zeroth does on this machine's GPU: whether it
// is right, how fast it is beside the machine's limits and beside PyTorch, and what
// memory it takes. It builds nothing: scripts/build-gpu-tests has put all that it
// runs into one folder. Parts do not depend on each other; one that fails is a line
// of the table, and the exit code is 1.
//
// Begin with parts.go; train.go runs jobs, table.go writes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// session is one run of the command.
type session struct {
	dir   string // of what it runs
	work  string // for runs, deleted at the end
	log   *os.File
	small bool // sizes for an emulated GPU
	table table
}

func main() {
	limit := flag.Duration("limit", 8*time.Minute, "most `time` for all parts; those that are left then fail")
	out := flag.String("out", os.Getenv("OUT"), "existing `folder` for table.md and log.txt")
	only := flag.String("only", "", "`parts` to run, with commas: "+strings.Join(partNames(), ","))
	small := flag.Bool("small", false, "small sizes, for an emulated GPU")
	flag.Parse()
	if err := run(*limit, *out, *only, *small); err != nil {
		fmt.Fprintln(os.Stderr, "gpu:", err)
		if errors.As(err, new(wrongFlag)) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// wrongFlag is a mistake in the command line.
type wrongFlag string

func (w wrongFlag) Error() string { return string(w) }

// run runs the parts and writes the table.
func run(limit time.Duration, out, only string, small bool) (err error) {
	for _, name := range strings.Split(only, ",") {
		if only != "" && !slices.Contains(partNames(), name) {
			return wrongFlag(fmt.Sprintf("-only %s; want some of %s", only, strings.Join(partNames(), ",")))
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s := &session{dir: filepath.Dir(self), small: small}
	if s.work, err = os.MkdirTemp("", "zeroth-gpu-"); err != nil {
		return err
	}
	defer os.RemoveAll(s.work)
	if out == "" {
		out = s.work
	}
	if s.log, err = os.Create(filepath.Join(out, "log.txt")); err != nil {
		return err
	}
	defer s.log.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for _, p := range parts {
		if only == "" || slices.Contains(strings.Split(only, ","), p.name) {
			s.part(ctx, p)
		}
	}
	text := s.table.markdown()
	fmt.Print(text)
	if err := os.WriteFile(filepath.Join(out, "table.md"), []byte(text), 0o666); err != nil {
		return err
	}
	if n := s.table.failed; n > 0 {
		return fmt.Errorf("%d lines of the table say that something failed", n)
	}
	return nil
}

// part runs one, whose failure is a line.
func (s *session) part(ctx context.Context, p part) {
	limit := p.limit
	if s.small { // on a machine that may have other things to do
		limit *= 5
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begin := time.Now()
	fmt.Fprintf(os.Stderr, "gpu: %s\n", p.name)
	s.table.part = p.name
	err := ctx.Err()
	if err == nil {
		err = p.run(s, ctx)
	}
	took := time.Since(begin).Round(100 * time.Millisecond).String()
	if err != nil {
		s.table.add("the part", took, "", failed(firstLine(err.Error())))
		return
	}
	s.table.add("the part", took, "", "")
}

// output is what a program of the folder says on both outputs, which the log has too.
// When ctx ends so do the program and all that it has started.
func (s *session) output(ctx context.Context, name string, args ...string) (string, error) {
	if path := filepath.Join(s.dir, name); isFile(path) {
		name = path
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.dir
	together(cmd)
	cmd.WaitDelay = 10 * time.Second
	text, err := cmd.CombinedOutput()
	fmt.Fprintf(s.log, "$ %s %s\n%s\n", name, strings.Join(args, " "), text)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", filepath.Base(name), err, lastLine(string(text)))
	}
	return string(text), err
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
