package offload

import "zeroth/device"

// Kind is a direction in which data of a unit moves.
type Kind uint8

const (
	Read     Kind = iota // from the disk into host memory
	Write                // from host memory to the disk
	ToHost               // from the device
	ToDevice             // to the device
	kinds
)

var kindNames = [kinds]string{"read", "write", "to host", "to device"}

func (k Kind) String() string { return kindNames[k] }

// Event describes a transfer that a store issued. Blocks never written to the disk are not
// read, because they are zeros.
type Event struct {
	Kind  Kind
	Unit  int   // index among the store's units
	Param bool  // the unit's parameter; otherwise its optimizer state
	Bytes int64 // for the disk, whole blocks of 4096
	Queue device.Queue
}

// Listener receives an event for every transfer a Store issues, on the goroutine that
// issues it.
type Listener interface {
	Offloaded(Event)
}

// do issues f, the transfer that e describes, to run after both events.
func (s *Store) do(e Event, a, b device.Event, f func() error) device.Event {
	s.prepare(e, a, b)
	e.Queue.Do(f)
	return s.issued(e)
}

// copy issues a copy, the transfer that e describes, to run after both events.
func (s *Store) copy(e Event, a, b device.Event, dst, src device.Buffer) device.Event {
	s.prepare(e, a, b)
	e.Queue.Copy(dst, src)
	e.Bytes = int64(dst.Bytes())
	return s.issued(e)
}

func (s *Store) prepare(e Event, a, b device.Event) {
	label := s.units[e.Unit].labels.state
	if e.Param {
		label = s.units[e.Unit].labels.param
	}
	e.Queue.Label(label)
	e.Queue.After(a)
	e.Queue.After(b)
}

// issued reports a transfer to the listener and marks its end.
func (s *Store) issued(e Event) device.Event {
	if s.cfg.Listener != nil {
		s.cfg.Listener.Offloaded(e)
	}
	return e.Queue.Mark()
}

// read, write, toHost and toDevice return events for a tile's state or parameter.
func (s *Store) read(unit, bytes int) Event {
	return Event{Kind: Read, Unit: unit, Bytes: int64(bytes), Queue: s.cfg.Read}
}

func (s *Store) write(unit, bytes int) Event {
	return Event{Kind: Write, Unit: unit, Bytes: int64(bytes), Queue: s.cfg.Write}
}

func (s *Store) toHost(unit int) Event {
	return Event{Kind: ToHost, Unit: unit, Param: true, Queue: s.cfg.ToHost}
}

func (s *Store) toDevice(unit int) Event {
	return Event{Kind: ToDevice, Unit: unit, Param: true, Queue: s.cfg.ToDevice}
}

// ofParam returns the same event for the unit's parameter.
func (e Event) ofParam() Event { e.Param = true; return e }
