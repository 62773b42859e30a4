package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"zeroth/checkpoint/vfs"
	"zeroth/shard"
)

const benchBytes = 256 << 20

// BenchmarkSave is a save of 256 MiB by one and by two writers, next to the
// disk's own limit: the same bytes written one after the other and synced.
func BenchmarkSave(b *testing.B) {
	m := bigModel(benchBytes/4, Master)
	data := m.data[key{"w", Master}]
	b.Run("disk", func(b *testing.B) {
		b.SetBytes(benchBytes)
		for b.Loop() {
			path := filepath.Join(b.TempDir(), "x")
			writeAll(b, path, data)
			os.Remove(path)
		}
	})
	for _, c := range []struct {
		name  string
		world int
		opt   Options
	}{{"raw", 1, Options{}}, {"raw/ranks=2", 2, Options{}}, {"planes", 1, Options{Compress: Always}}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(benchBytes)
			for b.Loop() {
				os.RemoveAll(m.mustSave(b, vfs.OS{}, b.TempDir(), 1, c.world, c.opt))
			}
		})
	}
}

func writeAll(b *testing.B, path string, data []byte) {
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	for at := 0; at < len(data); at += 4 << 20 {
		if _, err := f.Write(data[at : at+4<<20]); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	f.Close()
}

// BenchmarkLoad is a load of 256 MiB that are in the page cache, next to
// reading as many bytes with nothing done to them.
func BenchmarkLoad(b *testing.B) {
	m := bigModel(benchBytes/4, Master)
	into := noiseBytes(benchBytes, 1) // its pages are there
	b.Run("disk", func(b *testing.B) {
		path := filepath.Join(b.TempDir(), "x")
		writeAll(b, path, m.data[key{"w", Master}])
		f, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(benchBytes)
		for b.Loop() {
			for at := 0; at < len(into); at += readBytes {
				if err := vfs.ReadFull(f, into[at:at+readBytes], int64(at)); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	for _, compress := range []Compression{Never, Always} {
		path := m.mustSave(b, vfs.OS{}, b.TempDir(), 1, 1, Options{Compress: compress})
		c, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("compress="+compress.String(), func(b *testing.B) {
			b.SetBytes(benchBytes)
			for b.Loop() {
				if err := c.ReadAll([]Request{{"w", Master, shard.Range{Hi: benchBytes / 4}, into}}, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
		c.Close()
	}
}
