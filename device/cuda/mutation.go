//go:build cuda && mutation

package cuda

import "sync"

// Wait is a wait for an event as it is issued.
type Wait struct {
	Device *Device
	Queue  string // that waits; "host" is the host itself
	Label  string // of the queue that waits; of the mark, if the host waits
	On     string // queue whose mark it is; "host" is one of the host's
}

// LeaveOut, with the tag mutation, is asked before each wait whether that is left out:
// tests should notice. It is called by many goroutines, and nil leaves out none.
var LeaveOut func(Wait) bool

func (q *Queue) leftOut(waits, label, on string) bool {
	return LeaveOut != nil && LeaveOut(Wait{q.dev, waits, label, on})
}

// markLabels are what a queue's last marks were called. Whoever waits for one on the
// host is another goroutine, and the queue has gone on to other work.
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

// On is the device whose queue it is.
func (q *Queue) On() *Device { return q.dev }
