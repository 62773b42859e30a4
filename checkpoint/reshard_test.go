package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"zeroth/shard"
)

// Reshard copies the checkpoint to the folder root, divided among the given number of writers.
// It returns the new checkpoint's folder. After
// any error, including the end of ctx, there is no new checkpoint.
func (c *Checkpoint) Reshard(ctx context.Context, root string, writers int, opt Options, progress func(add int64)) (string, error) {
	if writers < 1 {
		return "", fmt.Errorf("reshard: %d writers; want at least 1", writers)
	}
	s, err := Begin(root, c.Step, opt)
	if err != nil {
		return "", err
	}
	defer s.Abort()
	com := Commit{Tensors: c.Tensors, State: c.State, Metrics: c.Metrics}
	for i := range writers {
		w := s.Writer(i)
		if err := c.share(ctx, w, i, writers, progress); err != nil {
			return "", fmt.Errorf("reshard: %w", errors.Join(err, w.Abort()))
		}
		p, err := w.Finish()
		if err != nil {
			return "", fmt.Errorf("reshard: %w", err)
		}
		com.Parts = append(com.Parts, p)
	}
	return s.Commit(com)
}

// share puts share i of n equal shares of each tensor.
func (c *Checkpoint) share(ctx context.Context, w *Writer, i, n int, progress func(int64)) error {
	p := newPump(ctx, w, progress)
	for _, t := range c.Tensors {
		e := t.Numel()
		r := shard.Range{Lo: e/n*i + min(i, e%n), Hi: e/n*(i+1) + min(i+1, e%n)}
		err := p.run(t, r, func(r shard.Range, _ []float32, b []byte) error { return c.Read(t.Name, t.Kind, r, b) })
		if err != nil {
			return err
		}
	}
	return nil
}

// Verdicts returns the decision for each kind, for reporting after a save.
func (t *Tuner) Verdicts() []Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.measure()
	var out []Verdict
	for id, k := range t.kinds {
		v := t.verdict(k)
		v.Kind, v.DType = id.kind, id.dtype
		out = append(out, v)
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].Kind+string(out[i].DType) < out[j].Kind+string(out[j].DType)
	})
	return out
}
