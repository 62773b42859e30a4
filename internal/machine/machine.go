package machine

// Memory is the memory that a process may use, in bytes.
type Memory struct {
	Free  int64  // available now; 0 if unknown
	Total int64  // available without other processes, including swap; 0 if unknown
	Limit string // what imposes the limit: "this machine" or a control group
}

// Cores describes the processors that a process may use.
type Cores struct {
	Bound int     // number of processors it may run on; 0 if unknown
	Quota float64 // processor time allowed by its control groups, in processors; 0 if unlimited
	Limit string  // the control group with the quota; "" without one
}

// Unlimited is the value of a missing limit.
const Unlimited = ^uint64(0)

// Bounds are the soft limits of a process, as set by ulimit(1). 0 means unknown.
type Bounds struct {
	Files   uint64 // open files
	Address uint64 // bytes of address space
	Locked  uint64 // bytes that may be locked in memory
	File    uint64 // bytes of a file
}
