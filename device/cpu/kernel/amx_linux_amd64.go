package kernel

import "syscall"

// permitAMX requests tile registers from the kernel, once per process:
// arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), Linux 5.16. It returns false if the kernel
// does not support or refuses it.
func permitAMX() bool {
	const request, tileData = 0x1023, 18
	_, _, errno := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, request, tileData, 0)
	return errno == 0
}
