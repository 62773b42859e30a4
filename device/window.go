package device

import "errors"

// Window is memory of a device and the host's side of it, of equal type and
// length. Where the host may address the device's memory the two are one, and
// nothing is copied; else Host is memory of the host's own device, and what is on
// one side comes to the other by copies on a queue.
type Window struct{ Device, Host Buffer }

// OpenWindow allocates both sides; host is only asked where the device's memory
// is not the host's own. FreeWindow gives them back.
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
		return Window{}, errors.New("the host cannot address what is said to be its memory")
	}
	return w, nil
}

// FreeWindow gives back what OpenWindow gave.
func FreeWindow(dev, host Device, w Window) {
	if !w.Device.Host {
		host.Free(w.Host)
	}
	dev.Free(w.Device)
}

// Onto is a window onto memory of a device, by way of host memory that host gives
// for so many elements; host is only asked where it is needed.
func Onto(b Buffer, host func(n int) Buffer) Window {
	if b.Host {
		return Window{b, b}
	}
	return Window{b, host(b.N)}
}

// Send brings the host's side to the device, in the order of q.
func (w Window) Send(q Queue) {
	if !w.Device.Host {
		q.Copy(w.Device, w.Host)
	}
}

// Fetch brings the device's side to the host, in the order of q.
func (w Window) Fetch(q Queue) {
	if !w.Device.Host {
		q.Copy(w.Host, w.Device)
	}
}
