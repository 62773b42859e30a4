package checkpoint

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/shard"
)

const benchBytes = 256 << 20

// against alternates the disk's own limit with our code, because a shared disk's speed varies. It
// reports the best of each in GB/s and their ratio.
func against(b *testing.B, disk, ours func()) {
	b.SetBytes(benchBytes)
	var limit, got time.Duration
	best := func(have time.Duration, f func()) time.Duration {
		start := time.Now()
		f()
		if d := time.Since(start); have == 0 || d < have {
			return d
		}
		return have
	}
	for b.Loop() {
		limit, got = best(limit, disk), best(got, ours)
	}
	b.ReportMetric(benchBytes/limit.Seconds()/1e9, "disk-GB/s")
	b.ReportMetric(benchBytes/got.Seconds()/1e9, "ours-GB/s")
	b.ReportMetric(limit.Seconds()/got.Seconds(), "ours/disk")
}

// BenchmarkSave compares a save of 256 MiB with writing the same bytes sequentially and syncing.
func BenchmarkSave(b *testing.B) {
	m := bigModel(benchBytes/4, Master)
	data := m.data[key{"w", Master}]
	dir := b.TempDir()
	disk := func() {
		path := filepath.Join(dir, "x")
		writeAll(b, path, data)
		os.Remove(path)
	}
	for _, c := range []struct {
		name  string
		world int
		opt   Options
	}{{"raw", 1, Options{}}, {"raw/ranks=2", 2, Options{}}, {"planes", 1, Options{Compress: Always}}} {
		b.Run(c.name, func(b *testing.B) {
			against(b, disk, func() { os.RemoveAll(m.mustSave(b, vfs.OS{}, dir, 1, c.world, c.opt)) })
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

// BenchmarkLoad compares a load of 256 MiB in the page cache with merely reading as many bytes.
func BenchmarkLoad(b *testing.B) {
	m := bigModel(benchBytes/4, Master)
	into := noiseBytes(benchBytes, 1) // with its pages already mapped
	path := filepath.Join(b.TempDir(), "x")
	writeAll(b, path, m.data[key{"w", Master}])
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	disk := func() {
		for at := 0; at < len(into); at += readBytes {
			if err := vfs.ReadFull(f, into[at:at+readBytes], int64(at)); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, compress := range []Compression{Never, Always} {
		c, err := Open(m.mustSave(b, vfs.OS{}, b.TempDir(), 1, 1, Options{Compress: compress}))
		if err != nil {
			b.Fatal(err)
		}
		b.Run("compress="+compress.String(), func(b *testing.B) {
			against(b, disk, func() {
				if err := c.ReadAll([]Request{{"w", Master, shard.Cut{}, shard.Range{Hi: benchBytes / 4}, into}}, 0); err != nil {
					b.Fatal(err)
				}
			})
		})
		c.Close()
	}
}
