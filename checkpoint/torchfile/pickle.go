package torchfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
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

// take counts memory before it is allocated.
func (p *machine) take(n int64) error {
	if p.budget -= n; p.budget < 0 {
		return errBudget
	}
	return nil
}

// decode reads one pickle from the beginning of in and returns its value and length. It may use up
// to budget bytes of memory.
func decode(in []byte, budget int64, storage func(Tuple) (*Storage, error)) (v any, n int, left int64, err error) {
	p := &machine{in: in, budget: budget, memo: map[uint32]any{}, tuples: map[*any]int64{}, storage: storage}
	for {
		start := p.at
		op, err := p.byte()
		if err == nil && op == '.' {
			v, err := p.pop()
			if err == nil && len(p.stack) > 0 {
				err = errors.New("values remain at its end")
			}
			if err != nil {
				return nil, 0, 0, fmt.Errorf("byte %d: %w", start, err)
			}
			return v, p.at, p.budget, nil
		}
		if err == nil {
			err = p.step(op)
		}
		if err != nil {
			return nil, 0, 0, fmt.Errorf("byte %d: %w", start, err)
		}
	}
}

// step executes one instruction.
func (p *machine) step(op byte) error {
	switch op {
	case 0x80: // PROTO
		n, err := p.byte()
		if err == nil && (n < 2 || n > 4) {
			return fmt.Errorf("protocol %d of pickle; want 2 to 4", n)
		}
		return err
	case 0x95: // FRAME
		n, err := p.number(8)
		if err == nil && n > uint64(len(p.in)-p.at) {
			return fmt.Errorf("a frame of %d bytes where %d remain", n, len(p.in)-p.at)
		}
		return err
	case '(': // MARK
		p.marks = append(p.marks, len(p.stack))
		return p.take(slotCost)
	case 'c', 0x93: // GLOBAL, STACK_GLOBAL
		return p.global(op)
	case 'R': // REDUCE
		return p.reduce()
	case 0x81: // NEWOBJ
		return p.newObject()
	case 'b': // BUILD
		return p.build()
	case 'Q': // BINPERSID
		return p.persistent()
	case 'q', 'r', 0x94: // BINPUT, LONG_BINPUT, MEMOIZE
		return p.put(op)
	case 'h', 'j': // BINGET, LONG_BINGET
		return p.get(op)
	case '}', ']', ')', 't', 0x85, 0x86, 0x87: // EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE, TUPLE, TUPLE1, TUPLE2, TUPLE3
		return p.collection(op)
	case 's', 'u', 'a', 'e': // SETITEM, SETITEMS, APPEND, APPENDS
		return p.extend(op)
	}
	return p.scalar(op)
}

// scalar executes an instruction that pushes one plain value.
func (p *machine) scalar(op byte) error {
	switch op {
	case 'N': // NONE
		return p.push(nil)
	case 0x88, 0x89: // NEWTRUE, NEWFALSE
		return p.push(op == 0x88)
	case 'K': // BININT1
		n, err := p.number(1)
		return p.pushIf(int64(n), err)
	case 'M': // BININT2
		n, err := p.number(2)
		return p.pushIf(int64(n), err)
	case 'J': // BININT
		n, err := p.number(4)
		return p.pushIf(int64(int32(n)), err)
	case 0x8a: // LONG1
		return p.long()
	case 'G': // BINFLOAT, big-endian
		b, err := p.bytes(8)
		if err != nil {
			return err
		}
		return p.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
	case 'X', 0x8c: // BINUNICODE, SHORT_BINUNICODE
		size := 4
		if op == 0x8c {
			size = 1
		}
		n, err := p.number(size)
		if err != nil {
			return err
		}
		return p.text(n)
	}
	return fmt.Errorf("instruction %#02x (%q) of pickle, which is not one that PyTorch writes here", op, rune(op))
}

func (p *machine) text(n uint64) error {
	if n > maxText {
		return fmt.Errorf("a string of %d bytes; at most %d expected", n, maxText)
	}
	b, err := p.bytes(int(n))
	if err == nil && !utf8.Valid(b) {
		err = errors.New("a string that is not UTF-8")
	}
	if err == nil {
		err = p.take(2*int64(n) + 32) // for the string and a reader's copy
	}
	if err != nil {
		return err
	}
	return p.push(string(b))
}

// long pushes a number of up to 8 bytes, or, for the magic number of old files, a string of its bytes.
func (p *machine) long() error {
	n, err := p.number(1)
	if err != nil {
		return err
	}
	if n > 16 {
		return fmt.Errorf("a number of %d bytes", n)
	}
	b, err := p.bytes(int(n))
	if err != nil {
		return err
	}
	if n > 8 {
		return p.push(string(b))
	}
	var wide [8]byte
	copy(wide[:], b)
	if n > 0 && b[n-1] >= 0x80 {
		for i := n; i < 8; i++ {
			wide[i] = 0xff
		}
	}
	return p.push(int64(binary.LittleEndian.Uint64(wide[:])))
}

