package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"zeroth/checkpoint/vfs"
	"zeroth/shard"
)

// model is the complete state of a training run, as on one machine.
type model struct {
	tensors []Tensor
	data    map[key][]byte
	state   string

	shares bool   // parameters are saved to a base folder
	base   string // folder that contains them; "" if the next save writes one
}

// shared returns the tensors that the model saves to a base folder, and own returns the others.
func (m *model) shared() (some []Tensor) {
	for _, t := range m.tensors {
		if m.shares && t.Kind == Master {
			some = append(some, t)
		}
	}
	return some
}

func (m *model) own() []Tensor {
	shared := m.shared()
	return slices.DeleteFunc(slices.Clone(m.tensors), func(t Tensor) bool {
		return slices.ContainsFunc(shared, func(s Tensor) bool { return s.key() == t.key() })
	})
}

var shapes = map[string][]int{
	"wte.weight": {50, 33}, "h.0.attn.c_attn.weight": {33, 99}, "h.0.ln_1.bias": {33},
	"h.0.mlp.c_fc.weight": {33, 132}, "ln_f.weight": {33}, "scalar": {}, "empty": {0, 4},
}

// newModel returns a small model with optimizer state, different for each seed.
func newModel(seed uint64) *model {
	m := &model{data: map[key][]byte{}, state: fmt.Sprintf(`{"seed": %d}`, seed)}
	for i, name := range slices.Sorted(maps.Keys(shapes)) {
		for k, kind := range []string{Master, "m", "v"} {
			t := Tensor{name, kind, F32, shapes[name]}
			m.tensors = append(m.tensors, t)
			m.data[t.key()] = encoded(gauss(t.Numel(), 0.02, seed*1000+uint64(10*i+k)), F32)
		}
	}
	byKey(m.tensors)
	return m
}

// bigModel returns a model with one tensor of n elements per kind.
func bigModel(n int, kinds ...string) *model {
	m := &model{data: map[key][]byte{}}
	for i, kind := range kinds {
		t := Tensor{"w", kind, F32, []int{n}}
		m.tensors = append(m.tensors, t)
		m.data[t.key()] = encoded(gauss(n, 0.02, uint64(i)), F32)
	}
	return m
}

// layout returns the layout of the ranks' shards in the model; all kinds are divided alike.
func (m *model) layout(world int) *shard.Layout {
	var ps []shard.Param
	for _, t := range m.tensors {
		if t.Kind == Master {
			ps = append(ps, shard.Param{Name: t.Name, Shape: t.Shape})
		}
	}
	return shard.Lay(ps, world, 4, 1)
}

// put saves the share of a rank: at stage 0 all ranks have everything and divide the work;
// from stage 1 on each has its shard.
func (m *model) put(w *Writer, rank, world, stage int) error {
	return m.putSome(m.tensors, w, rank, world, stage)
}

func (m *model) putSome(some []Tensor, w *Writer, rank, world, stage int) error {
	for _, t := range some {
		for _, r := range m.owns(t, rank, world, stage) {
			b := m.data[t.key()][4*r.Lo : 4*r.Hi]
			if err := w.Put(t, r, b, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// owns returns the elements of a tensor that a rank writes.
func (m *model) owns(t Tensor, rank, world, stage int) (out []shard.Range) {
	if stage == 0 { // replicas take turns
		n := t.Numel()
		return []shard.Range{{Lo: n * rank / world, Hi: n * (rank + 1) / world}}
	}
	l := m.layout(world)
	for p := range l.Pieces(rank) {
		if l.Params[p.Param].Name == t.Name {
			out = append(out, p.InParam)
		}
	}
	return out
}

// save saves from the given number of ranks, each a goroutine.
func (m *model) save(fsys vfs.FS, root string, step int64, world, stage int, opt Options) (string, error) {
	opt.FS = fsys
	g := newGather(world)
	paths, errs := make([]string, world), make([]error, world)
	for r := 1; r < world; r++ {
		g.wg.Go(func() { paths[r], errs[r] = m.saveRank(g.rank(r), root, step, stage, opt) })
	}
	paths[0], errs[0] = m.saveRank(g.rank(0), root, step, stage, opt)
	g.wg.Wait()
	for r := range errs {
		if (errs[r] == nil) != (errs[0] == nil) || paths[r] != paths[0] {
			panic(fmt.Sprintf("ranks disagree: %q, %v and %q, %v", paths[0], errs[0], paths[r], errs[r]))
		}
	}
	if m.shares && errs[0] == nil {
		man, err := readManifest(fsys, paths[0])
		if err != nil {
			return "", err
		}
		m.base = man.Base
	}
	return paths[0], errs[0]
}

func (m *model) saveRank(r Rank, root string, step int64, stage int, opt Options) (string, error) {
	base := m.base
	if m.shares && base == "" {
		path, err := r.Together(root, step, opt,
			func(w *Writer) error { return m.putSome(m.shared(), w, r.Rank, r.World, stage) },
			func() (Commit, error) { return Commit{Tensors: m.shared(), AsBase: true}, nil })
		if err != nil {
			return "", err
		}
		base = filepath.Base(path)
	}
	return r.Together(root, step, opt,
		func(w *Writer) error { return m.putSome(m.own(), w, r.Rank, r.World, stage) },
		func() (Commit, error) {
			return Commit{Tensors: m.own(), State: []byte(m.state), Base: base}, nil
		})
}

// mustSave is like save, but fails the test on an error.
func (m *model) mustSave(t testing.TB, fsys vfs.FS, root string, step int64, world int, opt Options) string {
	t.Helper()
	path, err := m.save(fsys, root, step, world, 3, opt)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// equals checks that a checkpoint contains exactly the model.
func (m *model) equals(c *Checkpoint) error {
	if string(c.State) != m.state {
		return fmt.Errorf("state %s, want %s", c.State, m.state)
	}
	if len(c.Tensors) != len(m.tensors) {
		return fmt.Errorf("%d tensors, want %d", len(c.Tensors), len(m.tensors))
	}
	for _, t := range m.tensors {
		got := make([]byte, t.Bytes())
		if err := c.Read(t.Name, t.Kind, shard.Range{Hi: t.Numel()}, got); err != nil {
			return err
		}
		if !bytes.Equal(got, m.data[t.key()]) {
			return fmt.Errorf("%v differs", t)
		}
	}
	return nil
}

// holds opens a checkpoint, verifies it, and checks that it equals the model to the last bit.
func (m *model) holds(fsys vfs.FS, path string) error {
	c, err := OpenIn(fsys, path)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := m.equals(c); err != nil {
		return err
	}
	bad, err := Verify(context.Background(), path, Walk{FS: fsys, Workers: 1})
	if err != nil || len(bad) > 0 {
		return fmt.Errorf("verify: %v, %v", bad, err)
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
