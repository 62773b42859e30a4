package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"zeroth/job/show"
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
		return "--set " + show.Cut(p.set, 200)
	case p.line == 0:
		return fileName(p.file)
	}
	return fmt.Sprintf("%s:%d:%d", fileName(p.file), p.line, p.col)
}

// fileName is a file as messages call it.
func fileName(file string) string {
	if file == "-" {
		return "stdin"
	}
	return file
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

// Error is the problem in one line. What does not print is escaped, what is long
// is cut: keys and values may have come from anywhere.
func (p Problem) Error() string {
	s := p.At + ": "
	if p.Key != "" {
		s += show.Cut(p.Key, 80) + ": "
	}
	s += show.Cut(p.Wrong, 1000)
	if p.Right != "" {
		s += "; " + p.Right
	}
	return show.Printable(s)
}

// Problems is all that is wrong with a job, in the order of the file.
type Problems []Problem

// ProblemsShown is how many problems are told at once.
const ProblemsShown = 50

// Error is one line for each problem, of very many for the first.
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

// UserInput tells that they are the user's to mend.
func (ps Problems) UserInput() {}

// Fatal tells whether one of them leaves nothing else to be checked.
func (ps Problems) Fatal() bool {
	return slices.ContainsFunc(ps, func(p Problem) bool { return p.fatal })
}

// Sort puts the file's problems first, by line, then those of the sets.
func (ps Problems) Sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(min(len(a.place.set), 1), min(len(b.place.set), 1)),
			cmp.Compare(a.place.line, b.place.line),
			cmp.Compare(a.place.col, b.place.col))
	})
}

// ProblemOf is a problem of a key where the job gives it: what is wrong, and what
// would be right.
func ProblemOf(c *Config, key, wrong, right string) Problem {
	return newProblem(c.Place(key), key, wrong, right)
}

// newProblem is a problem of a key at a place.
func newProblem(at place, key, wrong, right string) Problem {
	return Problem{At: at.String(), Key: key, Wrong: wrong, Right: right, place: at}
}
