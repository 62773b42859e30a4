// Package offload is where optimizer state lives between its uses.
//
// For each unit a Store lends the master copy and the state vectors of this
// rank's shard to the update and takes them back. Mixed precision and offload
// are one mechanism: the master copy differs from the parameter in dtype, in
// where it lives, or in neither.
package offload

import (
	"errors"
	"fmt"

	"zeroth/device"
)

// State is what an update of a unit works on, all (ShardLen) float32.
type State struct {
	Master device.Buffer
	Vec    [2]device.Buffer // in the order of the rule's States; unused ones empty
}

// Store holds the State of every unit of one rank.
type Store interface {
	// Acquire lends a unit's state, ready for use, until Release.
	Acquire(unit int) (State, error)
	// Release takes it back; used fires when the update has written it.
	Release(unit int, used device.Event) error
	// Free gives back the store's memory. The queues must be idle.
	Free()
}

// Resident keeps all state in device memory.
type Resident struct {
	dev    device.Device
	states []State
	held   []device.Buffer
}

// NewResident allocates vecs state vectors for each unit's parameter shard, and
// a master copy for each whose type is not float32: where it is, the parameter
// is its own master.
func NewResident(dev device.Device, params []device.Buffer, vecs int) (*Resident, error) {
	r := &Resident{dev: dev, states: make([]State, len(params))}
	var errs []error
	alloc := func(n int, use device.Use) device.Buffer {
		b, err := dev.Alloc(device.F32, n, use)
		if err != nil {
			errs = append(errs, err)
			return b
		}
		r.held = append(r.held, b)
		return b
	}
	for i, p := range params {
		s := &r.states[i]
		s.Master = p
		if p.Type != device.F32 {
			s.Master = alloc(p.N, device.Master)
		}
		for j := range vecs {
			s.Vec[j] = alloc(p.N, device.States)
		}
	}
	if err := errors.Join(errs...); err != nil {
		r.Free()
		return nil, fmt.Errorf("offload: %w", err)
	}
	return r, nil
}

// Acquire implements Store.
func (r *Resident) Acquire(unit int) (State, error) { return r.states[unit], nil }

// Release implements Store.
func (r *Resident) Release(int, device.Event) error { return nil }

// Free implements Store.
func (r *Resident) Free() {
	for _, b := range r.held {
		r.dev.Free(b)
	}
	r.held = nil
}
