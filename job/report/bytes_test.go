package report

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestBytesLines(t *testing.T) {
	var out bytes.Buffer
	b := NewBytes(&out, "verify", 3e9)
	b.Add(1e9)
	if out.Len() > 0 {
		t.Errorf("a line at once: %s", &out)
	}
	b.begin, b.next = time.Now().Add(-4*time.Second), time.Now().Add(-time.Second)
	b.Add(1e9)
	b.Add(1e8)
	if got := out.String(); got != "verify: 2.0 GB / 3.0 GB, 0.50 GB/s\n" {
		t.Errorf("got %q", got)
	}
	if got := b.Close(); got != "2.1 GB in 4.0s, 0.52 GB/s" {
		t.Errorf("at the end %q", got)
	}
}

func TestBytesBar(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	w := new(locked)
	b := newBytesBar(w, "verify", 3e9)
	b.begin = time.Now().Add(-2 * time.Second)
	b.Add(1500e6)
	for range 100 { // until it is drawn
		if strings.Contains(w.String(), "GB/s") {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if got := w.String(); !strings.Contains(got, "verify 1.5 GB / 3.0 GB [") || !strings.Contains(got, "] 0.") {
		t.Errorf("drawn: %q", got)
	}
	if got := b.Close(); !strings.HasPrefix(got, "1.5 GB in 2.") {
		t.Errorf("at the end %q", got)
	}
}
