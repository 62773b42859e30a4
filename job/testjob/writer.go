package testjob

import (
	"strings"
	"testing"
	"time"
)

// WriterFunc is a function as an io.Writer.
type WriterFunc func([]byte) (int, error)

// Write calls the function.
func (f WriterFunc) Write(b []byte) (int, error) { return f(b) }

// Soon is what f returns, which may take ten seconds.
func Soon(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("it waits")
		return nil
	}
}

// Spelt is a byte as vocab.json has it.
func Spelt(b byte) string {
	if b == '\n' {
		return "Ċ"
	}
	return strings.ReplaceAll(string(rune(b)), " ", "Ġ")
}
