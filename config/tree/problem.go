package tree

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"zeroth/internal/show"
)

// Position is where a value was written: in a file or in a --set.
type Position struct {
	File      string
	line, col int    // from 1; 0 for the whole file
	Set       string // "zero.stage=5"; the other fields are then empty
}

func (p Position) String() string {
	switch {
	case p.Set != "":
		return "--set " + show.Cut(p.Set, 200)
	case p.line == 0:
		return FileName(p.File)
	}
	return fmt.Sprintf("%s:%d:%d", FileName(p.File), p.line, p.col)
}

// FileName returns the name of a file for messages.
func FileName(file string) string {
	if file == "-" {
		return "stdin"
	}
	return file
}

// Problem is one error in a job file.
type Problem struct {
	At    string // "job.yaml:3:12" or "--set zero.stage=5"
	Key   string // "zero.stage"; empty if no key is to blame
	Wrong string // what is wrong
	Right string // advice

	position Position
	fatal    bool // the file could not be parsed, so no further check makes sense
}

// Error returns the problem in one line. Keys and values may come from anywhere, so it escapes
// unprintable characters and shortens long text.
func (p Problem) Error() string {
	s := ""
	if p.At != "" { // no file: a model and flags
		s = show.Bound(p.At) + ": "
	}
	if p.Key != "" {
		s += show.Cut(p.Key, 80) + ": "
	}
	s += show.Cut(p.Wrong, 1000)
	if p.Right != "" {
		s += "; " + show.Bound(p.Right)
	}
	return show.Printable(s)
}

// Problems holds all errors of a job, in file order.
type Problems []Problem

// ProblemsShown is the maximum number of problems printed at once.
const ProblemsShown = 50

// Error returns one line per problem, up to ProblemsShown.
func (ps Problems) Error() string {
	var lines []string
	for i, p := range ps {
		if i == ProblemsShown {
			lines = append(lines, fmt.Sprintf("and %d more", len(ps)-i))
			break
		}
		lines = append(lines, p.Error())
	}
	return strings.Join(lines, "\n")
}

// UserInput marks the problems as errors of the user's input.
func (ps Problems) UserInput() {}

// Fatal reports whether one of the problems prevents all further checks.
func (ps Problems) Fatal() bool {
	return slices.ContainsFunc(ps, func(p Problem) bool { return p.fatal })
}

// Sort sorts the problems: first those of the file, by line, then those of the values of --set.
func (ps Problems) Sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(min(len(a.position.Set), 1), min(len(b.position.Set), 1)),
			cmp.Compare(a.position.line, b.position.line),
			cmp.Compare(a.position.col, b.position.col))
	})
}

// NewProblem returns a problem of a key at a place.
func NewProblem(at Position, key, wrong, right string) Problem {
	return Problem{At: at.String(), Key: key, Wrong: wrong, Right: right, position: at}
}
