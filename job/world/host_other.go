//go:build !linux

package world

// bootID is not known.
func bootID() string { return "" }

// sees is not known.
func sees(string) []string { return nil }
