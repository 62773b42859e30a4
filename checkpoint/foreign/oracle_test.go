package foreign

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/checkpoint/safetensors"
	"zeroth/shard"
)

// fixtures returns the folders with oracle.safetensors: in testdata and, if ZEROTH_TORCH_FIXTURES
// is set, in that folder.
func fixtures(t *testing.T) (folders []string) {
	t.Helper()
	for _, root := range []string{"testdata", os.Getenv("ZEROTH_TORCH_FIXTURES")} {
		if root == "" {
			continue
		}
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == "oracle.safetensors" {
				folders = append(folders, filepath.Dir(path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return folders
}

// checkpointsIn returns the paths below a fixture that are checkpoints of all its tensors.
func checkpointsIn(folder string) (paths []string) {
	for _, name := range []string{".", "step-3", "sharded", "legacy_not_zip.bin"} {
		if p := filepath.Join(folder, name); Is(p) && !strings.Contains(folder, "save_16bit") {
			paths = append(paths, p)
		}
	}
	return paths
}

// want returns the name and kind in a checkpoint of an oracle's tensor.
func want(key string) (name, kind string) {
	for _, in := range []string{"optim.state.", "optimizer.state.", "state."} {
		if rest, ok := strings.CutPrefix(key, in); ok {
			i := strings.LastIndex(rest, ".")
			return rest[:i], rest[i+1:]
		}
	}
	if kind, name, ok := strings.Cut(key, "/"); ok {
		return name, map[string]string{"fp32": checkpoint.Master, "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}[kind]
	}
	return key, checkpoint.Master
}

// Every weight and every moment equals the oracle's to the bit, read whole and in pieces.
func TestOracle(t *testing.T) {
	seen := 0
	for _, folder := range fixtures(t) {
		o, err := safetensors.Open(filepath.Join(folder, "oracle.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range checkpointsIn(folder) {
			seen++
			t.Run(path, func(t *testing.T) { compare(t, path, o) })
		}
		o.Close()
	}
	if seen < 8 {
		t.Errorf("only %d checkpoints", seen)
	}
}

func compare(t *testing.T, path string, o *safetensors.Reader) {
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	trained := slices.ContainsFunc(c.tensors, func(x *tensor) bool { return x.Kind != checkpoint.Master })
	if trained && c.Step != 3 {
		t.Errorf("step %d", c.Step)
	}
	n := 0
	for _, x := range o.Tensors() {
		name, kind := want(x.Name)
		if x.Numel() == 1 && kind == "step" {
			continue
		}
		n++
		if kind == checkpoint.Master {
			name = modelName(c, name)
		}
		if alias := c.Same[name]; alias != "" {
			name = alias
		}
		compareTensor(t, c, name, kind, o, x)
	}
	if trained && n != len(c.tensors) && n != len(c.tensors)+len(c.Same) && !strings.Contains(path, "frozen") {
		t.Errorf("the oracle has %d tensors, the checkpoint %d", n, len(c.tensors))
	}
}

// modelName removes the prefix "model." of a section of an oracle.
func modelName(c *Checkpoint, name string) string {
	for _, s := range []string{name, strings.TrimPrefix(name, "model.")} {
		if c.Same[s] != "" || c.index[[2]string{s, checkpoint.Master}] != nil {
			return s
		}
	}
	return name
}

func compareTensor(t *testing.T, c *Checkpoint, name, kind string, o *safetensors.Reader, x safetensors.Tensor) {
	n := x.Numel()
	a, b := make([]float32, n), make([]float32, n)
	if err := o.ReadF32(x.Name, 0, n, a); err != nil {
		t.Fatal(err)
	}
	for _, cuts := range [][]int{{0, n}, {0, n / 3, n/3 + 1, n * 2 / 3, n}} {
		for i := 1; i < len(cuts); i++ {
			if cuts[i] <= cuts[i-1] {
				continue
			}
			r := shard.Range{Lo: cuts[i-1], Hi: cuts[i]}
			if err := c.ReadF32(name, kind, r, b[r.Lo:r.Hi], 1); err != nil {
				t.Error(err)
				return
			}
		}
		for i := range a {
			if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
				t.Errorf("%s (%s): element %d is %v, want %v", name, kind, i, b[i], a[i])
				break
			}
		}
		clear(b)
	}
}
