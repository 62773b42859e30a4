package tokenizer

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// used returns the processor seconds of this process.
func used(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// BenchmarkEncode encodes text.txt of ZEROTH_TOKENIZERS. On a machine with other work, compare
// MB/cpu-s.
func BenchmarkEncode(b *testing.B) {
	text, err := os.ReadFile(filepath.Join(os.Getenv("ZEROTH_TOKENIZERS"), "text.txt"))
	if err != nil {
		b.Skip(err)
	}
	real(b, func(name, _ string, tok *Tokenizer) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			from := used(b)
			for b.Loop() {
				tok.Encode(text)
			}
			b.ReportMetric(float64(b.N*len(text))/1e6/(used(b)-from), "MB/cpu-s")
		})
	})
}
