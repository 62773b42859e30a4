package world_test

import (
	"net"
	"strings"
	"testing"

	"zeroth/collective/rendezvous"
	"zeroth/internal/world"
)

// loopback returns the name of this host's loopback interface.
func loopback(t *testing.T) string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 && i.Flags&net.FlagUp != 0 {
			return i.Name
		}
	}
	t.Skip("no loopback interface")
	return ""
}

// TestBindAddress checks that an address, a network or an interface selects an address of this
// host, and that an error lists the available ones.
func TestBindAddress(t *testing.T) {
	lo := loopback(t)
	for _, c := range []struct{ bind, process0, want string }{
		{"", "127.0.0.1", ""},
		{"192.0.2.7", "127.0.0.1", "192.0.2.7"}, // another process's port: the listener reports it
		{lo, "", "127.0.0.1"},
		{lo, "10.0.0.1", "127.0.0.1"},
		{"127.0.0.0/8", "127.0.0.1", "127.0.0.1"},
		{"127.0.0.99/8", "node0", "127.0.0.1"},
		{"localhost", "node0", "localhost"},
	} {
		if got, err := world.BindAddress(c.bind, c.process0); got != c.want || err != nil {
			t.Errorf("%q, process 0 at %q: %q %v, want %q", c.bind, c.process0, got, err, c.want)
		}
	}
	if ln, err := net.Listen("tcp", "[::1]:0"); err == nil {
		ln.Close()
		if got, err := world.BindAddress(lo, "fd00::1"); got != "::1" || err != nil {
			t.Errorf("%s, process 0 at an address of IPv6: %q %v", lo, got, err)
		}
	}
	for bind, want := range map[string]string{
		"198.51.100.0/24":   "this host has no address in 198.51.100.0/24; its addresses are ",
		"127.0.0.1/99":      "is not a network; want one such as 10.0.0.0/16",
		"no-such.invalid":   "is neither an interface of this host with an address nor a known host",
		"\x1b[31m:29400/24": "is not a network",
	} {
		if got, err := world.BindAddress(bind, ""); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %q %v, want %q", bind, got, err, want)
		}
	}
}

// TestUnreachable checks that a loopback data address is an error if processes run on several
// hosts, but not for containers of one host.
func TestUnreachable(t *testing.T) {
	for name, c := range map[string]struct {
		all  []rendezvous.Member
		want string
	}{
		"one host":           {[]rendezvous.Member{{Boot: "a", TCP: "127.0.0.1:5"}, {Boot: "a", TCP: "127.0.0.1:6"}}, ""},
		"two":                {[]rendezvous.Member{{Host: "h", Boot: "a", TCP: "10.0.0.1:5"}, {Host: "i", Boot: "b", TCP: "127.0.0.1:6"}}, `process 1 on host "i" accepts data connections at 127.0.0.1, a loopback address, which host "h" cannot reach`},
		"two, of IPv6":       {[]rendezvous.Member{{Host: "h", Boot: "a", TCP: "[::1]:5"}, {Host: "i", Boot: "b", TCP: "10.0.0.2:6"}}, `process 0 on host "h"`},
		"two, well":          {[]rendezvous.Member{{Boot: "a", TCP: "10.0.0.1:5"}, {Boot: "b", TCP: "10.0.0.2:6"}}, ""},
		"two, by MPI":        {[]rendezvous.Member{{Boot: "a"}, {Boot: "b"}}, ""},
		"nobody knows which": {[]rendezvous.Member{{TCP: "127.0.0.1:5"}, {TCP: "127.0.0.1:6"}}, ""},
	} {
		if err := world.Unreachable(c.all); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
