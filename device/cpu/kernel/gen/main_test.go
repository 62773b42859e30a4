package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCommittedFilesMatch checks that the committed assembly is what the generator writes, and that
// there is no other.
func TestCommittedFilesMatch(t *testing.T) {
	dir := t.TempDir()
	if err := generate(dir); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, in := range []string{dir, ".."} {
		for _, pattern := range []string{"*.s", "*_stubs_*.go"} {
			paths, err := filepath.Glob(filepath.Join(in, pattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range paths {
				names[filepath.Base(p)] = true
			}
		}
	}
	for name := range names {
		want, _ := os.ReadFile(filepath.Join(dir, name)) // none differs from any
		got, _ := os.ReadFile(filepath.Join("..", name))
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from what the generator writes: go run -C device/cpu/kernel/gen .", name)
		}
	}
	want := 2 * len(files)
	for _, f := range files {
		if f.neon != nil {
			want += 2
		}
	}
	if len(names) < want {
		t.Errorf("%d files, want %d", len(names), want)
	}
}

// TestAssemblyIsShort limits the assembly so that it can be reviewed: one routine for variants in a
// number or a type, and none for rare cases.
func TestAssemblyIsShort(t *testing.T) {
	const most = 25000
	paths, err := filepath.Glob("../*.s")
	if err != nil || len(paths) < 10 {
		t.Fatalf("%d files of assembly, %v", len(paths), err)
	}
	lines := 0
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		lines += bytes.Count(text, []byte("\n"))
	}
	if lines > most {
		t.Errorf("%d lines of assembly, want at most %d", lines, most)
	}
}

// TestNEONEncodings compares with binutils 2.40.
func TestNEONEncodings(t *testing.T) {
	for want, got := range map[uint32]inst{
		0x4e3fd7a1: fadd.three(1, 29, 31), // fadd v1.4s, v29.4s, v31.4s
		0x4ea3d441: fsub.three(1, 2, 3),
		0x6e23dc41: fmul.three(1, 2, 3),
		0x6e23fc41: fdiv.three(1, 2, 3),
		0x4e23f441: fmax.three(1, 2, 3),
		0x4ea3f441: fmin.three(1, 2, 3),
		0x4e23cc41: fmla.three(1, 2, 3),
		0x4ea3cc41: fmls.three(1, 2, 3),
		0x6ea3e441: fcmgt.three(1, 2, 3),
		0x4e23e441: fcmeq.three(1, 2, 3),
		0x6ea3ec41: facgt.three(1, 2, 3),
		0x6e23d441: faddp.three(1, 2, 3),
		0x4ea38441: addS.three(1, 2, 3),
		0x4e231c41: and.three(1, 2, 3),
		0x4e631c41: bic.three(1, 2, 3),
		0x4ea31c41: orr.three(1, 2, 3),
		0x6e231c41: eor.three(1, 2, 3),
		0x6ea31c41: bit.three(1, 2, 3),
		0x6ee31c41: bif.three(1, 2, 3),
		0x4e832841: trn1S.three(1, 2, 3),
		0x4e836841: trn2S.three(1, 2, 3),
		0x4ec32841: trn1D.three(1, 2, 3),
		0x4ec36841: trn2D.three(1, 2, 3),
		0x4e435841: uzp2H.three(1, 2, 3),
		0x4e63d441: faddD.three(1, 2, 3),
		0x6e63dc41: fmulD.three(1, 2, 3),
		0x4e63cc41: fmlaD.three(1, 2, 3),
		0x6ea1f841: fsqrt.two(1, 2),
		0x6ea0f841: fneg.two(1, 2),
		0x0e217841: fcvtlS.two(1, 2),
		0x4e217841: fcvtl2S.two(1, 2),
		0x0e617841: fcvtlD.two(1, 2),
		0x4e617841: fcvtl2D.two(1, 2),
		0x0e216841: fcvtnH.two(1, 2),
		0x4e216841: fcvtn2H.two(1, 2),
		0x2e613841: shl16(1, 2, false),
		0x6e613841: shl16(1, 2, true),
		0x4f375441: shl(1, 2, 23),
		0x6f300441: ushr(1, 2, 16),
		0x6e30f841: fmaxLanes(1, 2),
		0x7e70d841: addPair(1, 2),
		0x4fa31041: fmlaLane(1, 2, 3, 1),
		0x4fbd1bdf: fmlaLane(31, 30, 29, 3), // fmla v31.4s, v30.4s, v29.s[3]
	} {
		if got.bits != want {
			t.Errorf("%s is %08x, want %08x", got.text, got.bits, want)
		}
	}
}

