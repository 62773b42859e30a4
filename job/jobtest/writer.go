package jobtest

import (
	"strings"
	"testing"
	"time"
)

// WriterFunc is a function as an io.Writer.
type WriterFunc func([]byte) (int, error)

// Write calls the function.
func (f WriterFunc) Write(b []byte) (int, error) { return f(b) }

// Soon returns the result of f, waiting up to ten seconds for it.
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

// Spelt returns a byte as it is written in vocab.json.
func Spelt(b byte) string {
	if b == '\n' {
		return "Ċ"
	}
	return strings.ReplaceAll(string(rune(b)), " ", "Ġ")
}
