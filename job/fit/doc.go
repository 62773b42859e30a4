// Package fit searches settings of a job that fit into given memory, the fastest
// first, and refuses a job that does not fit.
//
// What never enters: how bytes are counted (plan, build) and how seconds are (sim);
// it compares their answers.
//
// Begin with fit.go: Search is zeroth plan --fit. largest.go finds the largest model,
// context or batch; refuse.go is the check before a run; closed.go has the formulas
// that make searching cheap.
package fit
