//go:build !unix

package launch

import (
	"os"
	"syscall"
)

// wake does nothing: this system has no signal that continues a process.
const wake = syscall.Signal(0)

// DumpSignals is empty: this system has no signal that asks for dumps.
var DumpSignals []os.Signal

// ownGroup returns nil: this system has no process groups.
func ownGroup() *syscall.SysProcAttr { return nil }

// endingSignal returns 0: no signal ends a process on this system.
func endingSignal(*os.ProcessState) int { return 0 }
