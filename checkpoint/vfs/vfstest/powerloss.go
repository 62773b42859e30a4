package vfstest

// Outcome is the fate of a change that was not durable before a power loss.
type Outcome uint8

const (
	Lost Outcome = iota
	Torn         // the first half of a write survives, and nothing of a name
	Kept
)

// Change is a change that was not durable before a power loss.
type Change struct {
	Index int  // in the log
	Name  bool // a name in a folder; otherwise the content of a file
}

// Ops returns the number of operations that have changed the file system.
func (m *Mem) Ops() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.log)
}

// AfterPowerLoss returns a file system as the disk might be if power failed after the first n
// operations. Everything synced survives; each other change survives or not as determined by
// outcome, in any combination, because POSIX guarantees no order between them.
func (m *Mem) AfterPowerLoss(n int, outcome func(Change) Outcome) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.init()
	out := &Mem{locks: map[string]bool{}}
	for _, nd := range m.nodes {
		c := &node{dir: nd.dir}
		if nd.dir {
			c.kids = map[string]int{}
		}
		out.nodes = append(out.nodes, c)
	}
	safe := durable(m.log[:n])
	for i, o := range m.log[:n] {
		if o.kind == opSync || o.kind == opSyncDir {
			continue
		}
		f := Kept
		if !safe[i] {
			f = outcome(Change{i, o.kind != opWrite})
		}
		switch {
		case f == Kept:
			out.apply(o)
		case f == Torn && o.kind == opWrite:
			o.data = o.data[:len(o.data)/2]
			out.apply(o)
		}
	}
	return out
}

// durable reports which operations are covered by a later sync of the same file or folder. A
// rename between folders needs both.
func durable(log []op) []bool {
	safe := make([]bool, len(log))
	synced := map[int]bool{} // by node, walking back from the end
	for i := len(log) - 1; i >= 0; i-- {
		switch o := log[i]; o.kind {
		case opSync, opSyncDir:
			synced[o.node] = true
		case opWrite:
			safe[i] = synced[o.node]
		case opRename:
			safe[i] = synced[o.dir] && synced[o.dir2]
		default:
			safe[i] = synced[o.dir]
		}
	}
	return safe
}
