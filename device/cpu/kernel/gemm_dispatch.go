package kernel

// BestISA is the instruction set for products. BestBF16, if not nil, is the one for products of
// two bf16 operands. Tests set them to other elements of ISAs and BF16ISAs.
var (
	BestISA  = ISAs[len(ISAs)-1]
	BestBF16 = BF16ISAs[len(BF16ISAs)-1]
)

// ISAs and BF16ISAs contain the instruction sets that this machine supports, the portable one
// first and the fastest last.
var (
	ISAs     = append([]*ISA{&Portable}, nativeISAs()...)
	BF16ISAs = append([]*ISA{nil}, nativeBF16()...)
)
