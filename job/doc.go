// Package job runs a job: it trains as a job file says and writes the run folder,
// with its metrics, checkpoints and final parameters.
//
// What never enters: flags and signals, how a job file is read (config), how ranks
// are made of it (build), and how anything is drawn or printed (report, plan).
//
// Begin with run.go, a run from its first check to its last file; loop.go is the
// training loop.
package job
