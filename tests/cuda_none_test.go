//go:build !cuda

package tests

import "testing"

func runOn(m *testing.M) int { return m.Run() }