func (p *machine) global(op byte) error {
	var g Global
	if op == 'c' {
		var err error
		if g.Module, err = p.line(); err == nil {
			g.Name, err = p.line()
		}
		if err != nil {
			return err
		}
	} else {
		name, err := p.pop()
		if err != nil {
			return err
		}
		module, err := p.pop()
		if err != nil {
			return err
		}
		var a, b bool
		g.Module, a = module.(string)
		g.Name, b = name.(string)
		if !a || !b {
			return errors.New("a class whose name is not a string")
		}
	}
	if !allowed(g) {
		return fmt.Errorf("it contains %.200q, which is not one of the classes of tensors and checkpoints; nothing in the file was executed. Save it without that object", g.String())
	}
	if err := p.take(objectCost); err != nil {
		return err
	}
	return p.push(g)
}

func (p *machine) reduce() error {
	args, err := p.pop()
	if err != nil {
		return err
	}
	f, err := p.pop()
	if err != nil {
		return err
	}
	g, ok := f.(Global)
	with, tuple := args.(Tuple)
	if !ok || !tuple {
		return fmt.Errorf("a call of %s with %s", Kind(f), Kind(args))
	}
	v, err := p.call(g, with)
	if err != nil {
		return err
	}
	return p.push(v)
}

// call calls a supported function.
func (p *machine) call(g Global, args Tuple) (v any, err error) {
	if err := p.take(objectCost + slotCost*int64(len(args))); err != nil {
		return nil, err
	}
	switch f := function(g.String()); {
	case f != nil:
		v, err = f(p, args)
	case isClass(g):
		return p.object(g, args, nil), nil
	default:
		err = errors.New("it is not a function on the list")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g, err)
	}
	return v, nil
}

func (p *machine) newObject() error {
	args, err := p.pop()
	if err != nil {
		return err
	}
	class, err := p.pop()
	if err != nil {
		return err
	}
	g, ok := class.(Global)
	with, tuple := args.(Tuple)
	if !ok || !tuple || !isClass(g) {
		return fmt.Errorf("an object of %s", Kind(class))
	}
	if err := p.take(objectCost); err != nil {
		return err
	}
	if g.Name == "OrderedDict" {
		return p.push(&Dict{})
	}
	return p.push(p.object(g, with, nil))
}

func (p *machine) object(class Global, args Tuple, state any) *Object {
	return &Object{Class: class, Args: args, State: state, inner: inner{weight: p.weigh(args...) + p.weigh(state)}}
}

func (p *machine) build() error {
	state, err := p.pop()
	if err != nil {
		return err
	}
	if len(p.stack) == 0 {
		return errStack
	}
	switch v := p.stack[len(p.stack)-1].(type) {
	case *Object:
		if v.lent { // to a part of its state
			v.built = p.object(v.Class, v.Args, nil)
			v = v.built
			p.stack[len(p.stack)-1] = v
		}
		v.State, v.weight = state, v.weight+p.weigh(state)
	case *Dict, *Tensor: // _metadata of an OrderedDict, attributes of a tensor
	default:
		return fmt.Errorf("a state for %s", Kind(v))
	}
	return nil
}

func (p *machine) persistent() error {
	v, err := p.pop()
	if err != nil {
		return err
	}
	id, ok := v.(Tuple)
	if !ok || p.storage == nil {
		return errors.New("a reference to something outside the pickle")
	}
	if err := p.take(objectCost); err != nil {
		return err
	}
	s, err := p.storage(id)
	if err != nil {
		return err
	}
	return p.push(s)
}

func (p *machine) put(op byte) error {
	n := uint64(len(p.memo))
	var err error
	switch op {
	case 'q':
		n, err = p.number(1)
	case 'r':
		n, err = p.number(4)
	}
	if err != nil {
		return err
	}
	if len(p.stack) == 0 {
		return errStack
	}
	if err := p.take(entryCost); err != nil {
		return err
	}
	p.memo[uint32(n)] = p.stack[len(p.stack)-1]
	return nil
}

