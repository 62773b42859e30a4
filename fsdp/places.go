package fsdp

import "zeroth/device"

// places is the number of steps whose kept data is on the device, if it rests on the host between
// the passes of a micro-batch: one reads its input from one place and keeps its own in another,
// while a third is copied.
const places = 3

// place is memory on the device for what one step at a time keeps: its output, and what it saves.
// A step always has the same place, so that its data returns to where it was.
type place struct {
	scratch              // for its forward pass
	owner   *passed      // whose data is here, unless a forward pass without a backward pass has replaced it
	came    device.Event // the owner's data may be read and overwritten
	sent    device.Event // the data that was last kept here has reached the host
}

// away reports whether what step i keeps rests on the host. The output of a chunk's last step
// leaves the chunk.
func (r *Runner) away(f *Flight, i int) bool {
	return r.cfg.Policy.HostActivations && i >= f.Lo && i+1 < f.Hi
}

// home returns memory for the forward pass of step i.
func (r *Runner) home(f *Flight, i int) *scratch {
	if !r.away(f, i) {
		return &f.keeping
	}
	s := &r.places[i%places]
	r.cfg.Compute.After(s.sent)
	s.kept.Release(0)
	return &s.scratch
}

// sendKept copies what step i keeps to the host.
func (r *Runner) sendKept(f *Flight, i int) {
	if !r.away(f, i) {
		return
	}
	s, p, u, q := &r.places[i%places], &f.passed[i-f.Lo], r.steps[i].units[0], r.cfg.Host.ToHost
	if i == f.Lo {
		f.host.Release(0)
	}
	data := s.kept.Taken()
	p.onHost = f.host.Take(data.Type, data.N)
	s.sent = move(q, u.labels[SendKept], r.cfg.Compute.Mark(), device.Event{}, p.onHost, data)
	s.owner, s.came = p, s.sent
	r.emitFor(SendKept, u, 0)
}

// bringKept makes the compute queue wait for what the backward pass of step i reads, and issues the
// copies of it and of what the pass after it reads.
func (r *Runner) bringKept(f *Flight, i int) {
	for k := i - 1; k > i-places && r.away(f, k); k-- {
		s, p := &r.places[k%places], &f.passed[k-f.Lo]
		if s.owner != p {
			u, q := r.steps[k].units[0], r.cfg.Host.ToDevice
			s.kept.Release(0)
			data := s.kept.Take(p.onHost.Type, p.onHost.N)
			s.owner, s.came = p, move(q, u.labels[BringKept], r.cfg.Compute.Mark(), s.sent, data, p.onHost)
			r.emitFor(BringKept, u, 0)
		}
	}
	if r.away(f, i-1) {
		r.cfg.Compute.After(r.places[(i-1)%places].came)
	}
}
