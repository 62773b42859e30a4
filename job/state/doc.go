// Package state is training state in checkpoints: it saves ranks, loads them, and
// says what a checkpoint has.
//
// What never enters: the format on disk (checkpoint), when to save (job).
//
// Begin with state.go: Progress is the state besides tensors. save.go writes checkpoints while
// training continues; model.go exports parameters.
package state
