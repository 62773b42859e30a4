package data

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// lines reads a text line by line. It skips blank lines as fast as it can read them, because
// a small compressed file can contain billions of them.
type lines struct {
	*bufio.Scanner
	ctx context.Context // stops reading, even between two lines that are far apart
	n   int             // number of the last line read, from 1

	seen int  // bytes of the next line in the buffer, without a line feed
	text bool // they are not all blank
}

func newLines(ctx context.Context, r io.Reader) *lines {
	l := &lines{Scanner: bufio.NewScanner(r), ctx: ctx}
	l.Buffer(make([]byte, 1<<16), maxLine)
	l.Split(l.split)
	return l
}

// split implements bufio.SplitFunc. It advances past blank lines without returning a token,
// so that it is called again as soon as there is more. It examines each byte once, however
// little the reader returns at a time.
func (l *lines) split(buf []byte, end bool) (advance int, token []byte, err error) {
	if err := l.ctx.Err(); err != nil {
		return 0, nil, err
	}
	begin, i := 0, l.seen
	for ; !l.text && i < len(buf); i++ {
		switch buf[i] {
		case '\n':
			l.n++
			begin = i + 1
		case ' ', '\t', '\r':
		default:
			l.text = true
		}
	}
	// The byte at i is not a line feed; one may follow.
	length := bytes.IndexByte(buf[i:], '\n')
	switch {
	case length >= 0:
		token, advance = bytes.TrimSuffix(buf[begin:i+length], []byte("\r")), i+length+1
	case end && begin < len(buf):
		token, advance = bytes.TrimSuffix(buf[begin:], []byte("\r")), len(buf)
	default:
		l.seen = len(buf) - begin
		return begin, nil, nil
	}
	l.n++
	l.seen, l.text = 0, false
	return advance, token, nil
}

// wrong returns the error that ended reading, or nil at the end of the text.
func (l *lines) wrong() error {
	switch err := l.Err(); {
	case err == nil, l.ctx.Err() != nil:
		return nil // the caller reports the end of ctx
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("line %d has more than %d bytes", l.n+1, maxLine)
	default:
		return fmt.Errorf("after line %d: %w", l.n, err)
	}
}
