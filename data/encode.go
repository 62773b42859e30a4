package data

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// task is a chunk of text and the segment its ids go to.
type task struct {
	text        []byte
	first, last bool // of its file
	to          *segment
}

// fileTokenizer encodes files in parts, on all cores.
type fileTokenizer interface {
	Tokenizer
	parts() partEncoder
	cut(text []byte) int              // how much of a text to encode at once
	refuse(text []byte) error         // what of a text is not encoded as it is
	spelt(t task, ids []uint32) int64 // how often it spells out tokens that are no text
	noteSpelt(n int64) string
}

// partEncoder is the memory of one goroutine.
type partEncoder interface {
	// part adds the ids of a part of a file, with what begins and ends a document.
	part(ids []uint32, t task) []uint32
}

// encodeFiles encodes text files on all cores. Beside the result, two or four
// bytes a token, it holds one file's text and the chunks being encoded. Spelt is
// how often the text spells out tokens that are no text.
func encodeFiles(ctx context.Context, v fileTokenizer, files []file, progress func(done, total int64)) (all []segment, spelt int64, err error) {
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
	segments, err := chunks(ctx, files, v, tasks)
	close(tasks)
	wg.Wait()
	for _, s := range segments {
		all = append(all, *s)
	}
	return all, count.Load(), err
}

// encodeTasks runs on one goroutine until tasks is closed.
func encodeTasks(v fileTokenizer, tasks <-chan task, m *meter) (spelt int64) {
	e := v.parts()
	var ids []uint32
	for t := range tasks {
		ids = e.part(ids[:0], t)
		spelt += v.spelt(t, ids)
		t.to.data = littleEndian(ids, t.to.width)
		m.add(int64(len(t.text)))
	}
	return spelt
}

// chunks reads the files in order and hands their text out in chunks. The
// segments, in corpus order, are complete when the tasks are, unless ctx ended.
func chunks(ctx context.Context, files []file, v fileTokenizer, tasks chan<- task) (segments []*segment, err error) {
	var errs []error
	width := idWidth(v.Vocab())
	for _, f := range files {
		if ctx.Err() != nil {
			break
		}
		text := make([]byte, f.size)
		err := readText(text, f)
		if err == nil {
			err = v.refuse(text)
			if err != nil {
				err = fmt.Errorf("%s: %w", f.path, err)
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for first := true; len(text) > 0 && ctx.Err() == nil; first = false {
			n := v.cut(text)
			s := &segment{name: f.path, width: width}
			segments = append(segments, s)
			tasks <- task{text[:n], first, n == len(text), s}
			text = text[n:]
		}
	}
	return segments, errors.Join(errs...)
}
