// Package hf reads and writes the files of Hugging Face models: it converts config.json to and from a
// Model, reads parameters from model folders, and carries the other files from one run to the next.
//
// Begin with model.go, which defines a model, and family.go, the table of families; those of one
// maker share a file, such as gemma.go, and decoder.go has the common part of those made of Llama's blocks.
// config.go and keys.go read config.json; write.go writes it; weights.go reads parameters.
package hf
