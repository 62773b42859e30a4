package cpu

import (
	"fmt"

	"zeroth/device"
)

// address makes a task's operands addressable for its kernel if New's memory is separate. They must
// belong to the queue's device: only copies may access other memory.
func (q *Queue) address(t *task) {
	for i := range t.B {
		q.addressBuffer(t, &t.B[i])
	}
	for i := range t.M {
		q.addressBuffer(t, &t.M[i].Buf)
	}
	g := &t.Gemm
	for _, b := range []*device.Buffer{&g.C.Buf, &g.A.Buf, &g.B.Buf, &g.Bias} {
		q.addressBuffer(t, b)
	}
}

func (q *Queue) addressBuffer(t *task, b *device.Buffer) {
	if b.N == 0 {
		return
	}
	if b.Host != q.w.dev.host && t.name != copying {
		panic(fmt.Sprintf("cpu: %s for %q on queue %s of memory that is not its device's", t.name, t.label, q.name))
	}
	b.Host = true
}
