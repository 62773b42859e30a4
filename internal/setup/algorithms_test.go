package setup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zeroth/device/cuda/driver"
)

// TestAlgorithms checks that a file of algorithms reads back unchanged, packed or not, and that
// other files are rejected.
func TestAlgorithms(t *testing.T) {
	a := &Algorithms{GPU: "NVIDIA H200", CUBLAS: "13.0.2", Products: []Product{
		{Gemm: driver.Gemm{M: 8, N: 16, K: 32, LdA: 8, Epilogue: driver.Bias, TransA: true}, Algorithm: driver.Algorithm{1 << 63, 2}, Config: "algorithm 67", By: driver.ByTable, Seconds: 1e-5},
		{Gemm: driver.Gemm{M: 9}, By: driver.ByCUBLAS},
	}}
	read, err := ParseAlgorithms(a.JSON())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(a, read); d != "" {
		t.Error(d)
	}
	if read, err = Unpacked(a.Packed()); err != nil || cmp.Diff(a, read) != "" {
		t.Errorf("unpacked: %v, %v", read, err)
	}
	if got := a.Table(); len(got) != 1 || got[a.Products[0].Gemm] != a.Products[0].Algorithm && got[a.Products[1].Gemm] != a.Products[1].Algorithm {
		t.Errorf("the table is %v", got)
	}
	for _, text := range []string{"", "[]", "{}", `{"gpu": "a"}`, `{"gpu": "a", "cublas": "b", "more": 1}`} {
		if _, err := ParseAlgorithms([]byte(text)); err == nil || !strings.Contains(err.Error(), "not a file of algorithms") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
