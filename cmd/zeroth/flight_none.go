//go:build !unix

package main

import "os"

// dumpSignals is empty: this system has no signal that asks for dumps.
var dumpSignals []os.Signal
