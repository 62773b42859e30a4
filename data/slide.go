package data

import "sort"

// Sliding reads a split in windows that overlap, so that almost every token is predicted from many
// tokens before it, as in Hugging Face's guide to the perplexity of models of fixed length. The texts
// of a split are its documents or its stretches of the corpus. The first window of a text has a loss at
// all of its positions; each further one begins stride tokens after the one before, and has a loss only
// at the tokens that no window before it has predicted.
type Sliding struct {
	split  *Split
	stride int64
	before []int64 // (texts+1) windows before each text; the last is their number
}

// Slide returns the windows of a split without packing. Source.Whole keeps documents that are longer
// than a window.
func (s *Split) Slide(stride int) *Sliding {
	x := &Sliding{split: s, stride: int64(stride), before: []int64{0}}
	n := s.stretches.windows
	if s.docs == nil {
		n = (s.stretches.windows + s.stretches.per - 1) / s.stretches.per
	}
	for i := range n {
		windows := int64(1)
		if over := x.tokens(i) - 1 - s.context; over > 0 {
			windows += (over + x.stride - 1) / x.stride
		}
		x.before = append(x.before, x.before[i]+windows)
	}
	return x
}

// tokens returns the number of tokens in a text.
func (x *Sliding) tokens(text int64) int64 {
	s := x.split
	switch at := s.stretches; {
	case s.docs != nil:
		return int64(s.docs.positions(s.docs.index[text])) + 1
	case at.stride == 0: // all of the corpus, with the tokens that fill no window
		return s.corpus.Len()
	default:
		return min(at.per, at.windows-text*at.per)*s.context + 1
	}
}

// window is a range of tokens, of which those from fresh on have a loss.
type window struct{ text, from, fresh, to int64 } // in tokens of the text; to is exclusive

func (x *Sliding) window(i int64) window {
	text := int64(sort.Search(len(x.before)-1, func(k int) bool { return x.before[k+1] > i }))
	k, T := i-x.before[text], x.split.context
	w := window{text, k * x.stride, 1, min(k*x.stride+T+1, x.tokens(text))}
	if k > 0 {
		w.fresh = w.from - x.stride + T + 1
	}
	return w
}

// Windows returns the number of windows.
func (x *Sliding) Windows() int64 { return x.before[len(x.before)-1] }

// Learned returns the number of targets with a loss in n windows, starting at first.
func (x *Sliding) Learned(first, n int64) (sum int) {
	for i := range n {
		w, docs := x.window(first+i), x.split.docs
		if docs == nil {
			sum += int(w.to - w.fresh)
			continue
		}
		at := docs.starts[docs.index[w.text]]
		for _, learn := range docs.learn[at+w.fresh : at+w.to] {
			if learn {
				sum++
			}
		}
	}
	return sum
}

// Lengths returns the positions of the longest of n windows, starting at first, and its tokens.
func (x *Sliding) Lengths(first, n int64) (positions, tokens int) {
	for i := range n {
		w := x.window(first + i)
		positions = max(positions, int(w.to-w.from)-1)
	}
	return positions, positions + 1
}

// Batch reads consecutive windows like Split.Batch. There must be no field start.
func (x *Sliding) Batch(into []Values, first int64) error {
	input, target, start := TokensOf(into)
	if start != nil {
		panic("data: windows do not slide over packed documents")
	}
	T := int(x.split.context)
	for ; len(input) > 0; first++ {
		w := x.window(first)
		n := int(w.to-w.from) - 1
		if err := x.read(input[:n], target[:n], w); err != nil {
			return err
		}
		for i := range min(n, int(w.fresh-w.from)-1) {
			target[i] = Ignored
		}
		Pad(input[:T], target[:T], nil, n)
		input, target = input[T:], target[T:]
	}
	return nil
}

// read reads a window as if all of its tokens had a loss.
func (x *Sliding) read(input, target []int32, w window) error {
	s := x.split
	if s.docs == nil {
		return s.corpus.guard(func() error { return s.window(input, target, s.stretches.first+w.text*s.stretches.stride+w.from) })
	}
	s.docs.fillFrom(input, target, s.docs.starts[s.docs.index[w.text]]+w.from)
	return nil
}
