package config

import (
	"zeroth/config/tree"
)

// Problems are all errors of a job file.
type Problems = tree.Problems

// ProblemsShown is the maximum number of problems printed at once.
const ProblemsShown = tree.ProblemsShown
