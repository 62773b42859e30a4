//go:build cuda

package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"zeroth/device"
)

// dump writes the details of a failed comparison to the folder named by ZEROTH_DUMP, if set:
// operand k of got with its first wrong element at; all operands around that position, before the
// operation, expected and actual; and the expected and actual bytes of the wrong operand. The
// seed determines the operands, so the test can reproduce everything else on any machine.
func dump(t *testing.T, seed uint64, got, want *bench, k, at int) {
	dir := os.Getenv("ZEROTH_DUMP")
	if dir == "" {
		return
	}
	o := got.all[k]
	var text strings.Builder
	fmt.Fprintf(&text, "%s, seed %d: %s (%v): element (%d, %d) of (%d, %d) is the first wrong one\n", t.Name(), seed, o.what, o.Buf.Type, at/o.Cols, at%o.Cols, o.Rows, o.Cols)
	for i, x := range got.all {
		around(&text, x, want.all[i], at/o.Cols, at%o.Cols)
	}
	name := filepath.Join(dir, strings.NewReplacer("/", ".", " ", "-").Replace(t.Name()))
	for suffix, data := range map[string][]byte{".txt": []byte(text.String()), ".is.bin": o.Buf.Raw(), ".want.bin": want.all[k].Buf.Raw()} {
		if err := os.WriteFile(name+suffix, data[:min(len(data), 1<<20)], 0o666); err != nil {
			t.Log(err)
		}
	}
}

// around writes the elements of an operand near a row and a column, and how many elements differ.
func around(text *strings.Builder, is, want *operand, row, col int) {
	switch is.Buf.Type {
	case device.F32, device.BF16, device.F16, device.F64, device.I32:
	default: // single elements of coded blocks and exact sums are meaningless
		fmt.Fprintf(text, "\n%s: %v, %d elements\n", is.what, is.Buf.Type, is.Buf.N)
		return
	}
	n, wrong := is.Rows*is.Cols, 0
	for i := range n {
		if is.at(i) != want.at(i) {
			wrong++
		}
	}
	fmt.Fprintf(text, "\n%s: %v (%d, %d), rows %d apart, address %d of 256; %d of %d elements differ at all\n", is.what, is.Buf.Type, is.Rows, is.Cols, is.Ld, uintptr(is.Buf.Ptr)%256, wrong, n)
	first := max(0, min(row, is.Rows-1)*is.Cols+min(col, is.Cols-1)-16)
	before := *is
	before.Buf.Ptr = unsafe.Pointer(unsafe.SliceData(is.before))
	for i := first; i < min(n, first+48); i++ {
		fmt.Fprintf(text, "  (%d, %d): before %.9g, want %.9g, is %.9g\n", i/is.Cols, i%is.Cols, before.at(i), want.at(i), is.at(i))
	}
}
