package checkpoint

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint/vfs"
)

// savedOnBase saves steps 1 to n, which differ in the tensors that are not shared.
func savedOnBase(t *testing.T, n int) (models []*model, root string, paths []string) {
	root = t.TempDir()
	for i := range n {
		m := newModel(uint64(i + 1))
		m.shares = true
		if i > 0 {
			m.base = models[0].base
			for _, t := range m.shared() {
				m.data[t.key()] = models[0].data[t.key()]
			}
		}
		models, paths = append(models, m), append(paths, m.mustSave(t, vfs.OS{}, root, int64(i+1), 2, Options{headerBytes: 4096}))
	}
	return models, root, paths
}

// foldersIn returns the names of the checkpoints and bases in a folder.
func foldersIn(t *testing.T, root string) (names []string) {
	for _, name := range listFiles(t, root) {
		if name != lockName {
			names = append(names, name)
		}
	}
	return names
}

// TestCheckpointsShareABase checks that a checkpoint with a base folder contains everything, to
// the bit, although its own files contain only the rest. Diff, Export and Reshard see all
// tensors; a resharded copy needs no base.
func TestCheckpointsShareABase(t *testing.T) {
	models, root, paths := savedOnBase(t, 2)
	for i, m := range models {
		must(t, m.holds(vfs.OS{}, paths[i]))
	}
	base := models[0].base
	if got := foldersIn(t, root); !slices.Equal(got, []string{base, "step-00000001", "step-00000002"}) {
		t.Fatalf("folders %q", got)
	}
	list, err := List(root)
	must(t, err)
	if len(list) != 2 || list[1].Base != base || list[1].BaseBytes < 4*50*33 || list[1].Status != Complete {
		t.Errorf("listed as %+v", list)
	}
	a, err := Open(paths[0])
	must(t, err)
	defer a.Close()
	b, err := Open(paths[1])
	must(t, err)
	defer b.Close()
	ds, err := Diff(t.Context(), a, b, Walk{})
	must(t, err)
	for _, d := range ds {
		if same := d.Kind == Master || d.Name == "empty"; (d.What == Equal) != same {
			t.Errorf("%+v", d)
		}
	}
	if p := b.Pieces("wte.weight", Master); len(p) == 0 || !strings.HasPrefix(p[0].File, base+"/data-") {
		t.Errorf("pieces %+v", p)
	}
	must(t, Export{}.Write(t.Context(), b, b.Path, filepath.Join(root, "export")))
	copied, err := b.Reshard(t.Context(), filepath.Join(root, "copy"), 3, Options{}, nil)
	must(t, err)
	must(t, models[1].holds(vfs.OS{}, copied))
	c, err := Open(copied)
	must(t, err)
	defer c.Close()
	if x, err := b.Digest(); err != nil || c.Base != nil {
		t.Errorf("%v, base %v", err, c.Base)
	} else if y, _ := c.Digest(); x != y {
		t.Errorf("digests %s and %s", x, y)
	}
}

// TestBitFlipsInBase checks that any flipped bit of a base folder is found and named by Verify.
func TestBitFlipsInBase(t *testing.T) {
	models, root, paths := savedOnBase(t, 1)
	base := models[0].base
	c, err := Open(paths[0])
	must(t, err)
	defer c.Close()
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, name := range listFiles(t, filepath.Join(root, base)) {
		full := filepath.Join(root, base, name)
		b, err := os.ReadFile(full)
		must(t, err)
		for range min(40, len(b)) {
			at, bit := rnd.IntN(len(b)), byte(1)<<rnd.IntN(8)
			poke(t, full, at, b[at]^bit)
			bad, err := Verify(context.Background(), paths[0], Walk{Workers: 1})
			if err != nil || len(bad) == 0 {
				t.Fatalf("%s byte %d bit %02x: verify found %v, %v", name, at, bit, bad, err)
			}
			if name == commitName && bad[0].File == base+"/"+manifestName { // they disagree
				bad[0].File = base + "/" + commitName
			}
			if bad[0].File != base+"/"+name {
				t.Fatalf("%s byte %d bit %02x: found in %v", name, at, bit, bad[0])
			}
			if strings.HasPrefix(name, "data-") && at >= 4096 {
				if err := names(bad, c, base+"/"+name, int64(at)); err != nil {
					t.Fatal(err)
				}
			}
			poke(t, full, at, b[at])
		}
	}
	must(t, models[0].holds(vfs.OS{}, paths[0]))
}

// TestMissingBase checks that a checkpoint without its base, or with another one, is reported as
// damaged.
func TestMissingBase(t *testing.T) {
	models, root, paths := savedOnBase(t, 1)
	base := filepath.Join(root, models[0].base)
	must(t, os.Rename(base, base+".away"))
	for what, spoil := range map[string]func(){
		"is missing": func() {},
		"named for another digest": func() {
			_, other, _ := savedOnBase(t, 1)
			for _, name := range foldersIn(t, other) {
				if isBase(name) {
					must(t, os.CopyFS(base, os.DirFS(filepath.Join(other, name))))
				}
			}
		},
	} {
		spoil()
		_, err := Open(paths[0])
		var d *Damage
		if !errors.As(err, &d) || !strings.HasPrefix(d.File, models[0].base) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
		if list, err := List(root); err != nil || list[0].Status != Damaged || !strings.Contains(list[0].Why, what) {
			t.Errorf("%s: listed as %+v, %v", what, list, err)
		}
		must(t, os.RemoveAll(base))
	}
	if _, err := models[0].save(vfs.OS{}, root, 2, 1, 3, Options{}); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("a save on a missing base: %v", err)
	}
	must(t, os.Rename(base+".away", base))
	must(t, models[0].holds(vfs.OS{}, paths[0]))
}

// TestPruneKeepsBases checks that prune keeps a base while a checkpoint needs it, or while one
// that cannot be read might.
func TestPruneKeepsBases(t *testing.T) {
	models, root, paths := savedOnBase(t, 3)
	base := models[0].base
	p, err := Prune(root, Keep{Last: 1})
	must(t, err)
	if want := []string{"step-00000001", "step-00000002"}; !slices.Equal(p.Deleted, want) {
		t.Errorf("deleted %q, want %q", p.Deleted, want)
	}
	must(t, models[2].holds(vfs.OS{}, paths[2]))

	other := newModel(4)
	other.mustSave(t, vfs.OS{}, root, 4, 1, Options{})
	manifest := filepath.Join(paths[2], manifestName)
	text, err := os.ReadFile(manifest)
	must(t, err)
	must(t, os.WriteFile(manifest, text[1:], 0o666))
	if p, err = Prune(root, Keep{Last: 1}); err != nil || len(p.Deleted) > 0 || len(p.Damaged) != 1 {
		t.Errorf("with an unreadable manifest: %+v, %v", p, err)
	}
	must(t, os.WriteFile(manifest, text, 0o666))
	would, err := Prunable(root, Keep{Last: 1})
	must(t, err)
	if p, err = Prune(root, Keep{Last: 1}); err != nil || !slices.Equal(p.Deleted, []string{"step-00000003", base}) || !slices.Equal(p.Deleted, would.Deleted) {
		t.Errorf("deleted %q, planned %q, %v", p.Deleted, would.Deleted, err)
	}
	if got := foldersIn(t, root); !slices.Equal(got, []string{"step-00000004"}) {
		t.Errorf("folders %q", got)
	}
}
