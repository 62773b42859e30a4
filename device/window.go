package device

import "errors"

// Window is device memory with a host-side counterpart of equal type and length. If the host can
// address the device's memory, both are the same and nothing is copied; else Host is memory of the
// host's own device, and data is exchanged by copies on a queue.
type Window struct{ Device, Host Buffer }

// OpenWindow allocates both sides; host is used only if the host cannot address the device's
// memory. FreeWindow frees them.
func OpenWindow(dev, host Device, t DType, n int, use Use) (w Window, err error) {
	if w.Device, err = dev.Alloc(t, n, use); err != nil {
		return Window{}, err
	}
	if w.Host = w.Device; w.Device.Host {
		return w, nil
	}
	if w.Host, err = host.Alloc(t, n, use); err != nil {
		dev.Free(w.Device)
		return Window{}, err
	}
	if !w.Host.Host {
		FreeWindow(dev, host, w)
		return Window{}, errors.New("the host cannot address the memory of its own device")
	}
	return w, nil
}

// FreeWindow frees a window from OpenWindow.
func FreeWindow(dev, host Device, w Window) {
	if !w.Device.Host {
		host.Free(w.Host)
	}
	dev.Free(w.Device)
}

// Onto returns a window onto device memory, with host memory from host, which is called only if
// needed.
func Onto(b Buffer, host func(n int) Buffer) Window {
	if b.Host {
		return Window{b, b}
	}
	return Window{b, host(b.N)}
}

// Send copies the host's side to the device, in the order of q.
func (w Window) Send(q Queue) {
	if !w.Device.Host {
		q.Copy(w.Device, w.Host)
	}
}

// Fetch copies the device's side to the host, in the order of q.
func (w Window) Fetch(q Queue) {
	if !w.Device.Host {
		q.Copy(w.Host, w.Device)
	}
}
