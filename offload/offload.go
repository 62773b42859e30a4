// Package offload stores optimizer state and parameter shards between uses: on the device,
// in host memory or on disk.
//
// For each unit a Store lends the master copy and the state vectors of this rank's shard to
// the update and takes them back. Mixed precision and offload are one mechanism: the master
// copy differs from the parameter in dtype, in location, or not at all.
//
// # Where the work runs
//
// An update runs where its state is: on the device if the state rests there, otherwise in
// host memory, on the host's own kernels. Then only the gradient travels to the host, and
// the parameter in its compute type back: 4 and 2 bytes per element, instead of 12 each way
// for moving AdamW's state to the device. Gradients of units that are updated in host
// memory rest there, never on disk. So the norm is known before the first update begins,
// clipping and loss scale are one factor of the update, and the state passes over the disk
// once per step.
//
// A unit's shard is updated in tiles if any of it must be staged. Each tile uses a slot of
// a ring of Buffers slots: while one tile is updated, the next ones are read and the
// previous ones are written. The events of slots alone keep the order: work on a slot waits
// for the work that used it before. One goroutine issues all of a rank's work, and every
// event it waits for was issued before, so there is no deadlock.
//
// New decides where everything rests and Allocate allocates the memory; a step allocates
// nothing.
package offload

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/device"
	"zeroth/shard"
)

// Tier is where data rests between uses.
type Tier uint8

const (
	Device Tier = iota
	Host
	Disk
)

var tierNames = [...]string{"device", "host", "disk"}

func (p Tier) String() string { return tierNames[p] }

// TileLen is the default maximum of elements in a tile: 4 MiB of float32, enough for the
// full speed of disks, while a ring stays small compared with the state.
const TileLen = 1 << 20

// Config configures a Store. The caller closes devices and queues after Free; those of the device
// may be nil if nothing is moved to it.
type Config struct {
	Optimizer Tier    // where master copies and state vectors rest
	Params    Tier    // where the shards of units that are not Whole rest
	Ratio     float64 // fraction of the state that is offloaded; the rest stays on the device
	Buffers   int     // number of slots in each ring
	Tile      int     // maximum elements in a tile; 0 is TileLen

	DType          device.DType     // of parameters in use
	Vecs           [][]device.DType // state vectors of each update rule
	SeparateMaster bool             // every parameter has a separate master copy, even in float32

	Device   device.Device
	Host     device.Device // allocates at multiples of 4096 bytes
	ToHost   device.Queue  // copies from the device
	ToDevice device.Queue  // copies to the device
	Read     device.Queue  // reads from the disk
	Write    device.Queue  // writes to the disk
	Scratch  Scratch

	Listener Listener // may be nil
}

// Scratch configures a rank's file.
type Scratch struct {
	Files   vfs.ScratchFS // if nil, transfers are counted but nothing is written
	Dir     string        // an existing folder
	Run     string        // name of the run
	Rank    int           // rank that owns the file
	Timeout time.Duration // for one transfer; 0 means no timeout
}

// Unit describes a unit to a Store.
type Unit struct {
	Name   string
	Len    int  // elements of this rank's shard
	Whole  bool // its parameters stay whole on the device
	Frozen bool // the unit has parameters but no gradient or state
	Coded  bool // its parameters are words of I32, and frozen
	Single bool // its parameters are float32, whatever Config.DType
	Rule   int  // update rule, an index into Config.Vecs
}

// Part is the part of a tile's state that is lent and, if changed, saved. An update in two
// passes moves each part over the disk once.
type Part uint8

const (
	All     Part = iota
	Vectors      // the state vectors
	Copy         // the master copy and the parameter
	parts
)

// State is the state that the update of one tile works on, lent until Release. Buffers have
// At.Len() elements, or none if they are not in the Part. For a frozen unit only Param is
// set.
type State struct {
	At     shard.Range // elements of the unit's shard
	OnHost bool        // the buffers are in host memory
	Ready  [2]device.Event

	Master device.Buffer   // float32
	Vec    []device.Buffer // of its rule's Config.Vecs, in the order of the rule's States; the slice belongs to the store
	Grad   device.Buffer   // float32
	Param  device.Buffer   // its type: receives the parameter; empty if Master is the parameter or its only copy; for a frozen unit, contains it
}

// Store holds the state of every unit of one rank.
type Store struct {
	cfg   Config
	units []unit
	disk  *disk // nil if nothing rests on disk

	states      ring // host, float32: tiles of state that rest on disk
	params      ring // host, compute dtype: tiles of parameters on their way
	outgoing    ring // device, compute dtype: tiles of parameters on their way off it
	allocations []allocation
	offloaded   int // index of the first unit updated in host memory
}

