package config

import (
	"testing"
)

func TestAtHome(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	for in, want := range map[string]string{
		"~": "/home/me", "~/a b": "/home/me/a b", "~/": "/home/me", "": "", "a/~": "a/~", "./~": "./~", "/~/a": "/~/a",
		"~you/a": "", "~~": "",
	} {
		got, err := AtHome(in)
		if got != want || (err == nil) != (want != "" || in == "") {
			t.Errorf("%q is %q (%v), want %q", in, got, err, want)
		}
	}
	t.Setenv("HOME", "")
	if got, err := AtHome("~/a"); err == nil {
		t.Errorf("without a home %q", got)
	}
}
