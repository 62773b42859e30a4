package data

import (
	"fmt"
	"math"

	"zeroth/shard"
)

// periods is the approximate number of validation stretches in a corpus.
const periods = 100

// stretches locates the windows of a split: window w of T+1 tokens begins at token
// first + (w/per)*stride + (w%per)*T.
type stretches struct {
	windows       int64
	per           int64 // windows per stretch, >= 1
	first, stride int64 // tokens
}

type layout struct{ train, held stretches }

// layOut divides n tokens into windows of T+1. With a fraction f > 0 the corpus consists of
// about periods repetitions of [train*T+1 tokens | held*T+1 tokens]; the last, partial one is
// filled in the same order. Up to T tokens at the end are unused.
func layOut(n, T int64, f float64) layout {
	total := max(n-1, 0) / T
	if f == 0 {
		return layout{train: stretches{total, max(total, 1), 0, 0}}
	}
	held := max(1, int64(math.Round(f*float64(total)/periods)))
	train := max(1, int64(math.Round(min(float64(held)*(1-f)/f, float64(total)))))
	split := train*T + 1
	period := split + held*T + 1
	full, rest := n/period, n%period
	some := func(tokens, most int64) int64 { return min(most, max(tokens-1, 0)/T) }
	return layout{
		train: stretches{full*train + some(rest, train), train, 0, period},
		held:  stretches{full*held + some(rest-split, held), held, split, period},
	}
}

// Split is the training or the validation part of a set.
type Split struct {
	corpus    *Corpus // nil for documents
	docs      *sequences
	program   Samples // of a program; nil: tokens
	below     []int   // Source.Below
	mix       mixture // of training documents, if they have weights
	context   int64   // T
	stretches stretches
	shuffle   bool
	seed      uint64
}

// Windows returns the number of samples per epoch, 0 if a program's have no end.
func (s *Split) Windows() int64 { return s.stretches.windows }

// Batch reads consecutive samples, as many as fit into the fields. Those of tokens are
// (samples, T), and target[i] is the token after input[i], or Ignored. If documents are packed, start
// receives, for each position, the first position of its document. Samples are numbered through all epochs. Batch allocates nothing. It returns an
// error if a token file changed after it was opened.
func (s *Split) Batch(into []Values, sample int64) error {
	if s.program != nil {
		return s.read(into, sample)
	}
	T := int(s.context)
	input, target, start := TokensOf(into)
	if len(input) != len(target) || len(input)%T != 0 {
		panic(fmt.Sprintf("data: a batch of %d inputs and %d targets with a context of %d", len(input), len(target), T))
	}
	packed := s.docs != nil && s.docs.packed
	if packed != (start != nil) || packed && len(start) != len(input) {
		panic(fmt.Sprintf("data: %d starts of documents for %d positions, packed %t", len(start), len(input), packed))
	}
	if s.docs == nil {
		return s.corpus.guard(func() error { return s.windowsOf(input, target, sample) })
	}
	for ; len(input) > 0; sample++ {
		s.docs.read(input[:T], target[:T], start[:min(T, len(start))], s.Window(sample))
		input, target, start = input[T:], target[T:], start[min(T, len(start)):]
	}
	return nil
}

// windowsOf reads samples of a corpus.
func (s *Split) windowsOf(input, target []int32, sample int64) error {
	T := int(s.context)
	for ; len(input) > 0; sample++ {
		if err := s.window(input[:T], target[:T], s.start(s.Window(sample))); err != nil {
			return err
		}
		input, target = input[T:], target[T:]
	}
	return nil
}

// window reads a window of a corpus that begins at a token.
func (s *Split) window(input, target []int32, at int64) error {
	n := len(input)
	s.corpus.Read(input, at)
	copy(target, input[1:])
	target[n-1] = s.corpus.At(at + int64(n))
	for _, id := range input {
		if uint64(id) >= uint64(s.corpus.vocab) {
			return fmt.Errorf("%s changed after it was opened: it now contains id %d, beyond the vocabulary of %d", s.corpus.named(at), id, s.corpus.vocab)
		}
	}
	if id := target[n-1]; uint64(id) >= uint64(s.corpus.vocab) {
		return fmt.Errorf("%s changed after it was opened: it now contains id %d, beyond the vocabulary of %d", s.corpus.named(at+int64(n)), id, s.corpus.vocab)
	}
	return nil
}

// Window returns the index, in corpus order, of a sample's window.
func (s *Split) Window(sample int64) int64 {
	if s.program != nil && s.Windows() == 0 {
		return sample // there is no end
	}
	if sample < 0 || s.Windows() == 0 {
		panic(fmt.Sprintf("data: sample %d of %d windows", sample, s.Windows()))
	}
	epoch, position := sample/s.Windows(), sample%s.Windows()
	if !s.shuffle {
		return position
	}
	at := permuted(s.seed, epoch, s.Windows(), position)
	if s.mix != nil {
		return s.mix.window(s.seed, epoch, at)
	}
	return at
}

// start returns the first token of a window.
func (s *Split) start(window int64) int64 {
	x := s.stretches
	return x.first + window/x.per*x.stride + window%x.per*s.context
}

// Share determines how the samples of a step are distributed to ranks. Step t always has samples
// [t*Batch, (t+1)*Batch).
//
// The samples are divided into micro-batches, and these into rounds: a micro-batch for each rank of
// a replica. Replicas take rounds by turns or, with Blocks, have blocks of them (shard.Turn). The first ones have one round
// more than others if the replicas do not divide the rounds.
type Share struct {
	Batch      int // samples per step
	MicroBatch int // samples of a rank and micro-step
	Replicas   int
	Ranks      int  // of a replica, that read different data
	Blocks     bool // replicas have blocks of rounds
}

// Global returns the number of samples per step.
func (s Share) Global() int64 { return int64(s.Batch) }

// Rounds returns the number of rounds in a step.
func (s Share) Rounds() int { return s.Batch / (s.MicroBatch * s.Ranks) }

// Valid reports whether the samples can be divided into rounds, at least one for each replica.
func (s Share) Valid() bool {
	return s.Batch%(s.MicroBatch*s.Ranks) == 0 && s.Rounds() >= s.Replicas
}

// Micro returns the number of micro-batches of a rank in a step. The ranks of replica i are
// [i*Ranks, (i+1)*Ranks).
func (s Share) Micro(rank int) int {
	return shard.Turns(s.Rounds(), s.Replicas, rank/s.Ranks)
}

// Most returns the maximum number of micro-batches of a rank in a step.
func (s Share) Most() int { return s.Micro(0) }

// Even reports whether all ranks have equally many micro-batches.
func (s Share) Even() bool { return s.Rounds()%s.Replicas == 0 }

// First returns the first of the MicroBatch samples that a rank reads in a micro-step. The
// samples of a replica's micro-step are consecutive, in rank order.
func (s Share) First(step int64, micro, rank int) int64 {
	round := micro*s.Replicas + rank/s.Ranks
	if s.Blocks {
		round = shard.Turn(s.Rounds(), s.Replicas, rank/s.Ranks, micro)
	}
	return step*s.Global() + (int64(round)*int64(s.Ranks)+int64(rank%s.Ranks))*int64(s.MicroBatch)
}
