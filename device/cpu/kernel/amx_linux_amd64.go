package kernel

import "syscall"

// permitAMX asks the kernel, once for the whole process, to save tile registers
// for it: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), Linux 5.16.
// Kernels that do not know it and processes it is refused do without AMX.
func permitAMX() bool {
	const request, tileData = 0x1023, 18
	_, _, errno := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, request, tileData, 0)
	return errno == 0
}
