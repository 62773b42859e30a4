package tests

import (
	"slices"

	"zeroth/device"
	"zeroth/offload"
)

// offloadSizes gives the place of each part of a rank's shards. With n elements in a unit's
// shard, K state vectors, and p bytes per parameter, the shard of a unit takes
//
//	                          device     host           disk
//	parameter                 pn if it rests there      pn
//	gradient  not offloaded   4n (stages 2, 3)
//	          offloaded                  4n
//	master copy, where it is not the parameter itself, and
//	states    not offloaded   4n + 4Kn
//	          offloaded                  4n + 4Kn  or   4n + 4Kn
//
// Everything on disk is divided into tiles, each a multiple of 4096 bytes. A unit is offloaded if
// its optimizer state is; the master copy is the parameter itself if p is 4 and the parameter
// rests in the memory where the unit is updated. Staging takes Buffers times the largest tile of
// each kind: states on disk (host); parameters that rest on disk, or that are updated on the host
// and rest on the device (host); parameters that are updated on the device and rest elsewhere
// (device). Accumulating micro-batches at stages 2 and 3 takes another 4n of the largest
// offloaded unit on the device. Updates of whole matrices take 2n of the largest offloaded unit
// with such matrices in host memory, in as many slots as on the device.
type offloadSizes struct {
	Optimizer, Params offload.Tier
	Ratio             float64
	Buffers, Tile     int
}

// rest describes how one unit's shard is stored.
type rest struct {
	n       int64 // elements
	tile    int64 // elements of the largest tile
	off     bool  // updated on the host
	frozen  bool  // has only a parameter
	param   offload.Tier
	master  bool           // has its own master copy
	vectors []device.DType // types of the state vectors on disk
	rule    int            // index of footprint.Vecs
}

// rests returns how all units' shards are stored.
func (f footprint) rests() []rest {
	of, out := make([]offload.Unit, 0, len(f.Units)), make([]rest, 0, len(f.Units))
	tile, mastered := f.tile(), make([][]device.DType, len(f.Vecs)) // state vectors with a master copy
	for k, v := range f.Vecs {
		mastered[k] = append([]device.DType{device.F32}, v...)
	}
	for _, u := range f.Units {
		_, n := f.pad(u)
		of = append(of, offload.Unit{Len: int(n), Frozen: u.Frozen})
	}
	first := len(of)
	if f.Offload.Optimizer != offload.Device {
		first = offload.Split(of, f.Offload.Ratio)
	}
	for i, u := range f.Units {
		n := int64(of[i].Len)
		r := rest{n: n, tile: min(tile, n), off: i >= first && !u.Frozen, frozen: u.Frozen, rule: u.Rule}
		if !u.Shared && !f.Policy.KeepParams {
			r.param = f.Offload.Params
		}
		updated := offload.Device
		if r.off {
			updated = offload.Host
		}
		r.master = !u.Frozen && (f.DType != device.F32 || r.param != updated || f.Delayed)
		if r.off && f.Offload.Optimizer == offload.Disk {
			r.vectors = f.Vecs[u.Rule]
			if r.master {
				r.vectors = mastered[u.Rule]
			}
		}
		out = append(out, r)
	}
	return out
}

// addShards adds the bytes of shards stored on the device.
func (f footprint) addShards(b *device.Bytes) {
	p, back := int64(f.DType.Size()), int64(0)
	var out ringSizes
	for i, r := range f.rests() {
		alone := r.master && !r.off && !f.Delayed // parameters are cast from the master copy
		if !f.Policy.KeepParams && !f.Units[i].Shared && r.param == offload.Device && !alone {
			b[device.Params] += p * r.n
		}
		if r.off {
			back = max(back, 4*r.n)
		}
		if r.off || r.frozen {
			continue
		}
		if !f.Policy.KeepGrads {
			b[device.Grads] += 4 * r.n
		}
		if r.master {
			b[device.Master] += 4 * r.n
		}
		b[device.States] += f.states(r)
		if r.param != offload.Device {
			out.add(r, p*r.tile)
		}
	}
	if f.Policy.KeepGrads || f.Micro == 1 {
		back = 0
	}
	b[device.Staging] = back + out.bytes(f)
}

