package job

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// place is where a value was written: in a file, or in a --set.
type place struct {
	file      string
	line, col int    // from 1; 0 where the whole file is meant
	set       string // "zero.stage=5"; then the others are empty
}

func (p place) String() string {
	switch {
	case p.set != "":
		return "--set " + p.set
	case p.line == 0:
		return p.file
	}
	return fmt.Sprintf("%s:%d:%d", p.file, p.line, p.col)
}

// Problem is one thing to mend in a job file.
type Problem struct {
	At    string // "job.yaml:3:12" or "--set zero.stage=5"
	Key   string // "zero.stage"; empty where no key is to blame
	Wrong string // what is wrong
	Right string // what would be right

	place place
	fatal bool // the file could not be understood: no other check makes sense
}

func (p Problem) Error() string {
	parts := []string{p.At, p.Key, p.Wrong}
	if p.Key == "" {
		parts = []string{p.At, p.Wrong}
	}
	s := strings.Join(parts, ": ")
	if p.Right != "" {
		s += "; " + p.Right
	}
	return s
}

// Problems is all that is wrong with a job, in the order of the file.
type Problems []Problem

// Error is one line for each problem.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

func (ps Problems) fatal() bool {
	return slices.ContainsFunc(ps, func(p Problem) bool { return p.fatal })
}

// sort puts the file's problems first, by line, then those of the sets.
func (ps Problems) sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(min(len(a.place.set), 1), min(len(b.place.set), 1)),
			cmp.Compare(a.place.line, b.place.line),
			cmp.Compare(a.place.col, b.place.col))
	})
}

func problem(at place, key, wrong, right string) Problem {
	return Problem{At: at.String(), Key: key, Wrong: wrong, Right: right, place: at}
}

// inputError is an error the user can mend: the program did what it should.
type inputError struct{ error }

func (e inputError) Unwrap() error { return e.error }

// BadInput marks an error as the user's to mend.
func BadInput(err error) error { return inputError{err} }

// IsInput tells whether what failed is the user's to mend: the job file, the
// data it names, a flag.
func IsInput(err error) bool {
	var ps Problems
	var in inputError
	return errors.As(err, &ps) || errors.As(err, &in)
}
