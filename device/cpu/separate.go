package cpu

import (
	"fmt"

	"zeroth/device"
)

// address makes a task's operands addressable for its kernel, where New's memory
// is separate. They must be the queue's own device's: only a copy goes from one
// memory to another.
func (q *Queue) address(t *task) {
	for i := range t.b {
		q.addressBuffer(t, &t.b[i])
	}
	for i := range t.m {
		q.addressBuffer(t, &t.m[i].Buf)
	}
	g := &t.gemm
	for _, b := range []*device.Buffer{&g.c.Buf, &g.a.Buf, &g.b.Buf, &g.bias} {
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

// raw is the bytes of a buffer, for a kernel.
func raw(b device.Buffer) []byte {
	b.Host = true
	return b.Raw()
}
