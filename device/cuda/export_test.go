//go:build cuda

package cuda

// FreeKnown gives back the memory that NCCL can register, and says what NCCL says of it.
func (d *Device) FreeKnown() error {
	err := d.gpu.FreeNCCL(d.known.at)
	if err == nil {
		d.known = nil
	}
	return err
}