// TestNEONWordsAreTheirText compares every word in the files with GNU assembler's encoding of the
// text next to it.
func TestNEONWordsAreTheirText(t *testing.T) {
	as, err := exec.LookPath("aarch64-linux-gnu-as")
	if err != nil {
		t.Skip("there is no aarch64-linux-gnu-as; apt-get install binutils-aarch64-linux-gnu")
	}
	words := map[string]uint32{}
	for _, f := range files {
		if f.neon != nil {
			file := newNeonFile(f.name)
			f.neon(file)
			for _, i := range file.instructions {
				words[i.text] = i.bits
			}
		}
	}
	texts := slices.Sorted(maps.Keys(words))
	out := filepath.Join(t.TempDir(), "words.o")
	c := exec.Command(as, "-o", out, "-")
	c.Stdin = strings.NewReader(strings.Join(texts, "\n") + "\n")
	if report, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, report)
	}
	object, err := elf.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer object.Close()
	code, err := object.Section(".text").Data()
	if err != nil {
		t.Fatal(err)
	}
	if len(texts) < 500 || len(code) != 4*len(texts) {
		t.Fatalf("%d bytes of %d instructions", len(code), len(texts))
	}
	for i, text := range texts {
		if want := binary.LittleEndian.Uint32(code[4*i:]); words[text] != want {
			t.Errorf("%s is %08x, want %08x", text, words[text], want)
		}
	}
}

// TestEncodings compares with the disassembly of binutils 2.40.
func TestEncodings(t *testing.T) {
	for want, got := range map[string][]byte{
		"62 02 0e 40 52 dd":             vdpbf16ps(zmm[27], zmm[30], zmm[29]), // vdpbf16ps zmm27, zmm30, zmm29
		"62 12 0e 40 52 cc":             vdpbf16ps(zmm[9], zmm[30], zmm[28]),
		"62 82 0e 40 52 c5":             vdpbf16ps(zmm[16], zmm[30], zmm[29]),
		"c4 e2 7b 4b a4 0e 00 00 00 00": tileLoad(4, rsi, rcx, 0), // tileloadd tmm4, [rsi+rcx]
		"c4 e2 7b 4b ac 0e 00 04 00 00": tileLoad(5, rsi, rcx, 1024),
		"c4 e2 7b 4b bc 1a 40 00 00 00": tileLoad(7, rdx, rbx, 64),
		"c4 e2 7a 4b 9c 0f 40 00 00 00": tileStore(3, rdi, rcx, 64), // tilestored [rdi+rcx+64], tmm3
		"c4 a2 7b 4b 84 0f 00 00 00 00": tileLoad(0, rdi, r9, 0),    // tileloadd tmm0, [rdi+r9]
		"c4 82 7a 4b 9c 0a 40 00 00 00": tileStore(3, r10, r9, 64),  // tilestored [r10+r9+64], tmm3
		"c4 e2 7b 49 d8":                tilezero(3),                // tilezero tmm3
		"62 f2 77 48 72 c0":             vcvtne2ps2bf16(zmm[0], zmm[1], zmm[0]),
		"41 0f 0d 4f 40":                prefetchW(r15, 64), // prefetchw [r15+64]
		"c4 e2 4a 5c c4":                tdpbf16ps(0, 4, 6), // tdpbf16ps tmm0, tmm4, tmm6
		"c4 e2 42 5c cc":                tdpbf16ps(1, 4, 7),
		"c4 e2 4a 5c d5":                tdpbf16ps(2, 5, 6),
		"c4 e2 42 5c dd":                tdpbf16ps(3, 5, 7),
	} {
		if fmt.Sprintf("% x", got) != want {
			t.Errorf("% x, want %s", got, want)
		}
	}
}
