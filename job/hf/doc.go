// Package hf is the files of Hugging Face models: config.json to and from a Model,
// parameters out of model folders, and what a run carries from one to the next.
//
// What never enters: the job file's other keys, ranks, and checkpoints' progress.
// Begin with model.go, what a model is, and family.go, the table of families, each in
// a file of its name; decoder.go is what those made of Llama's blocks share. config.go
// and keys.go read config.json; write.go writes it; weights.go reads parameters.
package hf
