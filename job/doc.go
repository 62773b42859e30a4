// Package job runs a job: it trains as a job file says and writes the run folder, with its metrics,
// checkpoints and final parameters. A program brings its own data, network and update rule in
// Options.
//
// run.go lists the steps of a run in order; loop.go has the training loop.
package job
