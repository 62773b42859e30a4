package machine

// Memory is what a process may take, bytes.
type Memory struct {
	Free  int64  // now; 0 where the system does not tell
	Total int64  // if nobody else took any, swap included; 0 alike
	Limit string // who says so: "this machine"
}
