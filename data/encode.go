package data

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"zeroth/input"
)

// task is a chunk of text and the segment to write its ids to.
type task struct {
	text        []byte
	first, last bool // whether it is the first or last of its file
	to          *segment
	done        chan struct{} // closed when to is complete
}

// fileTokenizer encodes files in parts, on all cores.
type fileTokenizer interface {
	Tokenizer
	parts() partEncoder
	cut(text []byte) int                   // length of the first part of a text, to encode at once
	refuse(text []byte) error              // error if the text cannot be encoded faithfully
	spelledOut(t task, ids []uint32) int64 // number of special tokens spelled out in the text
	noteSpelledOut(n int64) string
}

// partEncoder is the state of one encoding goroutine.
type partEncoder interface {
	// part appends the ids of a part of a file, with the tokens that begin and end a document.
	part(ids []uint32, t task) []uint32
}

// encodeFiles encodes text files on all cores and passes their segments to each, in order.
// It holds one file's text and the chunks being encoded. spelledOut counts the special tokens
// spelled out in the text.
func encodeFiles(ctx context.Context, v fileTokenizer, files []file, progress func(done, total int64), each func(segment) error) (spelledOut int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := meter{report: progress}
	for _, f := range files {
		m.total += f.size
	}
	tasks, order := make(chan task), make(chan task, 4*runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	var count atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() { count.Add(encodeTasks(v, tasks, &m)) })
	}
	var reading error
	wg.Go(func() {
		reading = chunks(ctx, files, v, func(t task) { order <- t; tasks <- t })
		close(tasks)
		close(order)
	})
	for t := range order {
		if <-t.done; err == nil {
			if err = each(*t.to); err != nil {
				cancel()
			}
		}
	}
	wg.Wait()
	return count.Load(), cmp.Or(err, reading)
}

// encodeTasks encodes tasks until the channel is closed. It runs on one goroutine.
func encodeTasks(v fileTokenizer, tasks <-chan task, m *meter) (spelledOut int64) {
	e := v.parts()
	var ids []uint32
	for t := range tasks {
		ids = e.part(ids[:0], t)
		spelledOut += v.spelledOut(t, ids)
		t.to.data = littleEndian(ids, t.to.width)
		close(t.done)
		m.add(int64(len(t.text)))
	}
	return spelledOut
}

// chunks reads the files in order and emits their text in chunks, until ctx ends.
func chunks(ctx context.Context, files []file, v fileTokenizer, emit func(task)) error {
	var errs []error
	width := idWidth(v.Vocab())
	for _, f := range files {
		if ctx.Err() != nil {
			break
		}
		text := make([]byte, f.size)
		err := readText(text, f)
		if err == nil {
			if err = v.refuse(text); err != nil {
				err = input.BadInput(fmt.Errorf("%s: %w", f.path, err))
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for first := true; len(text) > 0 && ctx.Err() == nil; first = false {
			n := v.cut(text)
			emit(task{text[:n], first, n == len(text), &segment{name: f.path, width: width}, make(chan struct{})})
			text = text[n:]
		}
	}
	return joinSome(errs)
}
