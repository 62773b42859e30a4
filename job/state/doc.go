// Package state saves the training state of ranks in checkpoints, loads it, and lists what a
// checkpoint contains. Package checkpoint has the format on disk; package job decides when to save.
//
// Progress, in state.go, is the state besides tensors. save.go writes checkpoints while training
// continues; model.go exports parameters.
package state
