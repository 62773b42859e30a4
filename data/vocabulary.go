package data

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer/codec"
)

// gpt2 is GPT-2's vocabulary, from the tokens that tiktoken-go embeds: ids
// 0..50255 in the order they were learned, and 50256 for <|endoftext|>. Its
// own encoder is not used: it reads bytes that are not UTF-8 as U+FFFD and
// drops \x7f.
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

// ranked is an encoding in which any two tokens that together are a token
// merge, at the rank of its id: tiktoken's reading of a vocabulary.
func ranked(tokens []string, separator string) *BPE {
	v := &BPE{merges: make(map[uint64]merge, 4*len(tokens)), separator: int32(len(tokens))}
	ids := make(map[string]uint32, len(tokens))
	for id, s := range tokens {
		ids[s] = uint32(id)
		if len(s) == 1 {
			v.bytes[s[0]] = uint32(id)
		}
	}
	for id, s := range tokens {
		for cut := 1; cut < len(s); cut++ {
			left, ok := ids[s[:cut]]
			if !ok {
				continue
			}
			if right, ok := ids[s[cut:]]; ok {
				v.merges[pair(left, right)] = merge{uint32(id), uint32(id)}
			}
		}
	}
	v.tokens = append(tokens, separator)
	return v
}

// maxVocab bounds ids before memory is set aside for them.
const maxVocab = 1 << 24

// readVocabulary reads a folder's vocab.json, an object of token to id, and
// merges.txt, a line "LEFT RIGHT" for each merge in the order of their ranks.
// In both a byte is written as a printable character, see byteOf.
func readVocabulary(dir string) (*BPE, error) {
	name := filepath.Join(dir, "vocab.json")
	ids, err := readIDs(name)
	if err != nil {
		return nil, err
	}
	v := &BPE{merges: make(map[uint64]merge), separator: -1}
	if id, ok := ids[EndOfText]; ok {
		v.separator = int32(id)
	}
	if err := v.setTokens(ids); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return v, v.readMerges(filepath.Join(dir, "merges.txt"), ids)
}

func readIDs(name string) (map[string]uint32, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var ids map[string]uint32
	err = json.Unmarshal(text, &ids)
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	at := int64(len(text))
	switch {
	case err == nil:
		return ids, nil
	case errors.As(err, &wrong):
		at = wrong.Offset
	case errors.As(err, &syntax):
		at = syntax.Offset
	}
	line := 1 + strings.Count(string(text[:min(at, int64(len(text)))]), "\n")
	return nil, fmt.Errorf("%s:%d: not an object of token to id: %w", name, line, err)
}

// setTokens inverts the map of ids.
func (v *BPE) setTokens(ids map[string]uint32) error {
	n := uint32(0)
	for s, id := range ids {
		if id >= maxVocab {
			return fmt.Errorf("token %q has id %d, more than this program expects of a vocabulary", s, id)
		}
		n = max(n, id+1)
	}
	v.tokens = make([]string, n)
	for s, id := range ids {
		if v.tokens[id] != "" {
			return fmt.Errorf("id %d is given to %q and to another token", id, s)
		}
		v.tokens[id] = literal(s)
	}
	for c, b := range byteOf {
		id, ok := ids[string(c)]
		if !ok {
			return fmt.Errorf("there is no token %q for the byte 0x%02x; this is no byte-level vocabulary", c, b)
		}
		v.bytes[b] = id
	}
	return nil
}

func (v *BPE) readMerges(name string, ids map[string]uint32) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSuffix(lines.Text(), "\r")
		if line == "" || n == 1 && strings.HasPrefix(line, "#version") {
			continue
		}
		if err := v.addMerge(line, ids); err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// addMerge adds a line of merges.txt as the next rank.
func (v *BPE) addMerge(line string, ids map[string]uint32) error {
	left, right, ok := strings.Cut(line, " ")
	if !ok || strings.Contains(right, " ") {
		return fmt.Errorf("%q is not two tokens with a space between", line)
	}
	var id [3]uint32
	for i, s := range []string{left, right, left + right} {
		if id[i], ok = ids[s]; !ok {
			return fmt.Errorf("%q is not in vocab.json", s)
		}
	}
	if _, twice := v.merges[pair(id[0], id[1])]; twice {
		return fmt.Errorf("%q is a merge for the second time", line)
	}
	v.merges[pair(id[0], id[1])] = merge{uint32(len(v.merges)), id[2]}
	return nil
}

// byteOf is GPT-2's alphabet for bytes: those that print in Latin-1 stand for
// themselves, the others, in order, are U+0100 and on.
var byteOf = func() map[rune]byte {
	m := make(map[rune]byte, 256)
	more := rune(256)
	for b := range rune(256) {
		if '!' <= b && b <= '~' || '¡' <= b && b <= '¬' || '®' <= b {
			m[b] = byte(b)
			continue
		}
		m[more] = byte(b)
		more++
	}
	return m
}()

// literal is the bytes of a token written in that alphabet. Tokens that are
// not, special ones added later, are taken as they are.
func literal(s string) string {
	b := make([]byte, 0, utf8.RuneCountInString(s))
	for _, r := range s {
		c, ok := byteOf[r]
		if !ok {
			return s
		}
		b = append(b, c)
	}
	return string(b)
}
