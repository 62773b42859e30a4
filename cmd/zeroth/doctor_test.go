package main

import (
	"strings"
	"testing"
)

func TestDoctor(t *testing.T) {
	out, errs := zeroth(t, 0, "doctor")
	for _, want := range []string{"machine  ", " processors", "kernels  ", "gpus     "} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor says\n%s%s\nwithout %q", out, errs, want)
		}
	}
	zeroth(t, 2, "doctor", "--now")
}
