package torchfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"zeroth/internal/input"
)

// Upper bounds of the memory of objects, in bytes.
const (
	objectCost = 128
	slotCost   = 64 // an element of a list, an entry of the stack or the memo; growth doubles it
	entryCost  = 192
	Slack      = 48 << 20 // bytes that the objects of all files of a checkpoint may use beyond its size
	maxText    = 1 << 20  // bytes of a string
	maxKey     = 4096     // bytes of a string that is the key of a dictionary
)

// machine executes the instructions of one pickle; its values are only data.
type machine struct {
	in      []byte
	at      int
	budget  int64 // bytes that remain
	stack   []any
	marks   []int // positions in stack
	memo    map[uint32]any
	tuples  map[*any]int64                   // weights, by the first element
	storage func(id Tuple) (*Storage, error) // resolves a persistent id; nil refuses them
}

// errBudget means that the objects of a pickle need more memory than a file of its size may use.
var errBudget = errors.New("its objects need more memory than a file of this size may use: it is damaged or malicious")

// failure is the error that ends the execution of a pickle. The machine panics with it, and decode
// returns it.
type failure struct{ error }

func fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// must ends the execution if there is an error.
func must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// take counts memory before it is allocated.
func (p *machine) take(n int64) {
	if p.budget -= n; p.budget < 0 {
		must(errBudget)
	}
}

// decode reads one pickle from the beginning of in and returns its value and length. It may use up
// to budget bytes of memory.
func decode(in []byte, budget int64, storage func(Tuple) (*Storage, error)) (v any, n int, left int64, err error) {
	p := &machine{in: in, budget: budget, memo: map[uint32]any{}, tuples: map[*any]int64{}, storage: storage}
	start := 0 // of the instruction
	defer input.Catch(func(e failure) {
		v, n, left, err = nil, 0, 0, fmt.Errorf("byte %d: %w", start, e.error)
	})
	for {
		start = p.at
		op := p.bytes(1)[0]
		if op == '.' {
			v := p.pop()
			if len(p.stack) > 0 {
				fail("values remain at its end")
			}
			return v, p.at, p.budget, nil
		}
		p.step(op)
	}
}

// step executes one instruction.
func (p *machine) step(op byte) {
	switch op {
	case 0x80: // PROTO
		if n := p.number(1); n < 2 || n > 4 {
			fail("protocol %d of pickle; want 2 to 4", n)
		}
	case 0x95: // FRAME
		if n := p.number(8); n > uint64(len(p.in)-p.at) {
			fail("a frame of %d bytes where %d remain", n, len(p.in)-p.at)
		}
	case '(': // MARK
		p.take(slotCost)
		p.marks = append(p.marks, len(p.stack))
	case 'c', 0x93: // GLOBAL, STACK_GLOBAL
		p.global(op)
	case 'R': // REDUCE
		p.reduce()
	case 0x81: // NEWOBJ
		p.newObject()
	case 'b': // BUILD
		p.build()
	case 'Q': // BINPERSID
		p.persistent()
	case 'q': // BINPUT
		p.put(p.number(1))
	case 'r': // LONG_BINPUT
		p.put(p.number(4))
	case 0x94: // MEMOIZE
		p.put(uint64(len(p.memo)))
	case 'h': // BINGET
		p.get(p.number(1))
	case 'j': // LONG_BINGET
		p.get(p.number(4))
	case '}', ']': // EMPTY_DICT, EMPTY_LIST
		p.take(objectCost)
		if op == '}' {
			p.push(&Dict{})
		} else {
			p.push(&List{})
		}
	case ')': // EMPTY_TUPLE
		p.pushTuple(nil)
	case 't': // TUPLE
		p.pushTuple(p.marked())
	case 0x85, 0x86, 0x87: // TUPLE1, TUPLE2, TUPLE3
		p.pushTuple(p.top(int(op - 0x84)))
	case 'a', 's': // APPEND, SETITEM
		n := 1
		if op == 's' {
			n = 2
		}
		p.extend(op == 's', p.top(n))
	case 'e', 'u': // APPENDS, SETITEMS
		p.extend(op == 'u', p.marked())
	default:
		p.push(p.scalar(op))
	}
}

