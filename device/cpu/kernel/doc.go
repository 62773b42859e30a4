// Package kernel is what a CPU computes: functions of their arguments and of a
// worker's memory, and the choice between the instruction sets of this machine.
// It knows no queue and no device: who splits a kernel's pieces among workers, and
// whose memory the operands are, is the caller's business.
//
// A kernel is a RunFunc: it computes pieces [lo, hi) of a call described by Args.
// Below it are tables of functions by instruction set: VecISA for everything
// between matrix products, ISA for products, CastISA for conversions. Their
// entries are portable Go or assembly, which package gen, a module of its own,
// writes. An entry for a 16-bit type may be nil: then elements are converted, and
// the one for float32 is taken.
//
// Begin with RunEach in elementwise.go, a kernel in thirty lines, and the tables in
// vector.go; then gemm.go, whose comment is the plan of a product, and attention.go.
package kernel
