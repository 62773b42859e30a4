// Package job runs a job: it trains as a job file says and writes the run folder,
// with its metrics, checkpoints and final parameters.
//
// What never enters: flags and signals, how a job file is read (config), how ranks
// are made of it (build), and how anything is drawn or printed (report, plan). It is
// larger than other packages because all that a run is made of meets here, in
// several processes as in one.
//
// Begin with run.go, which lists the steps of a run in order; loop.go has the training loop.
package job
