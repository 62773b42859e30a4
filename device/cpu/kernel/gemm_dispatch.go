package kernel

// BestISA is the instruction set for products and BestBF16, unless nil, for products of two bf16
// operands; tests set them to others of ISAs and BF16ISAs.
var (
	BestISA  = ISAs[len(ISAs)-1]
	BestBF16 = BF16ISAs[len(BF16ISAs)-1]
)

// ISAs and BF16ISAs are the instruction sets that this machine supports, the fastest last. The
// first are portable.
var (
	ISAs     = append([]*ISA{&Portable}, nativeISAs()...)
	BF16ISAs = append([]*ISA{nil}, nativeBF16()...)
)