type allocation struct {
	dev device.Device
	buf device.Buffer
}

// unit records where a unit's shard rests.
type unit struct {
	Unit
	onHost bool            // updated in host memory; for a frozen unit, lent there
	param  Tier            // where the parameter rests
	dtype  device.DType    // of the parameter: compute dtype or, if Coded, I32, or, if Single, F32
	rest   device.Buffer   // (Len) dtype: the parameter, unless it rests on disk
	grad   device.Buffer   // (Len) float32
	master device.Buffer   // (Len) float32; empty if it rests on disk
	vec    []device.Buffer // (Len) of its rule's Config.Vecs, empty if on disk
	vecs   []device.DType  // types of the vectors on disk, the master copy first; none if the state rests in memory
	copies bool            // the master copy is separate from the parameter
	alone  bool            // there is only the master copy, on the device: the parameter is cast from it whenever it is used
	tiles  []tile
	labels struct{ state, param string }
}

// tile is part of a unit's shard and its slots.
type tile struct {
	at    shard.Range
	state int // turn in Store.states
	out   int // turn in Store.outgoing
	param int // turn in Store.params

	master device.Buffer   // in memory where it rests, or in the tile's slot
	vec    []device.Buffer // likewise, the state vectors

	block                *block       // of the state, if it rests on disk
	paramBlock           *block       // of the parameter, if it rests on disk
	moves                [parts]moves // of the state, between slot and disk
	loadParam, saveParam func() error // of the parameter, between slot and disk
	lent                 Part         // the part lent last
}

// moves transfers a part of a tile's state between disk and slot, in whole chunks. One chunk
// may also contain some of the other part.
type moves struct {
	bytes      int // 0 if none of the part is on disk
	load, save func() error
}

// New decides where the state of all units rests. It allocates no memory.
func New(cfg Config, units []Unit) *Store {
	cfg.Tile = cmp.Or(cfg.Tile, TileLen)
	if slices.ContainsFunc(slices.Concat(cfg.Vecs...), device.DType.Coded) {
		cfg.Tile = (cfg.Tile + device.BlockLen - 1) / device.BlockLen * device.BlockLen // a tile must begin with a block
	}
	s := &Store{cfg: cfg, offloaded: len(units)}
	if cfg.Optimizer != Device {
		s.offloaded = Split(units, cfg.Ratio)
	}
	if cfg.Optimizer == Disk && s.offloaded < len(units) || cfg.Params == Disk {
		s.disk = newDisk(cfg.Scratch)
	}
	for i, u := range units {
		s.units = append(s.units, s.decide(i, u))
	}
	for i := range s.units {
		s.cut(&s.units[i])
	}
	return s
}

// Shard is the part of a unit's shard that the caller allocates: the gradient and, unless
// it is ParamOffloaded or MasterOnly, the parameter.
type Shard struct{ Param, Grad device.Buffer }

// Allocate allocates the store's memory and file, or nothing if it fails. rest has the
// buffers of each unit that the caller allocates.
func (s *Store) Allocate(rest []Shard) error {
	for i := range s.units {
		u := &s.units[i]
		u.grad = rest[i].Grad
		if u.param == Device {
			u.rest = rest[i].Param
		}
	}
	if err := s.allocate(); err != nil {
		s.Free()
		return fmt.Errorf("offload: %w", err)
	}
	for i := range s.units {
		for j := range s.units[i].tiles {
			s.view(&s.units[i], &s.units[i].tiles[j])
		}
	}
	return nil
}

// view sets the buffers of a tile's state for the update: a tile on disk always has the
// same slot.
func (s *Store) view(u *unit, t *tile) {
	lo, hi := t.at.Lo, t.at.Hi
	switch {
	case u.copies:
		t.master = u.master
	case !u.Frozen:
		t.master = u.rest
	}
	if t.master.N > 0 {
		t.master = t.master.Slice(lo, hi)
	}
	for _, v := range u.vec {
		t.vec = append(t.vec, v.Slice(lo, hi))
	}
	if len(u.vecs) == 0 {
		return
	}
	slot, at := s.states.at(t.state).buf, 0
	for i, kind := range u.vecs {
		v := slot.Slice(at, at+(kind.Bytes(t.at.Len())+3)/4)
		at += padded(kind, t.at.Len())
		if v.Type, v.N = kind, t.at.Len(); u.copies && i == 0 {
			t.master = v
		} else {
			t.vec = append(t.vec, v)
		}
	}
}

// padded returns the number of float32 elements that n elements of type t occupy on disk,
// rounded up to whole blocks.
func padded(t device.DType, n int) int { return pad((t.Bytes(n)+3)/4, device.F32) }