func (p *machine) get(op byte) error {
	size := 1
	if op == 'j' {
		size = 4
	}
	n, err := p.number(size)
	if err != nil {
		return err
	}
	v, ok := p.memo[uint32(n)]
	if !ok {
		return fmt.Errorf("entry %d of the memo, which does not exist", n)
	}
	if o, ok := v.(*Object); ok && o.built != nil {
		v = o.built
	}
	if in := innerOf(v); in != nil {
		in.lent = true
	}
	if err := p.take(p.weigh(v)); err != nil {
		return err
	}
	return p.push(v)
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

// innerOf returns what is known of the inside of a value that can change, or nil.
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
func (p *machine) tuple(items []any) (Tuple, error) {
	if len(items) > 0 {
		p.tuples[&items[0]] = p.weigh(items...)
	}
	return items, p.take(slotCost * int64(1+len(items)))
}

func (p *machine) collection(op byte) error {
	if err := p.take(objectCost); err != nil {
		return err
	}
	var items []any
	var err error
	switch op {
	case '}':
		return p.push(&Dict{})
	case ']':
		return p.push(&List{})
	case 't':
		items, err = p.marked()
	case 0x85, 0x86, 0x87:
		items, err = p.top(int(op - 0x84))
	}
	if err != nil {
		return err
	}
	t, err := p.tuple(slices.Clone(items))
	return p.pushIf(t, err)
}

func (p *machine) extend(op byte) error {
	var items []any
	var err error
	switch op {
	case 's', 'a':
		n := 1
		if op == 's' {
			n = 2
		}
		items, err = p.top(n)
	default:
		items, err = p.marked()
	}
	if err == nil {
		err = p.take(entryCost * int64(len(items)))
	}
	switch {
	case err != nil:
		return err
	case len(p.stack) == 0:
		return errStack
	}
	if in := innerOf(p.stack[len(p.stack)-1]); in != nil {
		if in.lent {
			return errors.New("a list or a dictionary that changes after its first use, perhaps because it contains itself")
		}
		in.weight += p.weigh(items...)
	}
	switch v := p.stack[len(p.stack)-1].(type) {
	case *List:
		if op == 'a' || op == 'e' {
			v.Items = append(v.Items, items...)
			return nil
		}
	case *Dict:
		if (op == 's' || op == 'u') && len(items)%2 == 0 {
			for i := 0; i < len(items); i += 2 {
				if s, ok := items[i].(string); ok && len(s) > maxKey {
					return fmt.Errorf("a key of %d bytes, %.40q…; at most %d expected", len(s), s, maxKey)
				}
				v.set(items[i], items[i+1])
			}
			return nil
		}
	}
	return fmt.Errorf("elements for %s", Kind(p.stack[len(p.stack)-1]))
}

var errStack = errors.New("more values are used than there are")

// floor returns the stack position of the first value after the last mark.
func (p *machine) floor() int {
	if len(p.marks) == 0 {
		return 0
	}
	return p.marks[len(p.marks)-1]
}

func (p *machine) push(v any) error {
	p.stack = append(p.stack, v)
	return p.take(slotCost)
}

func (p *machine) pushIf(v any, err error) error {
	if err != nil {
		return err
	}
	return p.push(v)
}

func (p *machine) pop() (any, error) {
	items, err := p.top(1)
	if err != nil {
		return nil, err
	}
	return items[0], nil
}

// top removes and returns the n topmost values. They are valid until the next push.
func (p *machine) top(n int) ([]any, error) {
	if len(p.stack)-n < p.floor() {
		return nil, errStack
	}
	items := p.stack[len(p.stack)-n:]
	p.stack = p.stack[:len(p.stack)-n]
	return items, nil
}

// marked removes and returns the values after the last mark. They are valid until the next push.
func (p *machine) marked() ([]any, error) {
	if len(p.marks) == 0 {
		return nil, errors.New("a mark that does not exist")
	}
	at := p.floor()
	p.marks = p.marks[:len(p.marks)-1]
	items := p.stack[at:]
	p.stack = p.stack[:at]
	return items, nil
}

var errShort = errors.New("the pickle ends in an instruction")

func (p *machine) bytes(n int) ([]byte, error) {
	if n > len(p.in)-p.at {
		return nil, errShort
	}
	p.at += n
	return p.in[p.at-n : p.at], nil
}

func (p *machine) byte() (byte, error) {
	b, err := p.bytes(1)
	if err != nil {
		return 0, errShort
	}
	return b[0], nil
}

// number reads a little-endian number.
func (p *machine) number(size int) (uint64, error) {
	b, err := p.bytes(size)
	if err != nil {
		return 0, err
	}
	var wide [8]byte
	copy(wide[:], b)
	return binary.LittleEndian.Uint64(wide[:]), nil
}

// line reads a name up to the end of its line.
func (p *machine) line() (string, error) {
	for n := 0; n < 256 && p.at+n < len(p.in); n++ {
		if p.in[p.at+n] == '\n' {
			s := string(p.in[p.at : p.at+n])
			p.at += n + 1
			return s, nil
		}
	}
	return "", errors.New("a name without an end")
}
