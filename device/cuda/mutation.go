//go:build cuda && mutation

package cuda

import "sync"

// Wait describes a wait for an event that is being issued.
type Wait struct {
	Device *Device
	Queue  string // the queue that waits; "host" for the host
	Label  string // of the queue that waits; of the mark, if the host waits
	On     string // the queue of the mark; "host" for the host's
}

// LeaveOut, with the tag mutation, is called before each wait and reports whether to omit it: tests
// should detect that. It is called from many goroutines; nil omits none.
var LeaveOut func(Wait) bool

func (q *Queue) leftOut(waits, label, on string) bool {
	return LeaveOut != nil && LeaveOut(Wait{q.dev, waits, label, on})
}

// markLabels remembers the labels of a queue's last marks, since another goroutine may wait for one
// on the host after the queue's label has changed.
type markLabels struct {
	mu sync.Mutex
	at [markRing]string
}

func (m *markLabels) note(seq uint64, label string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at[seq%markRing] = label
}

func (m *markLabels) of(seq uint64) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at[seq%markRing]
}

// On returns the queue's device.
func (q *Queue) On() *Device { return q.dev }
