//go:build !linux

package rendezvous

import "net"

// sameUser accepts all peers: on this system only the permissions of the socket's folder protect
// it.
func sameUser(net.Conn) error { return nil }