// scalar executes an instruction that pushes one plain value, and returns that.
func (p *machine) scalar(op byte) any {
	switch op {
	case 'N': // NONE
		return nil
	case 0x88, 0x89: // NEWTRUE, NEWFALSE
		return op == 0x88
	case 'K': // BININT1
		return int64(p.number(1))
	case 'M': // BININT2
		return int64(p.number(2))
	case 'J': // BININT
		return int64(int32(p.number(4)))
	case 0x8a: // LONG1
		return p.long()
	case 'G': // BINFLOAT, big-endian
		return math.Float64frombits(binary.BigEndian.Uint64(p.bytes(8)))
	case 'X': // BINUNICODE
		return p.text(p.number(4))
	case 0x8c: // SHORT_BINUNICODE
		return p.text(p.number(1))
	}
	fail("instruction %#02x (%q) of pickle, which is not one that PyTorch writes here", op, rune(op))
	return nil
}

func (p *machine) text(n uint64) string {
	if n > maxText {
		fail("a string of %d bytes; at most %d expected", n, maxText)
	}
	b := p.bytes(int(n))
	if !utf8.Valid(b) {
		fail("a string that is not UTF-8")
	}
	p.take(2*int64(n) + 32) // for the string and a reader's copy
	return string(b)
}

// long returns a number of up to 8 bytes or, for the magic number of old files, a string of its bytes.
func (p *machine) long() any {
	n := p.number(1)
	if n > 16 {
		fail("a number of %d bytes", n)
	}
	b := p.bytes(int(n))
	if n > 8 {
		return string(b)
	}
	var wide [8]byte
	copy(wide[:], b)
	if n > 0 && b[n-1] >= 0x80 {
		for i := n; i < 8; i++ {
			wide[i] = 0xff
		}
	}
	return int64(binary.LittleEndian.Uint64(wide[:]))
}

func (p *machine) global(op byte) {
	var g Global
	if op == 'c' {
		g.Module, g.Name = p.line(), p.line()
	} else {
		name, module := p.pop(), p.pop()
		var a, b bool
		g.Module, a = module.(string)
		g.Name, b = name.(string)
		if !a || !b {
			fail("a class whose name is not a string")
		}
	}
	if !allowed(g) {
		fail("it contains %.200q, which is not one of the classes of tensors and checkpoints; nothing in the file was executed. Save it without that object", g.String())
	}
	p.take(objectCost)
	p.push(g)
}

func (p *machine) reduce() {
	args, f := p.pop(), p.pop()
	g, ok := f.(Global)
	with, tuple := args.(Tuple)
	if !ok || !tuple {
		fail("a call of %s with %s", Kind(f), Kind(args))
	}
	p.push(p.call(g, with))
}

// call calls a supported function, whose failures name it.
func (p *machine) call(g Global, args Tuple) any {
	p.take(objectCost + slotCost*int64(len(args)))
	f := function(g.String())
	if f == nil && isClass(g) {
		return p.object(g, args, nil)
	}
	defer input.Catch(func(e failure) { fail("%s: %w", g, e.error) })
	if f == nil {
		fail("it is not a function on the list")
	}
	return f(p, args)
}

func (p *machine) newObject() {
	args, class := p.pop(), p.pop()
	g, ok := class.(Global)
	with, tuple := args.(Tuple)
	if !ok || !tuple || !isClass(g) {
		fail("an object of %s", Kind(class))
	}
	p.take(objectCost)
	if g.Name == "OrderedDict" {
		p.push(&Dict{})
		return
	}
	p.push(p.object(g, with, nil))
}

func (p *machine) object(class Global, args Tuple, state any) *Object {
	return &Object{Class: class, Args: args, State: state, inner: inner{weight: p.weigh(args...) + p.weigh(state)}}
}

func (p *machine) build() {
	state := p.pop()
	switch v := p.last().(type) {
	case *Object:
		if v.lent { // to a part of its state
			v.built = p.object(v.Class, v.Args, nil)
			v = v.built
			p.stack[len(p.stack)-1] = v
		}
		v.State, v.weight = state, v.weight+p.weigh(state)
	case *Dict, *Tensor: // _metadata of an OrderedDict, attributes of a tensor
	default:
		fail("a state for %s", Kind(v))
	}
}

func (p *machine) persistent() {
	id, ok := p.pop().(Tuple)
	if !ok || p.storage == nil {
		fail("a reference to something outside the pickle")
	}
	p.take(objectCost)
	s, err := p.storage(id)
	must(err)
	p.push(s)
}

// put stores the topmost value in the memo.
func (p *machine) put(n uint64) {
	v := p.last()
	p.take(entryCost)
	p.memo[uint32(n)] = v
}

// get pushes a value of the memo.
func (p *machine) get(n uint64) {
	v, ok := p.memo[uint32(n)]
	if !ok {
		fail("entry %d of the memo, which does not exist", n)
	}
	if o, ok := v.(*Object); ok && o.built != nil {
		v = o.built
	}
	if in := innerOf(v); in != nil {
		in.lent = true
	}
	p.take(p.weigh(v))
	p.push(v)
}

