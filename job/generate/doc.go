// Package generate continues a prompt with the parameters of a model folder or a
// checkpoint.
//
// What never enters: training, gradients and sharding. It is one rank on one device.
//
// Begin with sample.go: Sample is zeroth sample.
package generate
