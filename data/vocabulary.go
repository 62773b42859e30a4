package data

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer/codec"

	"zeroth/data/tokenizer"
	"zeroth/internal/input/jsonread"
)

// Limits of a vocabulary. GPT-2's has 50,257 tokens of at most 128 bytes; the largest
// current models have about 260,000.
const (
	maxVocab     = 1 << 20 // ids, also the limit of a model
	maxMerges    = 1 << 20
	maxToken     = 1 << 10 // bytes
	maxVocabFile = 1 << 26 // bytes of each file that describes a tokenizer
)

// gpt2 returns GPT-2's vocabulary, built from the tokens embedded in tiktoken-go: ids
// 0..50255 in the order they were learned, and 50256 for <|endoftext|>. It does not use that
// package's encoder, which reads bytes that are not UTF-8 as U+FFFD and drops \x7f.
var gpt2 = sync.OnceValue(func() *BPE {
	const n = 50256
	c := codec.NewR50kBase()
	tokens := make([]string, n, n+1)
	for id := range tokens {
		s, err := c.Decode([]uint{uint(id)})
		if err != nil {
			panic(fmt.Sprintf("data: the embedded vocabulary has no id %d: %v", id, err))
		}
		tokens[id] = s
	}
	return ranked(tokens, EndOfText)
})

// ranked returns the encoding for tokens learned in the order of their ids. It derives the
// merges, which tiktoken's format omits.
func ranked(tokens []string, separator string) *BPE {
	v := &BPE{separator: int32(len(tokens))}
	ids := make(map[string]uint32, len(tokens))
	for id, s := range tokens {
		ids[s] = uint32(id)
		if len(s) == 1 {
			v.bytes[s[0]] = uint32(id)
		}
	}
	for id, s := range tokens {
		if len(s) > 1 {
			left, right := halves(s, uint32(id), ids)
			v.add(ids[left], ids[right], uint32(id))
		}
	}
	v.tokens = append(tokens, separator)
	return v
}

// halves returns the two parts that a token is merged from: those that remain when only
// tokens with ids below id are merged.
func halves(s string, id uint32, ids map[string]uint32) (left, right string) {
	cuts := make([]int, len(s)+1)
	for i := range cuts {
		cuts[i] = i
	}
	for len(cuts) > 3 {
		lowest, at := id, 0
		for i := 1; i < len(cuts)-1; i++ {
			if x, ok := ids[s[cuts[i-1]:cuts[i+1]]]; ok && x < lowest {
				lowest, at = x, i
			}
		}
		if at == 0 {
			panic(fmt.Sprintf("data: no two tokens make token %d %q", id, s))
		}
		cuts = append(cuts[:at], cuts[at+1:]...)
	}
	return s[:cuts[1]], s[cuts[1]:]
}

// add adds the next merge.
func (v *BPE) add(left, right, id uint32) {
	v.merges.Set(left, right, uint32(len(v.order)), id)
	v.order = append(v.order, pair(left, right))
}

// parseVocabulary parses the contents of vocab.json, an object of token to id, and of
// merges.txt, a line "LEFT RIGHT" for each merge in rank order. Both spell bytes as printable
// characters, see tokenizer.Alphabet. The ids are those of vocab.json, by its tokens as
// spelled there.
func parseVocabulary(vocab, merges []byte) (v *BPE, ids map[string]uint32, err error) {
	if ids, err = parseIDs(vocab); err != nil {
		return nil, nil, fmt.Errorf("vocab.json%w", err)
	}
	if v, err = newVocabulary(ids); err != nil {
		return nil, nil, fmt.Errorf("vocab.json: %w", err)
	}
	if err := v.setMerges(merges, ids); err != nil {
		return nil, nil, fmt.Errorf("merges.txt%w", err)
	}
	return v, ids, nil
}

