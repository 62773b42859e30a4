package kernel

// BestISA is what products are computed with, and BestBF16, unless it is nil,
// products of two bf16 operands; tests set them to others of isas and bf16ISAs.
var (
	BestISA  = ISAs[len(ISAs)-1]
	BestBF16 = BF16ISAs[len(BF16ISAs)-1]
)

// isas and bf16ISAs are the instruction sets this machine can run, the fastest
// last. They start with what every machine has.
var (
	ISAs     = append([]*ISA{&Portable}, nativeISAs()...)
	BF16ISAs = append([]*ISA{nil}, nativeBF16()...)
)
