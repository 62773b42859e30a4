//go:build linux

package job

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zeroth/checkpoint"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/job/state"
)

// benchJob is a job of 25 million parameters, 303 MB of state, with data that
// is not read.
func benchJob(b *testing.B, sets ...string) *spec.Job {
	b.Helper()
	dir := b.TempDir()
	file := filepath.Join(dir, "job.yaml")
	text := fmt.Sprintf("data: {text: [%q]}\nmodel: {layers: 8, heads: 8, width: 512, context: 16}\ntrain: {micro_batch: 1}\nprecision: bf16\n", file)
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		b.Fatal(err)
	}
	c, err := spec.Load(file, append(sets, "checkpoint.every=1", "checkpoint.keep=1", "checkpoint.compress=never", "checkpoint.dir="+filepath.Join(dir, "ckpt")))
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// ranksOf returns the job's ranks with their initial parameters.
func ranksOf(b *testing.B, j *setup.Job) []*setup.Rank {
	b.Helper()
	ranks, err := setup.Open(j)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { setup.CloseAll(ranks) })
	w := &hf.Weights{Seed: 1}
	if err := setup.Together(ranks, func(r *setup.Rank) error { return r.Trainer.Fill("master", w.Fill) }); err != nil {
		b.Fatal(err)
	}
	return ranks
}

// stateBytes is the size of all state.
func stateBytes(c *spec.Job, r *setup.Rank) (n int64) {
	for _, t := range state.Tensors(c) {
		n += t.Bytes()
	}
	return n
}

// saversOf are the savers of a job's ranks.
func saversOf(b *testing.B, j *setup.Job, ranks []*setup.Rank) []*state.Saver {
	b.Helper()
	savers, err := state.OpenSavers(j, ranks)
	if err != nil {
		b.Fatal(err)
	}
	return savers
}

// saveOnce saves by all ranks and returns the longest that one was kept from
// training, and the time to the end.
func saveOnce(b *testing.B, ranks []*setup.Rank, savers []*state.Saver, step int) (blocked, took time.Duration) {
	b.Helper()
	waits := make([]time.Duration, len(ranks))
	begin := time.Now()
	err := setup.Together(ranks, func(r *setup.Rank) error {
		if err := savers[r.Rank].Save(state.Progress{Step: step, Data: "none"}, nil); err != nil {
			return err
		}
		end := savers[r.Rank].End(true)
		waits[r.Rank] = end.Blocked
		return end.Err
	})
	took = time.Since(begin)
	for _, s := range savers { // before the next save, which other work comes before
		err = errors.Join(err, s.Tidy())
	}
	if err != nil {
		b.Fatal(err)
	}
	return slices.Max(waits), took
}

// diskWrite returns the time to write and sync the given number of bytes sequentially.
func diskWrite(b *testing.B, dir string, n int64) time.Duration {
	b.Helper()
	path, noise := filepath.Join(dir, "disk"), benchNoise(64<<20)
	begin := time.Now()
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	for at := int64(0); at < n; at += 4 << 20 {
		if _, err := f.Write(noise[at%(64<<20):][:min(n-at, 4<<20)]); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	f.Close()
	took := time.Since(begin)
	os.Remove(path)
	return took
}

// benchNoise is so many bytes, a multiple of 8, that nothing can shrink.
func benchNoise(n int) []byte {
	b, rng := make([]byte, 0, n), rand.NewPCG(1, 2)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
	}
	return b
}

