package checkpoint

import (
	"fmt"
	"testing"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/shard"
)

// BenchmarkRecut loads a checkpoint of 256 MiB that two ranks have saved in columns or rows,
// divided differently, alternating with loading it as divided in the file. Read is the number of
// bytes read per requested byte.
func BenchmarkRecut(b *testing.B) {
	const rows, columns, tensors = 2048, 4096, 8
	for _, dim := range []int{0, 1} {
		for _, compress := range []Compression{Never, Always} {
			part := func(t Tensor, rank, of int) shard.Param {
				n := t.Shape[dim] / of
				return shard.Param{Name: t.Name, Shape: t.Shape}.Part(dim, shard.Range{Lo: rank * n, Hi: (rank + 1) * n})
			}
			var ts []Tensor
			for i := range tensors {
				ts = append(ts, Tensor{fmt.Sprintf("w%d", i), Master, F32, []int{rows, columns}})
			}
			root := b.TempDir()
			s, err := Begin(root, 7, Options{Compress: compress})
			if err != nil {
				b.Fatal(err)
			}
			com := Commit{Tensors: ts, State: []byte("{}")}
			noise := encoded(gauss(rows*columns/2, 0.02, 1), F32)
			for rank := range 2 {
				w := s.Writer(rank)
				for _, x := range ts {
					p := part(x, rank, 2)
					if err := w.PutPart(x, p.Cut, shard.Range{Hi: p.Numel()}, noise, nil); err != nil {
						b.Fatal(err)
					}
				}
				f, err := w.Finish()
				if err != nil {
					b.Fatal(err)
				}
				com.Parts = append(com.Parts, f)
			}
			path, err := s.Commit(com)
			if err != nil {
				b.Fatal(err)
			}
			load := func(of int) (took time.Duration, read float64) {
				begin := time.Now()
				var wanted int64
				for rank := range of {
					c, err := OpenIn(vfs.OS{}, path)
					if err != nil {
						b.Fatal(err)
					}
					var reqs []Request
					for _, x := range ts {
						p := part(x, rank, of)
						reqs = append(reqs, Request{x.Name, x.Kind, p.Cut, shard.Range{Hi: p.Numel()}, make([]byte, 4*p.Numel())})
						wanted += 4 * int64(p.Numel())
					}
					if err := c.ReadAll(reqs, 0); err != nil {
						b.Fatal(err)
					}
					read += float64(c.read.Load())
					c.Close()
				}
				return time.Since(begin), read / float64(wanted)
			}
			for _, of := range []int{1, 4, 8} {
				b.Run(fmt.Sprintf("dimension %d/%v/%d ranks", dim, compress, of), func(b *testing.B) {
					var same, other time.Duration
					var read float64
					for b.Loop() {
						x, _ := load(2)
						y, r := load(of)
						same, other, read = same+x, other+y, r
					}
					b.ReportMetric(other.Seconds()/same.Seconds(), "time")
					b.ReportMetric(read, "read")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}
