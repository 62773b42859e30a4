//go:build cuda && mutation

package cuda

// Wait is a wait for an event as it is issued.
type Wait struct {
	Device *Device
	Queue  string // that waits; "host" is the host itself
	Label  string // of the queue that waits, or that the host waits for
	On     string // queue whose mark it is; "host" is one of the host's
}

// LeaveOut, with the tag mutation, is asked before each wait whether that is left out:
// tests should notice. It is called by many goroutines, and nil leaves out none.
var LeaveOut func(Wait) bool

func (q *Queue) leftOut(waits, on string) bool {
	return LeaveOut != nil && LeaveOut(Wait{q.dev, waits, q.label, on})
}

// On is the device whose queue it is.
func (q *Queue) On() *Device { return q.dev }