// parseIDs parses an object of token to id. Its errors begin with ":LINE: ".
func parseIDs(text []byte) (map[string]uint32, error) {
	ids := map[string]uint32{}
	err := jsonread.All(text, func(r *jsonread.Reader) error {
		return r.Object(func(s string) error {
			id, err := r.Int(maxVocab - 1)
			if err != nil {
				return r.In(s, err)
			}
			return addID(ids, s, uint32(id))
		})
	})
	if e := (*jsonread.Error)(nil); errors.As(err, &e) {
		return nil, fmt.Errorf(":%d: not an object of token to id: %w", e.Line, e.Err)
	}
	return ids, nil
}

func addID(ids map[string]uint32, s string, id uint32) error {
	_, twice := ids[s]
	switch {
	case id >= maxVocab:
		return fmt.Errorf("token %.40q has id %d; ids are below %d", s, id, maxVocab)
	case s == "":
		return fmt.Errorf("id %d is an empty token", id)
	case len(s) > 2*maxToken || utf8.RuneCountInString(s) > maxToken: // a byte is at most two bytes in the alphabet
		return fmt.Errorf("token %.40q... is longer than %d bytes", s, maxToken)
	case strings.ContainsRune(s, utf8.RuneError):
		return fmt.Errorf("token %.40q contains U+FFFD, the replacement character", s)
	case twice:
		return fmt.Errorf("duplicate token %.40q", s)
	}
	ids[s] = id
	return nil
}

// newVocabulary returns an encoding without merges. Its separator is <|endoftext|>, if ids
// contain it.
func newVocabulary(ids map[string]uint32) (*BPE, error) {
	v := &BPE{separator: -1}
	if id, ok := ids[EndOfText]; ok {
		v.separator = int32(id)
	}
	return v, v.setTokens(ids)
}

// setTokens inverts the map of ids.
func (v *BPE) setTokens(ids map[string]uint32) error {
	n := uint32(0)
	for _, id := range ids {
		n = max(n, id+1)
	}
	v.tokens = make([]string, n)
	same := make(map[string]uint32, len(ids))
	for s, id := range ids {
		text, _ := tokenizer.Literal(s)
		if other, ok := same[text]; ok {
			return fmt.Errorf("ids %d and %d are both %.40q", min(id, other), max(id, other), text)
		}
		if v.tokens[id] != "" {
			return fmt.Errorf("id %d is given to %.40q and to another token", id, s)
		}
		v.tokens[id], same[text] = text, id
	}
	for b, c := range tokenizer.Alphabet {
		id, ok := ids[string(c)]
		if !ok {
			return fmt.Errorf("no token %q for the byte 0x%02x; this is not a byte-level vocabulary", c, b)
		}
		v.bytes[b] = id
	}
	return nil
}

// setMerges parses merges.txt. Its errors begin with ":LINE: ".
func (v *BPE) setMerges(text []byte, ids map[string]uint32) error {
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 || n == 1 && bytes.HasPrefix(line, []byte("#version")) {
			continue
		}
		if err := v.addMerge(string(line), ids); err != nil {
			return fmt.Errorf(":%d: %w", n, err)
		}
	}
	return nil
}

// addMerge adds a line of merges.txt as the next rank.
func (v *BPE) addMerge(line string, ids map[string]uint32) error {
	left, right, ok := strings.Cut(line, " ")
	if !ok || strings.Contains(right, " ") {
		return fmt.Errorf("%.80q is not two tokens separated by a space", line)
	}
	var id [3]uint32
	for i, s := range []string{left, right, left + right} {
		if id[i], ok = ids[s]; !ok {
			return fmt.Errorf("%.40q is not in the vocabulary", s)
		}
	}
	if v.merges.Has(id[0], id[1]) {
		return fmt.Errorf("duplicate merge %.80q", line)
	}
	if len(v.order) == maxMerges {
		return fmt.Errorf("more than %d merges", maxMerges)
	}
	v.add(id[0], id[1], id[2])
	return nil
}
