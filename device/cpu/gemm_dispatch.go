package cpu

// bestISA is what products are computed with, and bestBF16, unless it is nil,
// products of two bf16 operands; tests set them to others of isas and bf16ISAs.
var (
	bestISA  = isas[len(isas)-1]
	bestBF16 = bf16ISAs[len(bf16ISAs)-1]
)

// isas and bf16ISAs are the instruction sets this machine can run, the fastest
// last. They start with what every machine has.
var (
	isas     = append([]*isa{&portable}, nativeISAs()...)
	bf16ISAs = append([]*isa{nil}, nativeBF16()...)
)
