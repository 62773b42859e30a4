//go:build !unix

package main

// ignoreFileSizeSignal does nothing: this system has no such signal.
func ignoreFileSizeSignal() {}