// weigh returns an upper bound of the memory that readers of values need: each visits a value once
// for each value that contains it, however few bytes of the pickle made them all. So a value is
// counted again whenever the memo gives it out, with everything in it, which does not change from
// then on.
func (p *machine) weigh(values ...any) (n int64) {
	for _, v := range values {
		n += slotCost
		switch v := v.(type) {
		case string:
			n += int64(len(v))
		case *Tensor:
			n += objectCost + slotCost*int64(len(v.Shape))
		case Tuple:
			if len(v) > 0 {
				n += objectCost + p.tuples[&v[0]]
			}
		default:
			if in := innerOf(v); in != nil {
				n += objectCost + in.weight
			}
		}
	}
	return n
}

// innerOf returns the description of the content of a list, dictionary or similar value; nil for others.
func innerOf(v any) *inner {
	switch v := v.(type) {
	case *List:
		return &v.inner
	case *Dict:
		return &v.inner
	case *Object:
		return &v.inner
	}
	return nil
}

// tuple makes a tuple, which keeps items.
func (p *machine) tuple(items []any) Tuple {
	p.take(slotCost * int64(1+len(items)))
	if len(items) > 0 {
		p.tuples[&items[0]] = p.weigh(items...)
	}
	return items
}

// pushTuple pushes a tuple of a copy of items.
func (p *machine) pushTuple(items []any) {
	p.take(objectCost)
	p.push(p.tuple(slices.Clone(items)))
}

// extend adds items to the topmost value: keys and values to a dictionary, or elements to a list.
func (p *machine) extend(pairs bool, items []any) {
	p.take(entryCost * int64(len(items)))
	to := p.last()
	if in := innerOf(to); in != nil {
		if in.lent {
			fail("a list or a dictionary that changes after its first use, perhaps because it contains itself")
		}
		in.weight += p.weigh(items...)
	}
	list, isList := to.(*List)
	d, isDict := to.(*Dict)
	switch {
	case isList && !pairs:
		list.Items = append(list.Items, items...)
	case isDict && pairs && len(items)%2 == 0:
		for i := 0; i < len(items); i += 2 {
			if s, ok := items[i].(string); ok && len(s) > maxKey {
				fail("a key of %d bytes, %.40q…; at most %d expected", len(s), s, maxKey)
			}
			d.set(items[i], items[i+1])
		}
	default:
		fail("elements for %s", Kind(to))
	}
}

var errStack = errors.New("more values are used than there are")

// floor returns the stack position of the first value after the last mark.
func (p *machine) floor() int {
	if len(p.marks) == 0 {
		return 0
	}
	return p.marks[len(p.marks)-1]
}

func (p *machine) push(v any) {
	p.take(slotCost)
	p.stack = append(p.stack, v)
}

func (p *machine) pop() any { return p.top(1)[0] }

// last returns the topmost value.
func (p *machine) last() any {
	if len(p.stack) == 0 {
		must(errStack)
	}
	return p.stack[len(p.stack)-1]
}

// top removes and returns the n topmost values. They are valid until the next push.
func (p *machine) top(n int) []any {
	if len(p.stack)-n < p.floor() {
		must(errStack)
	}
	items := p.stack[len(p.stack)-n:]
	p.stack = p.stack[:len(p.stack)-n]
	return items
}

// marked removes and returns the values after the last mark. They are valid until the next push.
func (p *machine) marked() []any {
	if len(p.marks) == 0 {
		fail("a mark that does not exist")
	}
	items := p.stack[p.floor():]
	p.stack = p.stack[:p.floor()]
	p.marks = p.marks[:len(p.marks)-1]
	return items
}

var errShort = errors.New("the pickle ends in an instruction")

func (p *machine) bytes(n int) []byte {
	if n > len(p.in)-p.at {
		must(errShort)
	}
	p.at += n
	return p.in[p.at-n : p.at]
}

// number reads a little-endian number.
func (p *machine) number(size int) uint64 {
	var wide [8]byte
	copy(wide[:], p.bytes(size))
	return binary.LittleEndian.Uint64(wide[:])
}

// line reads a name up to the end of its line.
func (p *machine) line() string {
	rest := p.in[p.at:min(len(p.in), p.at+256)]
	n := bytes.IndexByte(rest, '\n')
	if n < 0 {
		fail("a name without an end")
	}
	p.at += n + 1
	return string(rest[:n])
}
