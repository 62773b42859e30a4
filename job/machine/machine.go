package machine

// Memory is what a process may take, bytes.
type Memory struct {
	Free  int64  // now; 0 where the system does not tell
	Total int64  // if nobody else took any, swap included; 0 alike
	Limit string // who says so: "this machine"
}

// Cores is what a process may compute with.
type Cores struct {
	Bound int     // processors it may run on; 0 where the system does not tell
	Quota float64 // processors' worth of time its control groups give; 0: no bound
	Limit string  // the control group that says so; empty without a quota
}

// Unlimited is a bound that is none.
const Unlimited = ^uint64(0)

// Bounds are those of a process, as ulimit(1) sets them: the soft ones, which hold.
// 0 is a bound that the system does not tell.
type Bounds struct {
	Files   uint64 // open at once
	Address uint64 // bytes of address space
	Locked  uint64 // bytes that may be locked in memory
	File    uint64 // bytes of a file
}
