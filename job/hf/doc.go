// Package hf is the files of Hugging Face models: config.json to and from a Model,
// parameters out of model folders, and what a run carries from one to the next.
//
// What never enters: the job file's other keys, ranks, and checkpoints' progress.
//
// Begin with model.go, what a model is; config.go and keys.go read config.json, one
// table of keys a family; write.go writes it; weights.go reads parameters.
package hf
