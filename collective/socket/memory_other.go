//go:build !linux

package socket

import (
	"errors"
	"net"

	"zeroth/device"
)

// Memory is shared memory, which is unsupported on this system.
type Memory struct{ Least int }

// NewMemory returns an error.
func NewMemory() (*Memory, error) { return nil, errors.New("shared memory: only on Linux") }

// Take allocates private memory.
func (*Memory) Take(bytes int) ([]byte, error) {
	return device.OfF64(make([]float64, (bytes+7)/8)).Raw()[:bytes], nil
}

// Give does nothing.
func (*Memory) Give([]byte) {}

// Close does nothing.
func (*Memory) Close() error            { return nil }
func (*Memory) at([]byte) (int64, bool) { return 0, false }
func (*Memory) pass(net.Conn) bool      { return false }
func (*link) meet() error               { return nil }

type peerMemory struct{}

func (*peerMemory) any() bool                     { return false }
func (*peerMemory) at(int64, int) ([]byte, error) { return nil, nil }
func (*peerMemory) close()                        {}