// states returns the bytes of the state vectors of a unit's shard.
func (f footprint) states(r rest) (bytes int64) {
	for _, t := range f.Vecs[r.rule] {
		bytes += int64(t.Bytes(int(r.n)))
	}
	return bytes
}

// onDisk returns the bytes that n elements of the vectors on disk occupy.
func (r rest) onDisk(n int64) (bytes int64) {
	for _, t := range r.vectors {
		bytes += diskBlocks(int64(t.Bytes(int(n))))
	}
	return bytes
}

// offloads reports whether anything is offloaded.
func (f footprint) offloads() bool {
	return f.Offload.Optimizer != offload.Device || f.Offload.Params != offload.Device
}

// Host returns the bytes of host memory that a rank allocates in each category.
func (f footprint) Host() (b device.Bytes) {
	if f.apart() {
		b[device.Stats] = f.stats()
	}
	if f.Separate {
		b[device.Inputs] = f.ids()
		b[device.Stats] += f.sums()
	}
	if !f.offloads() {
		return b
	}
	p := int64(f.DType.Size())
	var states, params ringSizes
	part := int64(0)
	for i, r := range f.rests() {
		if r.param == offload.Host {
			b[device.Params] += p * r.n
		}
		if r.param == offload.Disk || r.off && r.param == offload.Device {
			params.add(r, diskBlocks(p*r.tile))
		}
		if !r.off {
			continue
		}
		b[device.Grads] += 4 * r.n
		if f.Units[i].Matrix != [2]int{} {
			part = max(part, r.n)
		}
		if len(r.vectors) > 0 {
			states.add(r, r.onDisk(r.tile))
			continue
		}
		if r.master {
			b[device.Master] += 4 * r.n
		}
		b[device.States] += f.states(r)
	}
	b[device.Workspace] = f.HostWork
	b[device.Stats] += f.sums()
	b[device.Updates] = 2 * f.updateSlots() * part
	b[device.Staging] = states.bytes(f) + params.bytes(f)
	return b
}

// Disk returns the bytes of a rank's file: a header of 4096 and the tiles.
func (f footprint) Disk() int64 {
	bytes, tile := int64(0), f.tile()
	add := func(r rest, n, times int64) {
		bytes += times * r.onDisk(n)
		if r.param == offload.Disk {
			bytes += times * diskBlocks(int64(f.DType.Size())*n)
		}
	}
	for _, r := range f.rests() {
		add(r, tile, r.n/tile)
		if last := r.n % tile; last > 0 {
			add(r, last, 1)
		}
	}
	if f.Offload.Optimizer == offload.Disk && f.anyOff() || f.Offload.Params == offload.Disk {
		bytes += 4096
	}
	return bytes
}

// anyOff reports whether any unit is updated on the host.
func (f footprint) anyOff() bool {
	return slices.ContainsFunc(f.rests(), func(r rest) bool { return r.off })
}

// diskBlocks returns n rounded up to disk blocks.
func diskBlocks(n int64) int64 { return (n + 4095) / 4096 * 4096 }

func (f footprint) tile() int64 {
	if f.Offload.Tile == 0 {
		return offload.TileLen
	}
	tile := int64(f.Offload.Tile)
	if slices.ContainsFunc(slices.Concat(f.Vecs...), device.DType.Coded) { // it begins with a block of codes
		tile = (tile + device.BlockLen - 1) / device.BlockLen * device.BlockLen
	}
	return tile
}

// ringSizes describes the tiles that take turns in staging memory.
type ringSizes struct{ turns, slot int64 }

// add counts a unit's tiles; the largest needs that many bytes.
func (r *ringSizes) add(u rest, bytes int64) {
	r.turns += (u.n + u.tile - 1) / u.tile
	r.slot = max(r.slot, bytes)
}

func (r ringSizes) bytes(f footprint) int64 { return r.slot * min(r.turns, int64(f.Offload.Buffers)) }
