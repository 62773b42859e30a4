package cpu

// bestISA is what products are computed with; tests set it to others of isas.
var bestISA = isas[len(isas)-1]

// isas are the instruction sets this machine can run, the fastest last.
var isas = append([]*isa{&portable}, nativeISAs()...)
