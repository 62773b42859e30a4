package main

import (
	"maps"
	"math"
	"slices"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var negInf = math.Inf(-1)

// widths are the vector widths of elementwise code.
var widths = []width{{"AVX512", 16}, {"AVX2", 8}}

// bytes returns the size of a vector.
func (w width) bytes() int { return 4 * w.lanes }

// constants is a static table of constants, each in the eight lanes that an AVX2 instruction takes
// from memory; AVX-512 broadcasts the first, see broadcastConstants.
type constants struct {
	symbol operand.Symbol
	at     map[string]int
}

// constant is a name and the 32 bits of every lane.
type constant struct {
	name string
	bits uint32
}

func float(name string, x float64) constant { return constant{name, math.Float32bits(float32(x))} }

func declare(c *build.Context, name string, list ...constant) *constants {
	t := &constants{operand.NewStaticSymbol(name), map[string]int{}}
	c.StaticGlobal(name)
	c.DataAttributes(attr.RODATA | attr.NOPTR)
	for i, k := range list {
		t.at[k.name] = 32 * i
		for pair := range 4 {
			c.AddDatum(32*i+8*pair, operand.U64(uint64(k.bits)<<32|uint64(k.bits)))
		}
	}
	return t
}

// declare64 declares a table of 64-bit constants, each in four lanes.
func declare64(c *build.Context, name string, list map[string]uint64) *constants {
	t := &constants{operand.NewStaticSymbol(name), map[string]int{}}
	c.StaticGlobal(name)
	c.DataAttributes(attr.RODATA | attr.NOPTR)
	for i, k := range slices.Sorted(maps.Keys(list)) {
		t.at[k] = 32 * i
		for lane := range 4 {
			c.AddDatum(32*i+8*lane, operand.U64(list[k]))
		}
	}
	return t
}

func (t *constants) mem(name string) operand.Mem {
	at, ok := t.at[name]
	if !ok {
		panic("no constant " + name)
	}
	return operand.Mem{Symbol: t.symbol, Base: reg.StaticBase, Disp: at}
}

// broadcastConstants makes AVX-512 instructions broadcast the first lane of operands in these
// tables, which have only as many lanes as AVX2's.
func broadcastConstants(file *ir.File) {
	for _, f := range file.Functions() {
		for _, i := range f.Instructions() {
			wide, table := false, ""
			for _, o := range i.Operands {
				switch o := o.(type) {
				case operand.Mem:
					table = o.Symbol.Name
				case reg.Register:
					wide = wide || o.Size() == 64
				}
			}
			switch {
			case !wide || !slices.Contains(alike, table):
			case i.Opcode != "VMOVUPS":
				i.Suffixes = slices.Insert(i.Suffixes, 0, "BCST")
			case table == squareConstants:
				i.Opcode = "VBROADCASTSD"
			default:
				i.Opcode = "VBROADCASTSS"
			}
		}
	}
}

const squareConstants = "squareConstants"

// alike lists the tables with equal values in all lanes.
var alike = []string{"eachConstants", "ruleConstants", "normConstants", "sumsConstants", "attnConstants", "dropConstants", "roundingBF16", squareConstants}

// get loads a constant.
func (t *constants) get(c *build.Context, w width, name string) reg.VecVirtual {
	v := w.vec(c)
	c.VMOVUPS(t.mem(name), v)
	return v
}

func zeroed(c *build.Context, w width) reg.VecVirtual {
	v := w.vec(c)
	if w.lanes == 16 {
		c.VPXORD(v, v, v)
	} else {
		c.VXORPS(v, v, v)
	}
	return v
}

// broadcast returns the float at m in every lane.
func broadcast(c *build.Context, w width, m operand.Mem) reg.VecVirtual {
	v := w.vec(c)
	c.VBROADCASTSS(m, v)
	return v
}

// expConstants are the constants of Exp32 in exp.go.
var expConstants = []constant{
	float("1", 1), float("expMin", -87.33), float("expTop", 88.5),
	float("log2e", math.Log2E), float("ln2High", 0.693359375), float("ln2Low", -2.12194440e-4), float("magic", 3<<22),
	float("exp0", 1.9875691500e-4), float("exp1", 1.3981999507e-3), float("exp2", 8.3334519073e-3),
	float("exp3", 4.1665795894e-2), float("exp4", 1.6666665459e-1), float("exp5", 5.0000001201e-1),
}

// exp replaces x by e^x: Exp32 with multiply-adds, and with infinity from 88.38 on, where the power
// of two alone leaves the range. With big unset, x must be at most 88. NaN stays NaN.
func exp(c *build.Context, w width, t *constants, x reg.VecVirtual, big bool) {
	if big {
		top := t.get(c, w, "expTop")
		c.VMINPS(x, top, x) // NaN: the first of the operands as written
	}
	n, p := w.vec(c), w.vec(c)
	pow := t.get(c, w, "magic")
	c.VFMADD231PS(t.mem("log2e"), x, pow)
	c.VSUBPS(t.mem("magic"), pow, n)
	keep := notLess(c, w, x, t.mem("expMin"))
	c.VFNMADD231PS(t.mem("ln2High"), n, x)
	c.VFNMADD231PS(t.mem("ln2Low"), n, x)
	c.VMOVUPS(t.mem("exp0"), p)
	for _, k := range []string{"exp1", "exp2", "exp3", "exp4", "exp5", "1", "1"} {
		c.VFMADD213PS(t.mem(k), x, p)
	}
	c.VPSLLD(operand.U8(23), pow, pow)
	c.VPADDD(t.mem("1"), pow, pow)
	if w.lanes == 16 {
		c.VMULPS_Z(pow, p, keep, x)
		return
	}
	c.VMULPS(pow, p, x)
	c.VANDPS(keep, x, x)
}

// notLess returns the mask of lanes where x is not less than m.
func notLess(c *build.Context, w width, x reg.VecVirtual, m operand.Mem) reg.Register {
	const notLessThan = 5
	if w.lanes == 16 {
		k := c.K()
		c.VCMPPS(operand.U8(notLessThan), m, x, k)
		return k
	}
	k := c.YMM()
	c.VCMPPS(operand.U8(notLessThan), m, x, k)
	return k
}

// across folds the lanes of v into its lowest by op, in halves: lane i with i+8, then i+4, i+2,
// i+1. op takes (source, source, destination).
func across(c *build.Context, w width, v reg.VecVirtual, op func(...operand.Op)) {
	half := w.vec(c)
	if w.lanes == 16 {
		c.VEXTRACTF64X4(operand.U8(1), v, half.AsY())
		op(half.AsY(), v.AsY(), v.AsY())
	}
	c.VEXTRACTF128(operand.U8(1), v.AsY(), half.AsX())
	op(half.AsX(), v.AsX(), v.AsX())
	c.VPERMILPS(operand.U8(0x4e), v.AsX(), half.AsX())
	op(half.AsX(), v.AsX(), v.AsX())
	c.VPERMILPS(operand.U8(0xb1), v.AsX(), half.AsX())
	op(half.AsX(), v.AsX(), v.AsX())
}

// inTurns interleaves independent chains of instructions, without labels, one instruction of each
// at a time. A single long chain, such as an exponential, fills the processor's window with
// instructions that wait for each other; several side by side always have some that need not wait.
func inTurns(c *build.Context, chains int, chain func(i int)) {
	file, _ := c.Result()
	all := file.Functions()
	f := all[len(all)-1]
	start := len(f.Nodes)
	var each [][]ir.Node
	for i := range chains {
		chain(i)
		each = append(each, slices.Clone(f.Nodes[start:]))
		f.Nodes = f.Nodes[:start]
	}
	for at := 0; ; at++ {
		before := len(f.Nodes)
		for _, nodes := range each {
			if at < len(nodes) {
				f.Nodes = append(f.Nodes, nodes[at])
			}
		}
		if len(f.Nodes) == before {
			return
		}
	}
}

// byVectors processes n elements, a positive multiple of 16. On AVX-512 it first interleaves calls
// of many, each for some elements, while enough elements remain; one processes the rest, a vector
// at a time.
func byVectors(c *build.Context, w width, at, n reg.GPVirtual, times, some int, many, one func(i int)) {
	c.XORQ(at, at)
	if w.lanes == 16 {
		end := c.GP64()
		c.MOVQ(n, end)
		c.SUBQ(operand.U32(uint32(times*some)), end)
		c.JLT(operand.LabelRef("few"))
		c.Label("many")
		inTurns(c, times, func(i int) { many(i * some) })
		c.ADDQ(operand.U32(uint32(times*some)), at)
		c.CMPQ(at, end)
		c.JLE(operand.LabelRef("many"))
		c.Label("few")
		c.CMPQ(at, n)
		c.JGE(operand.LabelRef("done"))
	}
	c.Label("loop")
	for i := 0; i < 16; i += w.lanes {
		one(i)
	}
	next16(c, at, n)
	c.Label("done")
}

// logisticConstants are the constants of logistic: polynomials for 2^f, |f| <= 1/2, of minimum
// relative error, 2^-28.5 of degree 6 and 2^-18.1 of degree 4.
var logisticConstants = []constant{float("2", 2),
	float("long1", 0.69314721497), float("long2", 0.24022652783), float("long3", 0.055503105511),
	float("long4", 0.0096176929736), float("long5", 0.0013406643871), float("long6", 0.00015594677893),
	float("short1", 0.69311360455), float("short2", 0.24020711074), float("short3", 0.055976882928), float("short4", 0.0097829121931)}

// logistic returns s = 1/(1+2^z) and the power, of z = n + f, n an integer between -126 and 126 and
// |f| <= 1/2, for a result that is rounded to e. NaN stays NaN.
func logistic(c *build.Context, w width, t *constants, n, f reg.VecVirtual, e elem) (s, power reg.VecVirtual) {
	terms := []string{"long6", "long5", "long4", "long3", "long2", "long1", "1"}
	if e == bf16s {
		terms = []string{"short4", "short3", "short2", "short1", "1"}
	}
	p := t.get(c, w, terms[0])
	for _, k := range terms[1:] {
		c.VFMADD213PS(t.mem(k), f, p)
	}
	sum, r := w.vec(c), w.vec(c)
	if w.lanes == 16 {
		c.VSCALEFPS(n, p, p)
		c.VADDPS(t.mem("1"), p, sum)
		c.VRCP14PS(sum, r) // and a Newton step
		c.VFNMADD213PS(t.mem("2"), r, sum)
		c.VMULPS(sum, r, r)
		return r, p
	}
	c.VCVTPS2DQ(n, n)
	c.VPSLLD(operand.U8(23), n, n)
	c.VPADDD(n, p, p)
	c.VADDPS(t.mem("1"), p, sum)
	c.VDIVPS(sum, t.get(c, w, "1"), r)
	return r, p
}

// split returns z as an integer and the rest, at most 1/2; it changes z.
func split(c *build.Context, w width, z reg.VecVirtual) (n, f reg.VecVirtual) {
	const toEven, quiet = 0, 8
	v := w.vec(c)
	if w.lanes == 16 {
		c.VREDUCEPS(operand.U8(toEven|quiet), z, v)
		c.VSUBPS(v, z, z)
		return z, v
	}
	c.VROUNDPS(operand.U8(toEven|quiet), z, v)
	c.VSUBPS(v, z, z)
	return v, z
}

// elem is a type of elements in memory.
type elem struct {
	name string
	size int // bytes
}

var (
	f32   = elem{"F32", 4}
	bf16s = elem{"BF16", 2}
	f16s  = elem{"F16", 2}
)

// kind returns package device's number of the type.
func (e elem) kind() int { return slices.Index(elems, e) }

// roundConstants are the constants of narrowBF16.
var roundConstants = []constant{{"bit", 1}, {"half", 0x7fff}, {"quiet", 0x400000}}

// widen loads a vector of elements as float32.
func (e elem) widen(c *build.Context, w width, src operand.Mem) reg.VecVirtual {
	v := w.vec(c)
	switch e {
	case f32:
		c.VMOVUPS(src, v)
	case bf16s:
		c.VPMOVZXWD(src, v)
		c.VPSLLD(operand.U8(16), v, v)
	case f16s:
		c.VCVTPH2PS(src, v)
	}
	return v
}

// narrow stores v rounded to elements; t has roundConstants.
func (e elem) narrow(c *build.Context, w width, t *constants, v reg.VecVirtual, dst operand.Mem, stream bool) {
	var r reg.Register = v
	switch e {
	case bf16s:
		r = narrowBF16(c, w, v, t.mem("bit"), t.mem("half"), t.mem("quiet"))
	case f16s:
		r = w.half(w.vec(c))
		c.VCVTPS2PH(operand.U8(0), v, r) // 0: to nearest even
	}
	storeVec(c, r, dst, e.size*w.lanes, stream)
}
