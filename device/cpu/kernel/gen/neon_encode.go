package main

import "fmt"

// inst is a NEON instruction that Go's assembler does not support, or supports with a different
// name and order of operands: its text for GNU's assembler, and its 32 bits.
type inst struct {
	text string
	bits uint32
}

// form is an instruction on registers: its name, the notation of registers, and its bits if all of
// them are 0.
type form struct {
	name  string
	shape string // of the destination
	bits  uint32
	from  string // shape of the sources, if different
}

func (f form) sources() string {
	if f.from != "" {
		return f.from
	}
	return f.shape
}

// The forms in use; see the Arm Architecture Reference Manual, C7.2.
var (
	fadd  = form{"fadd", "4s", 0x4e20d400, ""}
	fsub  = form{"fsub", "4s", 0x4ea0d400, ""}
	fmul  = form{"fmul", "4s", 0x6e20dc00, ""}
	fdiv  = form{"fdiv", "4s", 0x6e20fc00, ""}
	fmax  = form{"fmax", "4s", 0x4e20f400, ""} // NaN if one is
	fmin  = form{"fmin", "4s", 0x4ea0f400, ""} // NaN if one is
	fmla  = form{"fmla", "4s", 0x4e20cc00, ""} // d += n*m in one rounding
	fmls  = form{"fmls", "4s", 0x4ea0cc00, ""} // d -= n*m
	fcmgt = form{"fcmgt", "4s", 0x6ea0e400, ""}
	fcmeq = form{"fcmeq", "4s", 0x4e20e400, ""}
	facgt = form{"facgt", "4s", 0x6ea0ec00, ""} // of absolute values
	faddp = form{"faddp", "4s", 0x6e20d400, ""} // neighbours of n, then those of m
	addS  = form{"add", "4s", 0x4ea08400, ""}

	and = form{"and", "16b", 0x4e201c00, ""}
	bic = form{"bic", "16b", 0x4e601c00, ""} // n and not m
	orr = form{"orr", "16b", 0x4ea01c00, ""}
	eor = form{"eor", "16b", 0x6e201c00, ""}
	bit = form{"bit", "16b", 0x6ea01c00, ""} // d takes n where m is set
	bif = form{"bif", "16b", 0x6ee01c00, ""} // d takes n where m is not set

	trn1S = form{"trn1", "4s", 0x4e802800, ""}
	trn2S = form{"trn2", "4s", 0x4e806800, ""}
	trn1D = form{"trn1", "2d", 0x4ec02800, ""}
	trn2D = form{"trn2", "2d", 0x4ec06800, ""}
	uzp2H = form{"uzp2", "8h", 0x4e405800, ""} // the odd of n, then those of m

	faddD = form{"fadd", "2d", 0x4e60d400, ""}
	fmulD = form{"fmul", "2d", 0x6e60dc00, ""}
	fmlaD = form{"fmla", "2d", 0x4e60cc00, ""}

	fsqrt = form{"fsqrt", "4s", 0x6ea1f800, ""}
	fneg  = form{"fneg", "4s", 0x6ea0f800, ""}

	fcvtlS  = form{"fcvtl", "4s", 0x0e217800, "4h"} // the lower half of n
	fcvtl2S = form{"fcvtl2", "4s", 0x4e217800, "8h"}
	fcvtlD  = form{"fcvtl", "2d", 0x0e617800, "2s"}
	fcvtl2D = form{"fcvtl2", "2d", 0x4e617800, "4s"}
	fcvtnH  = form{"fcvtn", "4h", 0x0e216800, "4s"}
	fcvtn2H = form{"fcvtn2", "8h", 0x4e216800, "4s"} // into the upper half of d
)

// three encodes a destination and two sources.
func (f form) three(d, n, m vreg) inst {
	return inst{fmt.Sprintf("%s v%d.%s, v%d.%s, v%d.%s", f.name, d, f.shape, n, f.sources(), m, f.sources()),
		f.bits | uint32(m)<<16 | uint32(n)<<5 | uint32(d)}
}

// two encodes a destination and a source.
func (f form) two(d, n vreg) inst {
	return inst{fmt.Sprintf("%s v%d.%s, v%d.%s", f.name, d, f.shape, n, f.sources()), f.bits | uint32(n)<<5 | uint32(d)}
}

// fmlaLane adds the product of n and lane i of m to d.
func fmlaLane(d, n, m vreg, i int) inst {
	return inst{fmt.Sprintf("fmla v%d.4s, v%d.4s, v%d.s[%d]", d, n, m, i),
		0x4f801000 | uint32(i&1)<<21 | uint32(i>>1)<<11 | uint32(m)<<16 | uint32(n)<<5 | uint32(d)}
}

// shl16 moves the lower four halves of n, or the upper, to the upper halves of the lanes of d.
func shl16(d, n vreg, upper bool) inst {
	if upper {
		return inst{fmt.Sprintf("shll2 v%d.4s, v%d.8h, #16", d, n), 0x6e613800 | uint32(n)<<5 | uint32(d)}
	}
	return inst{fmt.Sprintf("shll v%d.4s, v%d.4h, #16", d, n), 0x2e613800 | uint32(n)<<5 | uint32(d)}
}

// shl and ushr shift lanes of 32 bits.
func shl(d, n vreg, by int) inst {
	return inst{fmt.Sprintf("shl v%d.4s, v%d.4s, #%d", d, n, by), 0x4f005400 | uint32(32+by)<<16 | uint32(n)<<5 | uint32(d)}
}

func ushr(d, n vreg, by int) inst {
	return inst{fmt.Sprintf("ushr v%d.4s, v%d.4s, #%d", d, n, by), 0x6f000400 | uint32(64-by)<<16 | uint32(n)<<5 | uint32(d)}
}

// fmaxLanes sets d to the largest lane of n; addPair to the sum of its two float64.
func fmaxLanes(d, n vreg) inst {
	return inst{fmt.Sprintf("fmaxv s%d, v%d.4s", d, n), 0x6e30f800 | uint32(n)<<5 | uint32(d)}
}

func addPair(d, n vreg) inst {
	return inst{fmt.Sprintf("faddp d%d, v%d.2d", d, n), 0x7e70d800 | uint32(n)<<5 | uint32(d)}
}
