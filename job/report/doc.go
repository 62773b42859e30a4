// Package report records a run: progress on a terminal, metrics.jsonl, loss.svg, and the account
// of memory.
//
// It must not contain anything that a run waits for or bases a decision on, except for errors of
// its own files.
//
// Begin with report.go: Observer receives the events of a run. metrics.go, svg.go, progress.go
// and account.go implement it.
package report
