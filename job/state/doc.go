// Package state is training state in checkpoints: it saves ranks, loads them, and
// says what a checkpoint has.
//
// What never enters: the format on disk (checkpoint), when to save (job).
//
// Begin with state.go: Progress is what is kept besides tensors. save.go writes while
// training goes on; model.go exports parameters.
package state
