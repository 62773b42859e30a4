//go:build cuda

package cuda

// FreeKnown frees the memory that NCCL can register, and returns NCCL's error.
func (d *Device) FreeKnown() error {
	err := d.gpu.FreeNCCL(d.known.at)
	if err == nil {
		d.known = nil
	}
	return err
}

// Sysfs is where the system describes its devices and nodes.
func Sysfs(at string) (before string) {
	before, sysfs = sysfs, at
	return before
}
