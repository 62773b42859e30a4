package setup

import (
	"iter"

	"zeroth/collective"
)

// QueueRole is the purpose of one of a rank's queues.
type QueueRole uint8

// The queues of a rank, in the order in which they are opened and shown.
const (
	Compute    QueueRole = iota // modules
	Comm                        // collectives of units
	Update                      // updates of state on the device
	HostUpdate                  // updates of state in host memory
	ToHost                      // copies of offloaded state and activations
	ToDevice
	Read // the file of state on disk
	Write
	Links                                               // the first of a pipeline's links, which have the order of collective.Link
	Save  = Links + QueueRole(collective.PipelineLinks) // checkpoints during training; not among Queues
)

// LinkQueue returns the role of the queue of a pipeline's link.
func LinkQueue(l collective.Link) QueueRole { return Links + QueueRole(l) }

// IsLink reports whether a queue belongs to a pipeline's link.
func (r QueueRole) IsLink() bool { return r >= Links && r < Save }

// Offloads reports whether a queue moves or updates offloaded state.
func (r QueueRole) Offloads() bool { return r >= HostUpdate && r < Links }

// String returns the name of the queue in traces.
func (r QueueRole) String() string {
	return [...]string{
		"compute", "comm", "update", "host", "to host", "to device", "read", "write",
		"to next", "from previous", "to previous", "from next", "save",
	}[r]
}

// Queues are a rank's queues by role, nil where the job has none.
type Queues [Save]Queue

// All yields the queues that the job has.
func (q *Queues) All() iter.Seq2[QueueRole, Queue] {
	return func(yield func(QueueRole, Queue) bool) {
		for role, q := range q {
			if q != nil && !yield(QueueRole(role), q) {
				return
			}
		}
	}
}
