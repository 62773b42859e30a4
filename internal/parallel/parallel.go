// Package parallel runs independent pieces of work at the same time.
package parallel

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// For calls f for 0 to n-1, in ascending order, from the given number of goroutines (0: one per
// processor), and waits for them. No call begins after one has failed or ctx has ended; the context of
// those that run ends, too. For returns the first error, or the cause of the end of ctx.
func For(ctx context.Context, n, workers int, f func(ctx context.Context, i int) error) error {
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(n, workers) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
