// Package setup makes a job's ranks: their devices, queues, groups and trainers. It
// is the only room that knows concrete devices and groups.
//
// What never enters: files of a run, checkpoints, the training loop, and whether
// memory is enough (fit decides that before).
//
// Begin with setup.go: Trainer is what all ranks have in common. dryrun.go learns what
// a rank allocates, rank.go allocates it and together.go runs the ranks. A Backend
// (backend.go) is what they compute on, a World (world.go) how they are spread over
// processes.
package setup
