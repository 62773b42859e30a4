//go:build !unix

package main

import "os"

// dumpSignals ask for dumps of what ranks did last; there are none here.
var dumpSignals []os.Signal
