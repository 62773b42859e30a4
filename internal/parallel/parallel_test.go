package parallel_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"zeroth/internal/parallel"
)

// TestFor checks that all calls are made by as many goroutines as asked for, at most, and that none begins
// after an error or the end of the context.
func TestFor(t *testing.T) {
	wrong, stopped := errors.New("wrong"), errors.New("stopped")
	for _, workers := range []int{0, 1, 3, 100} {
		var calls [50]atomic.Int32
		var now, most atomic.Int32
		err := parallel.For(context.Background(), len(calls), workers, func(_ context.Context, i int) error {
			for n := now.Add(1); n > most.Load(); {
				most.Store(n)
			}
			calls[i].Add(1)
			now.Add(-1)
			return nil
		})
		for i := range calls {
			if n := calls[i].Load(); n != 1 || err != nil {
				t.Errorf("%d workers: %d calls of %d, %v", workers, n, i, err)
			}
		}
		if n := int(most.Load()); workers > 0 && n > workers {
			t.Errorf("%d workers: %d calls at once", workers, n)
		}
	}
	for _, at := range []int{0, 7, 49} {
		last := -1
		err := parallel.For(context.Background(), 50, 1, func(ctx context.Context, i int) error {
			if last = i; i == at {
				return wrong
			}
			return nil
		})
		if err != wrong || last != at {
			t.Errorf("%v after call %d, want call %d", err, last, at)
		}
		ctx, stop := context.WithCancelCause(context.Background())
		if err := parallel.For(ctx, 50, 1, func(_ context.Context, i int) error {
			if last = i; i == at {
				stop(stopped)
			}
			return nil
		}); err != stopped || last != at {
			t.Errorf("%v after call %d, want call %d", err, last, at)
		}
	}
	err := parallel.For(context.Background(), 2, 2, func(ctx context.Context, i int) error {
		if i == 0 {
			return wrong
		}
		<-ctx.Done() // else the test hangs
		return nil
	})
	if err != wrong {
		t.Error(err)
	}
}
