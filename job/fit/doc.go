// Package fit searches settings of a job that fit into given memory, the fastest
// first, and refuses a job that does not fit.
//
// What never enters: how bytes are counted (plan, build) and how seconds are (sim);
// it compares their answers.
//
// Begin with fit.go: Search is zeroth plan --fit. largest.go finds the largest model,
// context or batch; refuse.go is the check before a run; measure.go makes searching
// cheap: it runs a few layers and adds what the others do, which layers.go compares.
package fit
