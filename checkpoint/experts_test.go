package checkpoint

import (
	"fmt"
	"testing"
	"time"

	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/tests/nightly"
)

// TestManyTensors saves, opens, checks and reads the tensors of 128 experts in each layer, with two moments, on other
// ranks: 51,840 of 45 layers, by default those of 5. It prints how long each takes.
func TestManyTensors(t *testing.T) {
	nightly.Long(t)
	m := &model{data: map[key][]byte{}, state: "{}"}
	layers := nightly.Of(5, 45)
	for layer := range layers {
		for i := range 3 * 128 {
			name := fmt.Sprintf("model.layers.%d.mlp.experts.%d.%s_proj.weight", layer, i/3, []string{"gate", "up", "down"}[i%3])
			for k, kind := range []string{Master, "exp_avg", "exp_avg_sq"} {
				x := Tensor{name, kind, F32, []int{4, 3}}
				m.tensors = append(m.tensors, x)
				m.data[x.key()] = encoded(gauss(12, 0.02, uint64(layer<<16|i<<2|k)), F32)
			}
		}
	}
	byKey(m.tensors)
	fsys, began := &vfstest.Mem{}, time.Now()
	took := func(what string) {
		t.Logf("%s: %v", what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	path, err := m.save(fsys, "/c", 1, 4, 0, Options{})
	must(t, err)
	took("saved by 4 ranks")
	c, err := OpenIn(fsys, path)
	must(t, err)
	defer c.Close()
	took("opened")
	if len(c.Tensors) != layers*128*9 {
		t.Errorf("%d tensors", len(c.Tensors))
	}
	for _, world := range []int{3, 1} {
		must(t, m.readBy(c, world, 0))
		took(fmt.Sprintf("read by %d ranks", world))
	}
	must(t, m.holds(fsys, path))
	took("verified")
}
