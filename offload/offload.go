// Package offload is where optimizer state, and parameter shards, live between
// their uses: on the device, in host memory or on disk.
//
// For each unit a Store lends the master copy and the state vectors of this
// rank's shard to the update and takes them back. Mixed precision and offload
// are one mechanism: the master copy differs from the parameter in dtype, in
// where it lives, or in neither.
//
// # Where things happen
//
// An update runs where its state is at hand: on the device if the state rests
// there, else in host memory, by the host's own kernels. What travels between
// the two is then only the gradient, to the host, and the parameter in its
// compute type, back: 4 and 2 bytes an element instead of the 12 in and 12 out
// of bringing AdamW's state to the device. Gradients of units that are updated
// in host memory rest there, never on disk; so the norm is known before the
// first update begins, clipping and loss scale are one factor of the update,
// and the state passes over the disk once a step.
//
// A unit's shard is updated in tiles if any of it has to be staged: each tile
// takes a slot of a ring of Buffers slots. While a tile is updated the state of
// the next ones is read, and that of those before is written. Order is kept by
// the events of slots alone: work on a slot waits for the work that had it
// before. All of a rank's work is issued from one goroutine and every event it
// waits for was issued before, so nothing can wait in a circle.
//
// New decides where everything rests, Allocate takes the memory for it; a step
// allocates nothing.
package offload

import (
	"fmt"
	"slices"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/device"
	"zeroth/shard"
)

// Place is where something rests between its uses.
type Place uint8

const (
	Device Place = iota
	Host
	Disk
)

var placeNames = [...]string{"device", "host", "disk"}

func (p Place) String() string { return placeNames[p] }

// TileLen is the most elements of a tile: 4 MiB of float32, at which disks are
// at full speed and a ring is small beside what it serves.
const TileLen = 1 << 20

// Config is what a Store is built from. Devices and queues are the caller's to
// close, after Free; Device's may all be nil where nothing leaves it.
type Config struct {
	Optimizer Place   // of master copies and state vectors
	Params    Place   // of the shards of units that are not Whole
	Ratio     float64 // of the state that Optimizer is about; the rest stays on the device
	Buffers   int     // slots of each ring
	Tile      int     // most elements of a tile; 0 is TileLen

	DType device.DType     // of parameters in use
	Vecs  [][]device.DType // state vectors of each update rule
	Apart bool             // a parameter is never its own master copy, also in float32

	Device   device.Device
	Host     device.Device // its memory begins at multiples of 4096 bytes
	ToHost   device.Queue  // copies from the device
	ToDevice device.Queue  // copies to it
	Read     device.Queue  // reads of the disk, on the host
	Write    device.Queue  // its writes
	Scratch  Scratch

	Listener Listener // may be nil
}

// Scratch is where a rank's file is.
type Scratch struct {
	Files   vfs.ScratchFS // nil: nothing is written, only counted
	Dir     string        // an existing folder
	Run     string        // names the run
	Rank    int           // of this file
	Timeout time.Duration // after which a transfer is given up; 0 is never
}

// Unit is what a Store has to know of a unit.
type Unit struct {
	Name   string
	Len    int  // elements of a shard
	Whole  bool // its parameters stay whole on the device
	Frozen bool // it has a parameter and nothing else
	Rule   int  // it is updated by: of Config.Vecs
}

// Part is what of a tile's state is lent and, changed, kept: an update in two goes has
// each part pass over the disk once.
type Part uint8

const (
	All     Part = iota
	Vectors      // without the master copy and the parameter
	Copy         // the master copy and the parameter alone
	parts
)

// State is what the update of one tile of a unit works on, lent until Release.
// All have At.Len() elements, or none if they are not of the Part. Of a frozen unit
// there is the parameter alone, as it rests.
type State struct {
	At     shard.Range // elements of the unit's shard
	OnHost bool        // all is in host memory
	Ready  [2]device.Event

	Master device.Buffer   // float32
	Vec    []device.Buffer // of its rule's Config.Vecs, in the order of the rule's States; the store's, to be read
	Grad   device.Buffer   // float32
	Param  device.Buffer   // compute dtype, receives the parameter; empty where Master is it. Of a frozen unit: has it
}

// Store holds the state of every unit of one rank.
type Store struct {
	cfg   Config
	units []unit
	disk  *disk // nil if nothing rests there

	states    ring // host, float32: tiles of state that rest on disk
	params    ring // host, compute dtype: tiles of parameters on their way
	outgoing  ring // device, compute dtype: tiles of parameters on their way off it
	held      []owned
	offloaded int // the first unit that is updated in host memory
}

