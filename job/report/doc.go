// Package report listens to a run and tells of it: progress on a terminal,
// metrics.jsonl, loss.svg, and the account of memory.
//
// What never enters: anything that a run waits for or decides by, but for the
// errors of its own files.
//
// Begin with report.go: Observer is what a run tells. metrics.go, svg.go,
// progress.go and account.go are its listeners.
package report
