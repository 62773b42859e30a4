package nn

import (
	"fmt"

	"zeroth/device"
)

// OnHost runs f, part of a module written in Go, on the host, after all previously issued work. The
// buffers that f accesses must be addressable by the host, as on a CPU; on other devices the step
// fails with an error, and f must be implemented with Ops or a kernel of the device. F must not
// retain views of them. Errors and panics of f are prefixed with what.
func OnHost(q Ops, what string, f func() error, over ...device.Buffer) {
	for _, b := range over {
		if b.N > 0 && !b.Host {
			q.Do(func() error {
				return fmt.Errorf("%s: this runs on the host, which cannot address the device's memory: use a CPU device, or kernels of the device", what)
			})
			return
		}
	}
	q.Do(func() error {
		defer func() {
			if why := recover(); why != nil {
				panic(fmt.Sprintf("%s: %v", what, why))
			}
		}()
		if err := f(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}