// stateLen returns the number of float32 elements that vectors of n elements occupy in a
// slot.
func (u *unit) stateLen(n int) (all int) {
	for _, t := range u.vecs {
		all += padded(t, n)
	}
	return all
}

// Split returns the index of the first offloaded unit: the units from it on have about
// ratio of all elements with state. The first units stay on the device, because backward
// produces their gradients last and forward needs their parameters first.
func Split(units []Unit, ratio float64) int {
	all, at := 0, 0
	for _, u := range units {
		if !u.Frozen {
			all += u.Len
		}
	}
	for i, u := range units {
		if u.Frozen {
			continue
		}
		if middle := float64(at) + float64(u.Len)/2; middle > (1-ratio)*float64(all) {
			return i
		}
		at += u.Len
	}
	return len(units)
}

func (s *Store) decide(i int, u Unit) unit {
	p := unit{Unit: u, onHost: i >= s.offloaded, param: s.cfg.Params, dtype: s.cfg.DType}
	switch {
	case u.Coded:
		p.dtype = device.I32
	case u.Single:
		p.dtype = device.F32
	}
	if u.Whole {
		p.param = Device
	}
	if u.Frozen {
		p.onHost = p.param != Device // where it can be set and read
	}
	p.copies = !u.Frozen && (s.cfg.SeparateMaster || p.dtype != device.F32 || !p.updatedInPlace())
	p.alone = p.copies && !u.Whole && !p.onHost && p.param == Device && !s.cfg.SeparateMaster
	p.labels.state, p.labels.param = "unit "+u.Name+": optimizer state", "unit "+u.Name+": parameters"
	if p.onHost && s.cfg.Optimizer == Disk && !u.Frozen {
		p.vecs = s.cfg.Vecs[u.Rule]
		if p.copies {
			p.vecs = append([]device.DType{device.F32}, p.vecs...)
		}
	}
	return p
}

// updatedInPlace reports whether the parameter rests in the memory where it is updated.
func (u *unit) updatedInPlace() bool {
	return u.onHost && u.param == Host || !u.onHost && u.param == Device
}

// throughHost reports whether the parameter is staged in host memory on its way.
func (u *unit) throughHost() bool { return u.param == Disk || u.onHost && u.param == Device }

// cut divides a unit into tiles and assigns their slots and blocks on disk.
func (s *Store) cut(u *unit) {
	each := s.cfg.Tile
	if u.updatedInPlace() && len(u.vecs) == 0 {
		each = max(1, u.Len) // nothing is staged
	}
	u.tiles = make([]tile, 0, (u.Len+each-1)/each)
	for lo := 0; lo < u.Len; lo += each {
		u.tiles = append(u.tiles, tile{at: shard.Range{Lo: lo, Hi: min(lo+each, u.Len)}})
		t := &u.tiles[len(u.tiles)-1] // stable: the capacity suffices
		n := t.at.Len()
		if len(u.vecs) > 0 {
			t.state = s.states.turn(u.stateLen(n))
			t.block = s.disk.lay(u.stateLen(n) * device.F32.Size())
			s.cutState(u, t)
		}
		if !u.updatedInPlace() && !u.onHost {
			t.out = s.outgoing.turn(s.staged(u, n))
		}
		if u.throughHost() {
			t.param = s.params.turn(s.staged(u, pad(n, u.dtype)))
		}
		if u.param == Disk {
			b := s.disk.lay(pad(n, u.dtype) * u.dtype.Size())
			t.paramBlock = b
			t.loadParam = func() error { return s.disk.readSome(b, s.params.at(t.param).buf, nil) }
			t.saveParam = func() error { return s.disk.writeSome(b, s.params.at(t.param).buf, nil) }
		}
	}
}

// cutState sets how the parts of a tile's state move. The master copy, if there is one, is
// the first of the vectors on disk.
func (s *Store) cutState(u *unit, t *tile) {
	b, turn, first := t.block, t.state, 0
	if u.copies {
		first = padded(device.F32, t.at.Len()) * device.F32.Size()
	}
	for p, at := range [parts]shard.Range{All: {Hi: b.len}, Vectors: {Lo: first, Hi: b.len}, Copy: {Hi: first}} {
		wanted := func(lo, hi int) bool { return lo < at.Hi && at.Lo < hi }
		t.moves[p] = moves{
			bytes: b.some(wanted),
			load:  func() error { return s.disk.readSome(b, s.states.at(turn).buf, wanted) },
			save:  func() error { return s.disk.writeSome(b, s.states.at(turn).buf, wanted) },
		}
	}
}

// staged returns how many elements of a slot for parameters n elements of a unit need.
func (s *Store) staged(u *unit, n int) int { return n * u.dtype.Size() / s.cfg.DType.Size() }

