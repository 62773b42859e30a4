// Package generate continues a prompt with the parameters of a model folder or a
// checkpoint.
//
// It runs one rank on one device, without training, gradients or sharding.
//
// Begin with sample.go: Sample is zeroth sample.
package generate
