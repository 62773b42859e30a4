package nn

import (
	"fmt"

	"zeroth/device"
)

// OnHost issues work of a module's own: f, in Go, once all that was issued before it
// is done. The buffers it reads and writes must be memory that the host may address,
// as all of a CPU's are; on another device the step fails with an error that says so,
// and the work has to be put into Ops, or into a kernel of that device. F must not
// keep views of them. An error of f, or a panic, begins with what.
func OnHost(q Ops, what string, f func() error, over ...device.Buffer) {
	for _, b := range over {
		if b.N > 0 && !b.Host {
			q.Do(func() error {
				return fmt.Errorf("%s: it is computed on the host, which cannot address the device's memory: use a CPU device, or kernels of the device", what)
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