// as views the beginning of a slot as n elements of the unit's parameter.
func (u *unit) as(b device.Buffer, n int) device.Buffer {
	b.N, b.Type = b.Bytes()/u.dtype.Size(), u.dtype
	return b.Slice(0, n)
}

// pad rounds n elements up to whole blocks of a disk.
func pad(n int, t device.DType) int {
	per := blockSize / t.Size()
	return (n + per - 1) / per * per
}

func (s *Store) allocate() error {
	c := s.cfg
	for i := range s.units {
		if err := s.allocateUnit(&s.units[i]); err != nil {
			return err
		}
	}
	for _, r := range []struct {
		ring *ring
		dev  device.Device
		t    device.DType
	}{{&s.states, c.Host, device.F32}, {&s.params, c.Host, c.DType}, {&s.outgoing, c.Device, c.DType}} {
		for range min(c.Buffers, r.ring.turns) {
			b, err := s.alloc(r.dev, r.t, r.ring.len, device.Staging)
			if err != nil {
				return err
			}
			r.ring.slots = append(r.ring.slots, slot{buf: b})
		}
	}
	if s.disk == nil {
		return nil
	}
	return s.disk.open(s.digest())
}

// allocateUnit allocates the parts of a unit that rest in memory, except the caller's.
func (s *Store) allocateUnit(u *unit) (err error) {
	if u.param == Host {
		if u.rest, err = s.alloc(s.cfg.Host, u.dtype, u.Len, device.Params); err != nil {
			return err
		}
	}
	if len(u.vecs) > 0 || u.Frozen {
		return nil
	}
	dev := s.cfg.Device
	if u.onHost {
		dev = s.cfg.Host
	}
	if u.copies {
		if u.master, err = s.alloc(dev, device.F32, u.Len, device.Master); err != nil {
			return err
		}
	}
	for _, t := range s.cfg.Vecs[u.Rule] {
		v, err := s.alloc(dev, t, u.Len, device.States)
		if err != nil {
			return err
		}
		u.vec = append(u.vec, v)
	}
	return nil
}

func (s *Store) alloc(dev device.Device, t device.DType, n int, use device.Use) (device.Buffer, error) {
	b, err := dev.Alloc(t, n, use)
	if err == nil {
		s.allocations = append(s.allocations, allocation{dev, b})
	}
	return b, err
}

// OnHost reports whether a unit is updated in host memory, where its gradient must then
// rest.
func (s *Store) OnHost(unit int) bool { return s.units[unit].onHost && !s.units[unit].Frozen }

// Resident reports whether a unit's state rests in memory, so that lending it moves nothing.
func (s *Store) Resident(unit int) bool {
	u := &s.units[unit]
	return len(u.vecs) == 0 && !(u.Frozen && u.param == Disk)
}

// ParamOffloaded reports whether a unit's parameter shard rests outside the device and must
// be fetched.
func (s *Store) ParamOffloaded(unit int) bool { return s.units[unit].param != Device }

// MasterOnly reports whether a unit's parameter shard exists only as its master copy, on the device.
func (s *Store) MasterOnly(unit int) bool { return s.units[unit].alone }

// Master returns the master copy of a unit that is MasterOnly, (Len) float32; before Allocate, none.
func (s *Store) Master(unit int) (master device.Buffer) {
	if u := &s.units[unit]; u.alone {
		master = u.master
	}
	return master
}

// OnDevice returns the master copy and the state vectors of a unit that rest on the device.
func (s *Store) OnDevice(unit int) []device.Buffer {
	u := &s.units[unit]
	if u.onHost {
		return nil
	}
	return append([]device.Buffer{u.master}, u.vec...)
}

// Tiles returns the number of tiles of a unit.
func (s *Store) Tiles(unit int) int { return len(s.units[unit].tiles) }

// Tile returns the range of a tile in the unit's shard.
func (s *Store) Tile(unit, i int) shard.Range { return s.units[unit].tiles[i].at }

// DiskBytes returns the size of this rank's file, or 0 without one.
func (s *Store) DiskBytes() int64 {
	if s.disk == nil {
		return 0
	}
	return s.disk.size
}

// Reclaimed describes the files of dead runs that Allocate removed.
func (s *Store) Reclaimed() []string {
	if s.disk == nil {
		return nil
	}
	return s.disk.reclaimed
}

// Free frees the store's memory and removes its file. The queues must be idle. Memory that
// an abandoned transfer may still use is not freed.
func (s *Store) Free() {
	if s.disk != nil && !s.disk.close() {
		return
	}
	for _, h := range s.allocations {
		h.dev.Free(h.buf)
	}
	s.allocations = nil
}
