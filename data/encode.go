package data

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
)

// task is a chunk of text and the segment its ids go to.
type task struct {
	text []byte
	last bool // of its file: the separator follows
	to   *segment
}

// encodeFiles encodes text files on all cores. Beside the result, two or four
// bytes a token, it holds one file's text and the chunks being encoded. Spelt is
// how often the text spells the separator out.
func encodeFiles(ctx context.Context, v *BPE, files []file, progress func(done, total int64)) (all []segment, spelt int64, err error) {
	m := meter{report: progress}
	for _, f := range files {
		m.total += f.size
	}
	tasks := make(chan task)
	var wg sync.WaitGroup
	var count atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() { count.Add(encodeTasks(v, tasks, &m)) })
	}
	segments, err := chunks(ctx, files, v.width(), tasks)
	close(tasks)
	wg.Wait()
	for _, s := range segments {
		all = append(all, *s)
	}
	return all, count.Load(), err
}

// encodeTasks runs on one goroutine until tasks is closed.
func encodeTasks(v *BPE, tasks <-chan task, m *meter) (spelt int64) {
	e := newEncoder(v)
	var ids []uint32
	var separator []byte
	if v.separator >= 0 {
		separator = []byte(v.tokens[v.separator])
	}
	for t := range tasks {
		ids = e.append(ids[:0], t.text)
		if t.last && v.separator >= 0 {
			ids = append(ids, uint32(v.separator))
		}
		if separator != nil {
			spelt += int64(bytes.Count(t.text, separator))
		}
		t.to.data = littleEndian(ids, t.to.width)
		m.add(int64(len(t.text)))
	}
	return spelt
}

// chunks reads the files in order and hands their text out in chunks. The
// segments, in corpus order, are complete when the tasks are, unless ctx ended.
func chunks(ctx context.Context, files []file, width int, tasks chan<- task) (segments []*segment, err error) {
	var errs []error
	for _, f := range files {
		if ctx.Err() != nil {
			break
		}
		text := make([]byte, f.size)
		if err := readText(text, f); err != nil {
			errs = append(errs, err)
			continue
		}
		for len(text) > 0 && ctx.Err() == nil {
			n := chunkLen(text)
			s := &segment{name: f.path, width: width}
			segments = append(segments, s)
			tasks <- task{text[:n], n == len(text), s}
			text = text[n:]
		}
	}
	return segments, errors.Join(errs...)
}