type owned struct {
	dev device.Device
	buf device.Buffer
}

// unit is where a unit's shard rests.
type unit struct {
	Unit
	onHost bool            // updated in host memory; of a frozen unit: its parameter is lent there
	param  Place           // where the parameter rests
	rest   device.Buffer   // (Len) compute dtype: the parameter, unless it rests on disk
	grad   device.Buffer   // (Len) float32
	master device.Buffer   // (Len) float32; empty if it rests on disk
	vec    []device.Buffer // (Len) of its rule's Config.Vecs, alike
	vecs   []device.DType  // vectors on disk, the master copy before them; none if the state rests in memory
	copies bool            // the master copy is not the parameter itself
	tiles  []tile
	labels struct{ state, param string }
}

// tile is part of a unit's shard and the slots it takes.
type tile struct {
	at    shard.Range
	state int // turn in Store.states
	out   int // turn in Store.outgoing
	param int // turn in Store.params

	master device.Buffer   // where an update finds them: where they rest, or in the tile's slot
	vec    []device.Buffer // likewise

	block                *block       // of the state, if it rests on disk
	paramBlock           *block       // of the parameter, alike
	moves                [parts]moves // of the state, between slot and disk
	loadParam, saveParam func() error // the parameter, alike
	lent                 Part         // last
}

// moves bring a part of a tile's state from the disk to its slot, and back: chunks of so
// many bytes, of which one may have some of the other part, too.
type moves struct {
	bytes      int // 0: none of the part is there
	load, save func() error
}

// New decides where all of the units rests, and takes no memory.
func New(cfg Config, units []Unit) *Store {
	if cfg.Tile == 0 {
		cfg.Tile = TileLen
	}
	if slices.ContainsFunc(slices.Concat(cfg.Vecs...), device.DType.Coded) {
		cfg.Tile = (cfg.Tile + device.BlockLen - 1) / device.BlockLen * device.BlockLen // a tile begins with a block
	}
	s := &Store{cfg: cfg, offloaded: len(units)}
	if cfg.Optimizer != Device {
		s.offloaded = Split(units, cfg.Ratio)
	}
	if cfg.Optimizer == Disk && s.offloaded < len(units) || cfg.Params == Disk {
		s.disk = newDisk(cfg.Scratch)
	}
	for i, u := range units {
		s.units = append(s.units, s.place(i, u))
	}
	for i := range s.units {
		s.cut(&s.units[i])
	}
	return s
}

// Shard is where the rest of a unit's shard is: its gradient and, unless it is
// ParamOffloaded, its parameter.
type Shard struct{ Param, Grad device.Buffer }

// Allocate takes memory for all that is not the fsdp package's, or nothing.
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

// view says where the update of a tile finds its state: a tile on disk always
// has the same slot.
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
	for i, of := range u.vecs {
		v := slot.Slice(at, at+(of.Bytes(t.at.Len())+3)/4)
		at += padded(of, t.at.Len())
		if v.Type, v.N = of, t.at.Len(); u.copies && i == 0 {
			t.master = v
		} else {
			t.vec = append(t.vec, v)
		}
	}
}

// padded is the float32 that fill the blocks of a disk which n elements of a type take.
func padded(t device.DType, n int) int { return pad((t.Bytes(n)+3)/4, device.F32) }

// stateLen is the float32 that vectors of n elements take in a slot.
func (u *unit) stateLen(n int) (all int) {
	for _, t := range u.vecs {
		all += padded(t, n)
	}
	return all
}

// Split is the first unit that is offloaded: those from it on have about ratio
// of all elements that have state. The first ones stay, for theirs are the gradients that come
// last and the parameters that are wanted first.
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

// RatioFrom is a ratio by which Split finds the given unit, which has state, or none
// where it is the number of units.
func RatioFrom(units []Unit, first int) float64 {
	all, before, at := 0, 0.0, -1.0 // elements with state; middle of the unit before, and where to split
	for i, u := range units {
		if u.Frozen {
			continue
		}
		middle := float64(all) + float64(u.Len)/2
		if i >= first && at < 0 {
			at = (before + middle) / 2
		}
		all, before = all+u.Len, middle
	}
	if at < 0 {
		return 0
	}
	return 1 - at/float64(all)
}

