package cpu

const peakLoopOps = 48 * 2 * 16

func peakLoop(n int) {
	if bestISA == &avx512 {
		fmaLoop512(n)
		return
	}
	fmaLoop256(2 * n)
}
