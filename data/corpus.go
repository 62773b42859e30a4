package data

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"
)

// segment is a range of token ids in memory or in a mapped file.
type segment struct {
	name  string // of the file, for errors
	data  []byte // little-endian ids
	width int    // bytes per id: 1, 2, 4 or 8
	at    int    // offset of data in the file; 0 if data is not from a file
}

func (s segment) len() int { return len(s.data) / s.width }

// read fills dst with the ids starting at index at.
func (s segment) read(dst []int32, at int) {
	b := s.data[at*s.width : (at+len(dst))*s.width]
	switch s.width {
	case 1:
		for i, id := range b {
			dst[i] = int32(id)
		}
	case 2:
		for i := range dst {
			dst[i] = int32(binary.LittleEndian.Uint16(b[2*i:]))
		}
	case 4:
		for i := range dst {
			dst[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
		}
	case 8:
		for i := range dst {
			dst[i] = int32(binary.LittleEndian.Uint64(b[8*i:]))
		}
	}
}

// Corpus is the concatenation of segments, addressed by token.
type Corpus struct {
	segments []segment // none empty
	starts   []int64   // (len(segments)+1) tokens before each; the last is the total
	vocab    int       // all ids were in [0, vocab) when the corpus was opened
}

func newCorpus(segments []segment) *Corpus {
	c := &Corpus{starts: []int64{0}, vocab: math.MaxInt32}
	for _, s := range segments {
		if s.len() > 0 {
			c.segments = append(c.segments, s)
			c.starts = append(c.starts, c.Len()+int64(s.len()))
		}
	}
	return c
}

// Len returns the number of tokens.
func (c *Corpus) Len() int64 { return c.starts[len(c.starts)-1] }

// At returns token i.
func (c *Corpus) At(i int64) int32 {
	var one [1]int32
	c.Read(one[:], i)
	return one[0]
}

// named returns the name of the segment that contains token i.
func (c *Corpus) named(i int64) string { return c.segments[c.segmentOf(i)].name }

func (c *Corpus) segmentOf(at int64) int {
	return sort.Search(len(c.segments), func(i int) bool { return c.starts[i+1] > at })
}

// Read fills dst with the tokens [at, at+len(dst)).
func (c *Corpus) Read(dst []int32, at int64) {
	if at < 0 || at+int64(len(dst)) > c.Len() {
		panic(fmt.Sprintf("data: tokens [%d:%d) of %d", at, at+int64(len(dst)), c.Len()))
	}
	if len(dst) == 0 {
		return
	}
	i := c.segmentOf(at)
	for ; len(dst) > 0; i++ {
		n := min(int64(len(dst)), c.starts[i+1]-at)
		c.segments[i].read(dst[:n], int(at-c.starts[i]))
		dst, at = dst[n:], at+n
	}
}
