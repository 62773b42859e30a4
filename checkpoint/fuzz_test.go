package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/shard"
)

// seedFiles returns a checkpoint's files of one kind as fuzzing seeds.
func seedFiles(f *testing.F, name string) (path string, fsys *vfstest.Mem) {
	fsys = &vfstest.Mem{}
	for _, c := range []Compression{Never, Always} {
		path = newModel(1).mustSave(f, fsys, "/c", 1, 2, Options{Compress: c})
		b, err := vfs.ReadFile(fsys, filepath.Join(path, name), 1<<30)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	return path, fsys
}

// frugal fails if f, which reads b, allocates much more than len(b) bytes.
func frugal(t *testing.T, b []byte, f func()) {
	t.Helper()
	if n := spent(f); n > 64*int64(len(b))+1<<20 {
		t.Fatalf("%d bytes of memory for %d", n, len(b))
	}
}

// FuzzPart checks that the result of parsePart can be used without further checks.
func FuzzPart(f *testing.F) {
	seedFiles(f, "part-00001.json")
	f.Fuzz(func(t *testing.T, b []byte) {
		var p *part
		var err error
		frugal(t, b, func() { p, err = parsePart(b) })
		if err != nil {
			return
		}
		for _, d := range p.Files {
			at := d.Header
			for i := range d.Extents {
				e := &d.Extents[i]
				size := p.Tensors[e.Tensor].DType.Size()
				for k := range e.CRC {
					off, n := e.block(k, size)
					if off != at || n < 1 || n > blockBytes+1 || e.rawBlock(k, size)%size != 0 {
						t.Fatalf("block %d of %+v: offset %d, %d bytes, expected at %d", k, e, off, n, at)
					}
					at += int64(n)
				}
			}
			if at != d.Bytes {
				t.Fatalf("extents end at %d of %d", at, d.Bytes)
			}
			d.sum(p.Tensors)
		}
		ts, err := union([]*part{p})
		if err == nil {
			checkComplete(ts, []*part{p})
		}
	})
}

func FuzzManifest(f *testing.F) {
	seedFiles(f, manifestName)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m *manifest
		var err error
		frugal(t, b, func() { m, err = parseManifest(b) })
		if err != nil {
			return
		}
		again, err := parseManifest(mustJSON(m))
		if err != nil {
			t.Fatalf("accepted once, but not again: %v", err)
		}
		x, _ := json.Marshal(m)
		y, _ := json.Marshal(again)
		if !bytes.Equal(x, y) {
			t.Fatalf("%s became %s", x, y)
		}
		for _, e := range m.Files {
			if filepath.Join("d", e.Name) != "d/"+e.Name {
				t.Fatalf("file %q leaves the folder", e.Name)
			}
		}
	})
}

func FuzzMarker(f *testing.F) {
	seedFiles(f, commitName)
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := parseMarker(b); err == nil && c.String() != string(b) {
			t.Fatalf("%q was parsed as %q", b, c)
		}
	})
}

// FuzzOpenForged checks that whatever a part file and the manifest contain, with matching
// digests, opening and reading either fail or fill the request.
func FuzzOpenForged(f *testing.F) {
	path, fsys := seedFiles(f, "part-00000.json")
	f.Fuzz(func(t *testing.T, b []byte) {
		disk := fsys.AfterPowerLoss(fsys.Ops(), func(vfstest.Change) vfstest.Outcome { return vfstest.Kept })
		man, err := readManifest(disk, path)
		if err != nil {
			t.Fatal(err)
		}
		forgeFiles(t, disk, path, man, map[string][]byte{partName(0): b})
		c, err := OpenIn(disk, path)
		if err != nil {
			return
		}
		defer c.Close()
		for _, x := range c.Tensors {
			c.Read(x.Name, x.Kind, shard.Range{Hi: x.Numel()}, make([]byte, x.Bytes()))
		}
		Verify(context.Background(), path, Walk{FS: disk, Workers: 1})
	})
}

// FuzzNewest checks that, after a run went back to an earlier step, no older checkpoint is returned
// as the newest, whatever the newest one's COMMIT or manifest contain.
func FuzzNewest(f *testing.F) {
	mem := &vfstest.Mem{}
	var paths []string
	for _, step := range []int64{100, 200, 100} {
		paths = append(paths, newModel(1).mustSave(f, mem, "/c", step, 1, Options{}))
	}
	newest := paths[2]
	for i, path := range paths {
		for k, name := range []string{commitName, manifestName} {
			b, err := vfs.ReadFile(mem, filepath.Join(path, name), maxJSON)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(k == 1, i == 2, b)
		}
	}
	f.Fuzz(func(t *testing.T, manifest, commitToo bool, b []byte) {
		disk := mem.AfterPowerLoss(mem.Ops(), func(vfstest.Change) vfstest.Outcome { return vfstest.Kept })
		name := commitName
		if manifest {
			name = manifestName
		}
		write := func(name string, b []byte) {
			if err := errors.Join(disk.Remove(filepath.Join(newest, name)), vfs.WriteFile(disk, filepath.Join(newest, name), b)); err != nil {
				t.Fatal(err)
			}
		}
		write(name, b)
		if manifest && commitToo { // a marker of the same save that vouches for it
			write(commitName, []byte(marker{format, 3, 100, "0123456789abcdef", digest(b)}.String()))
		}
		path, err := ResolveIn(disk, "/c", "latest")
		if err == nil && path != newest {
			t.Fatalf("the latest is %s", path)
		}
		if path, err := ResolveIn(disk, "/c", "100"); err == nil && path != newest {
			t.Fatalf("step 100 is %s", path)
		}
		if bad, err := Verify(context.Background(), newest, Walk{FS: disk, Workers: 1}); path != newest && err == nil && len(bad) == 0 {
			t.Fatal("it is intact but not the latest")
		}
	})
}