func (s *Store) place(i int, u Unit) unit {
	p := unit{Unit: u, onHost: i >= s.offloaded, param: s.cfg.Params}
	if u.Whole {
		p.param = Device
	}
	if u.Frozen {
		p.onHost = p.param != Device // where it is at hand to be set and read
	}
	p.copies = !u.Frozen && (s.cfg.Apart || s.cfg.DType != device.F32 || !p.atHand())
	p.labels.state, p.labels.param = "unit "+u.Name+": optimizer state", "unit "+u.Name+": parameters"
	if p.onHost && s.cfg.Optimizer == Disk && !u.Frozen {
		p.vecs = s.cfg.Vecs[u.Rule]
		if p.copies {
			p.vecs = append([]device.DType{device.F32}, p.vecs...)
		}
	}
	return p
}

// atHand says whether the parameter rests in the memory it is updated in.
func (u *unit) atHand() bool {
	return u.onHost && u.param == Host || !u.onHost && u.param == Device
}

// throughHost says whether the parameter takes a slot in host memory on its way.
func (u *unit) throughHost() bool { return u.param == Disk || u.onHost && u.param == Device }

// cut divides a unit into tiles, gives each its turns, and its places on disk.
func (s *Store) cut(u *unit) {
	each := s.cfg.Tile
	if u.atHand() && len(u.vecs) == 0 {
		each = max(1, u.Len) // nothing is staged
	}
	u.tiles = make([]tile, 0, (u.Len+each-1)/each)
	for lo := 0; lo < u.Len; lo += each {
		u.tiles = append(u.tiles, tile{at: shard.Range{Lo: lo, Hi: min(lo+each, u.Len)}})
		t := &u.tiles[len(u.tiles)-1] // which stays where it is
		n := t.at.Len()
		if len(u.vecs) > 0 {
			t.state = s.states.turn(u.stateLen(n))
			t.block = s.disk.lay(u.stateLen(n) * device.F32.Size())
			s.cutState(u, t)
		}
		if !u.atHand() && !u.onHost {
			t.out = s.outgoing.turn(n)
		}
		if u.throughHost() {
			t.param = s.params.turn(pad(n, s.cfg.DType))
		}
		if u.param == Disk {
			b := s.disk.lay(pad(n, s.cfg.DType) * s.cfg.DType.Size())
			t.paramBlock = b
			t.loadParam = func() error { return s.disk.readSome(b, s.params.at(t.param).buf, nil) }
			t.saveParam = func() error { return s.disk.writeSome(b, s.params.at(t.param).buf, nil) }
		}
	}
}

// cutState is how the parts of a tile's state move: the master copy is the first of
// its vectors on disk, where there is one.
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

// pad is the least number of elements, at least n, that fill blocks of a disk.
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

// allocateUnit allocates what rests in memory and is not the runner's.
func (s *Store) allocateUnit(u *unit) (err error) {
	if u.param == Host {
		if u.rest, err = s.alloc(s.cfg.Host, s.cfg.DType, u.Len, device.Params); err != nil {
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
		s.held = append(s.held, owned{dev, b})
	}
	return b, err
}

// OnHost says whether a unit is updated in host memory, where its gradient
// must rest then.
func (s *Store) OnHost(unit int) bool { return s.units[unit].onHost && !s.units[unit].Frozen }

// Resident says whether a unit's state rests in memory, where it is lent.
func (s *Store) Resident(unit int) bool {
	u := &s.units[unit]
	return len(u.vecs) == 0 && !(u.Frozen && u.param == Disk)
}

// ParamOffloaded says whether a unit's parameter shard rests outside of the device and
// must be fetched.
func (s *Store) ParamOffloaded(unit int) bool { return s.units[unit].param != Device }

// Tiles is the number of parts a unit is updated in.
func (s *Store) Tiles(unit int) int { return len(s.units[unit].tiles) }

// Tile is the elements of a unit's shard that a tile has.
func (s *Store) Tile(unit, i int) shard.Range { return s.units[unit].tiles[i].at }

// DiskBytes is the size of this rank's file; 0 without one.
func (s *Store) DiskBytes() int64 {
	if s.disk == nil {
		return 0
	}
	return s.disk.size
}

// Reclaimed describes the files of dead runs that Allocate has removed.
func (s *Store) Reclaimed() []string {
	if s.disk == nil {
		return nil
	}
	return s.disk.reclaimed
}

// Free gives back the store's memory and removes its file. The queues must be
// idle. Memory that a transfer which was given up may still touch is kept.
func (s *Store) Free() {
	if s.disk != nil && !s.disk.close() {
		return
	}
	for _, h := range s.held {
		h.dev.Free(h.buf)
	}
	s.held = nil
}
