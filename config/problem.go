package config

import (
	"zeroth/config/tree"
)

// Problem is one error in a job file, with its line.
type Problem = tree.Problem

// Problems are all errors of a job file.
type Problems = tree.Problems

// ProblemsShown is the maximum number of problems printed at once.
const ProblemsShown = tree.ProblemsShown
