package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// unigram is SentencePiece's model of the same name: among all ways to divide a text into pieces
// of the vocabulary, it chooses the one with the largest sum of scores. It follows the
// reference's encode_optimized, in the order of its sums and comparisons.
type unigram struct {
	pieces finder    // of the vocabulary, by id
	scores []float64 // by id
	least  float64   // of the scores
}

const (
	maxPieces = 4 << 20 // bytes of all pieces
	penalty   = 10      // an unknown character has the least score minus this
)

// readScores reads a vocabulary of pieces and their scores: [["▁the", -3.1], ...].
func (m *modelReader) readScores() error {
	bytes := 0
	m.uni = &unigram{least: math.Inf(1)}
	return m.Array(func(id int) error {
		piece, number, n := "", "", 0
		wrong := m.Array(func(i int) (err error) {
			if n++; i == 0 {
				piece, err = m.String()
			} else {
				number, err = m.Number()
			}
			return err
		})
		if wrong != nil || n != 2 {
			return cmp.Or(wrong, m.Wrong("item %d of the vocabulary is not a piece and its score", id))
		}
		score, err := strconv.ParseFloat(number, 64)
		_, twice := m.ids[piece]
		switch bytes += len(piece); {
		case err != nil:
			return m.Wrong("the score %.40s is out of range", number)
		case piece == "" || len(piece) > maxFound:
			return m.Wrong("piece %d has %d bytes; want 1 to %d", id, len(piece), maxFound)
		case twice:
			return m.Wrong("piece %.40q occurs twice", piece)
		case id == maxVocab || bytes > maxPieces:
			return m.Wrong("more than %d pieces or %d bytes", maxVocab, maxPieces)
		}
		m.ids[piece] = uint32(id)
		m.uni.pieces.add(piece, id)
		m.uni.scores = append(m.uni.scores, score)
		m.uni.least = min(m.uni.least, score)
		return nil
	})
}

// checkUnigram refuses files that the reference refuses or that would lose text.
func (m *modelReader) checkUnigram() error {
	switch id := m.unknownID; {
	case id == nil:
		return errors.New("model: a Unigram model needs unk_id, the id of a piece")
	case *id < 0 || *id >= len(m.uni.scores):
		return fmt.Errorf("model: unk_id %d is not the id of a piece", *id)
	}
	return nil
}

// path is the best way to divide a text up to a position: its last piece, and the sum of the scores.
type path struct {
	from, id int32 // from is -1 if there is no way yet
	score    float64
}

// unigrams appends the ids of a piece of text.
func (e *Encoder) unigrams(ids []uint32, p []byte) []uint32 {
	u := e.uni
	best := make([]path, len(p)+1)
	for i := range best {
		best[i].from = -1
	}
	best[0].from = 0
	reach := func(from, to int, id int32, score float64) {
		if score += best[from].score; best[to].from < 0 || score > best[to].score {
			best[to] = path{int32(from), id, score}
		}
	}
	for at := 0; at < len(p); {
		_, n := utf8.DecodeRune(p[at:])
		single := false
		for k, i := int32(0), at; i < len(p); {
			if k = u.pieces.nodes[k].to(p[i]); k == 0 {
				break
			}
			i++
			if id := u.pieces.nodes[k].value; id >= 0 {
				reach(at, i, id, u.scores[id])
				single = single || i-at == n
			}
		}
		if !single {
			reach(at, at+n, int32(e.unknown), u.least-penalty)
		}
		at += n
	}
	return e.backwards(ids, p, best)
}

// backwards appends the ids of the best way to divide a piece of text. Consecutive unknown
// characters are one piece, encoded as bytes if there are tokens for them.
func (e *Encoder) backwards(ids []uint32, p []byte, best []path) []uint32 {
	var ends []int // of pieces, from the last to the first
	for at := len(p); at > 0; {
		ends = append(ends, at)
		unknown := int64(best[at].id) == e.unknown
		for at = int(best[at].from); unknown && at > 0 && int64(best[at].id) == e.unknown; {
			at = int(best[at].from)
		}
	}
	from := 0
	for i := len(ends) - 1; i >= 0; i-- {
		piece := p[from:ends[i]]
		from = ends[i]
		id, ok := e.ids[string(piece)]
		switch {
		case ok:
			ids = append(ids, id)
		case e.fallsBack && e.inBytes(piece):
			for _, b := range piece {
				ids = append(ids, uint32(e.fallback[b]))
			}
		default:
			ids = append(ids, uint32(e.unknown))
		}
	}
	return ids
}
