package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The committed assembly is what the generator writes.
func TestCommittedFilesMatch(t *testing.T) {
	dir := t.TempDir()
	for _, f := range files {
		if err := generate(dir, f.name, f.body); err != nil {
			t.Fatal(err)
		}
		for _, suffix := range []string{"_amd64.s", "_stubs_amd64.go"} {
			want, err := os.ReadFile(filepath.Join(dir, f.name+suffix))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join("..", f.name+suffix))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs from what the generator writes: go run -C device/cpu/asm .", f.name+suffix)
			}
		}
	}
}

// What binutils 2.40 disassembles these bytes as.
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