// BenchmarkSaveState is a save of a job's state as training sees it: how long
// it waits, next to a save it waits for and to the disk, in turns; the best of
// each counts.
func BenchmarkSaveState(b *testing.B) {
	for _, sets := range [][]string{{"parallel.ranks=1"}, {"parallel.ranks=4", "zero.stage=3"}} {
		b.Run(sets[0], func(b *testing.B) {
			var best [3]time.Duration // blocked by an async save, a sync save, the disk
			note := func(i int, d time.Duration) {
				if best[i] == 0 || d < best[i] {
					best[i] = d
				}
			}
			a, s := setup.Local(benchJob(b, sets...)), setup.Local(benchJob(b, append(sets, "checkpoint.async=false")...))
			async, sync := ranksOf(b, a), ranksOf(b, s)
			asyncSavers, syncSavers := saversOf(b, a, async), saversOf(b, s, sync)
			bytes := stateBytes(a.Job, async[0])
			saveOnce(b, async, asyncSavers, 1) // touches the staging memory's pages
			step := 1
			for b.Loop() {
				step++
				blocked, _ := saveOnce(b, async, asyncSavers, step)
				note(0, blocked)
				_, took := saveOnce(b, sync, syncSavers, step)
				note(1, took)
				note(2, diskWrite(b, s.Checkpoint.Dir, bytes))
			}
			gbs := func(i int) float64 { return float64(bytes) / 1e9 / best[i].Seconds() }
			b.ReportMetric(best[0].Seconds()*1e3, "async-blocked-ms")
			b.ReportMetric(best[1].Seconds()*1e3, "sync-ms")
			b.ReportMetric(100*best[0].Seconds()/best[1].Seconds(), "blocked-%")
			b.ReportMetric(gbs(1), "sync-GB/s")
			b.ReportMetric(gbs(2), "disk-GB/s")
			b.ReportMetric(gbs(1)/gbs(2), "sync/disk")
		})
	}
}

// BenchmarkLoadState is a resume's load of a job's state into its ranks, next
// to reading the files' bytes into as much memory with nothing done to them:
// both from the page cache and both from the disk, in turns; the best of each
// counts.
func BenchmarkLoadState(b *testing.B) {
	for _, sets := range [][]string{{"parallel.ranks=1"}, {"parallel.ranks=4", "zero.stage=3"}, {"parallel.ranks=4", "zero.stage=0"}} {
		b.Run(strings.Join(sets, ","), func(b *testing.B) {
			c := benchJob(b, sets...)
			j := setup.Local(c)
			ranks := ranksOf(b, j)
			savers := saversOf(b, j, ranks)
			saveOnce(b, ranks, savers, 1)
			path, err := checkpoint.Resolve(c.Checkpoint.Dir, "latest")
			if err != nil {
				b.Fatal(err)
			}
			bytes := stateBytes(c, ranks[0])
			into := benchNoise(int(bytes)/8*8 + 1<<20)
			var best [4]time.Duration // ours and the limit, from the cache and from the disk
			var read int64
			for b.Loop() {
				for i := range best {
					if i >= 2 {
						uncache(b, path)
					}
					begin := time.Now()
					if i%2 == 0 {
						read = loadOnce(b, ranks, path)
					} else {
						readOnce(b, path, into)
					}
					if d := time.Since(begin); best[i] == 0 || d < best[i] {
						best[i] = d
					}
				}
			}
			for i, name := range []string{"cached", "disk"} {
				ours, limit := best[2*i].Seconds(), best[2*i+1].Seconds()
				b.ReportMetric(float64(bytes)/1e9/ours, name+"-GB/s")
				b.ReportMetric(float64(bytes)/1e9/limit, name+"-limit-GB/s")
				b.ReportMetric(limit/ours, name+"-ratio")
			}
			b.ReportMetric(float64(read)/float64(bytes), "read/bytes")
		})
	}
}

// loadOnce is what a resume does, and returns the bytes it has read.
func loadOnce(b *testing.B, ranks []*setup.Rank, path string) int64 {
	b.Helper()
	ck, err := checkpoint.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer ck.Close()
	r := &resumed{Checkpoint: ck, Progress: state.Progress{Data: "none"}}
	workers := max(1, runtime.GOMAXPROCS(0)/len(ranks))
	if err := setup.Together(ranks, func(rank *setup.Rank) error { return restore(b.Context(), r, rank.Trainer, workers) }); err != nil {
		b.Fatal(err)
	}
	return ck.BytesRead()
}

// eachData calls f for the data files of a checkpoint.
func eachData(b *testing.B, path string, f func(*os.File) error) {
	b.Helper()
	files, err := filepath.Glob(filepath.Join(path, "data-*"))
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err == nil {
			err = errors.Join(f(file), file.Close())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// readOnce reads all data files into memory whose pages are there.
func readOnce(b *testing.B, path string, into []byte) {
	b.Helper()
	eachData(b, path, func(f *os.File) error {
		n, err := io.ReadFull(f, into)
		into = into[n:]
		if err == io.ErrUnexpectedEOF {
			return nil
		}
		return err
	})
}

// uncache takes the data files out of the page cache.
func uncache(b *testing.B, path string) {
	b.Helper()
	eachData(b, path, func(f *os.File) error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) })
}
