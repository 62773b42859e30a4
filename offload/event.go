package offload

import "zeroth/device"

// Kind is a direction in which data of a unit moves between the disk and host memory.
type Kind uint8

const (
	Read Kind = iota
	Write
	kinds
)

var kindNames = [kinds]string{"read", "write"}

func (k Kind) String() string { return kindNames[k] }

// Event describes a transfer to or from the disk that a store issued. Blocks never written are not
// read, because they are zeros.
type Event struct {
	Kind  Kind
	Bytes int64 // whole blocks of 4096
	Queue device.Queue
}

// Listener receives an event for every Event of a Store, on the goroutine that issues it.
type Listener interface {
	Offloaded(Event)
}

// read issues f, which reads bytes, to run after an event.
func (s *Store) read(label string, bytes int, after device.Event, f func() error) device.Event {
	return s.transfer(Event{Kind: Read, Bytes: int64(bytes), Queue: s.cfg.Read}, label, after, f)
}

// write issues f, which writes bytes, to run after an event.
func (s *Store) write(label string, bytes int, after device.Event, f func() error) device.Event {
	return s.transfer(Event{Kind: Write, Bytes: int64(bytes), Queue: s.cfg.Write}, label, after, f)
}

func (s *Store) transfer(e Event, label string, after device.Event, f func() error) device.Event {
	e.Queue.Label(label)
	e.Queue.After(after)
	e.Queue.Do(f)
	if s.cfg.Listener != nil {
		s.cfg.Listener.Offloaded(e)
	}
	return e.Queue.Mark()
}

// copy issues a copy between the device and the host, to run after both events.
func (s *Store) copy(q device.Queue, label string, a, b device.Event, dst, src device.Buffer) device.Event {
	q.Label(label)
	q.After(a)
	q.After(b)
	q.Copy(dst, src)
	return q.Mark()
}
