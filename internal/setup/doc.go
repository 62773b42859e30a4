// Package setup builds a job's ranks: their devices, queues, groups and trainers. Only this
// package knows concrete devices and groups.
//
// Run files, checkpoints and the training loop are outside this package, as is the check for
// enough memory, which fit makes before.
//
// Begin with setup.go: Trainer is the configuration that all ranks share. dryrun.go measures what
// a rank allocates, rank.go allocates it and together.go runs the ranks. A Backend (backend.go) is
// what they compute on, and a World (world.go) is how they are spread over processes.
package setup
