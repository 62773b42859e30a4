package data

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"zeroth/data/tokenizer"
)

// Folder is the tokenizer that the tokenizer.json of a folder describes, with what
// is said of it in the files beside. Unlike the others it need not give back the
// bytes it was given: normalizers change text.
type Folder struct {
	*tokenizer.Tokenizer
	separator int32      // eos_token; -1: there is none
	files     []Recorded // as they are in the folder
}

// ownFiles are the files of a folder that decide on a Folder.
var ownFiles = []string{"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"}

// Encode is the ids of a text with what the tokenizer puts before and after it.
func (f *Folder) Encode(text []byte) []int32 {
	before, after := f.Around()
	return signed(slices.Concat(before, f.Tokenizer.Encode(text), after))
}

// Plain is the ids of a text alone: of a chat that was rendered, whose template
// has put its own tokens around it.
func (f *Folder) Plain(text []byte) []int32 { return signed(f.Tokenizer.Encode(text)) }

// Decode is the text of ids, special tokens among them; an id that no token has is
// left out.
func (f *Folder) Decode(ids []int32) []byte { return []byte(f.Tokenizer.Decode(ids, false)) }

// Separator is the id of the token that ends a document.
func (f *Folder) Separator() int32 { return f.separator }

func signed(ids []uint32) []int32 {
	out := make([]int32, len(ids))
	for i, id := range ids {
		out[i] = int32(id)
	}
	return out
}

// sum is the SHA-256 of what decides on ids.
func (f *Folder) sum() string {
	h := sha256.New()
	h.Write(f.files[0].Text)
	fmt.Fprint(h, f.separator)
	return hex.EncodeToString(h.Sum(nil))
}

// Least is the size of the smallest vocabulary that a network needs for a
// tokenizer: tokens may be added to it that the network does not know, and that no
// text of it has.
func Least(t Tokenizer) int {
	if f, ok := t.(*Folder); ok {
		return f.Model()
	}
	return t.Vocab()
}

// ownEncoder encodes files.
type ownEncoder struct {
	*Folder
	texts *tokenizer.Encoder
}

func (f *Folder) parts() partEncoder { return ownEncoder{f, f.NewEncoder()} }

func (f *Folder) cut(text []byte) int { return f.Cut(text, chunkBytes) }

// part adds the ids of a part of a file.
func (e ownEncoder) part(ids []uint32, t task) []uint32 {
	head, tail := e.frame(t)
	return append(e.texts.Append(append(ids, head...), t.text, !t.first), tail...)
}

// frame is what a document has around its text, as far as it is a task's: what the
// tokenizer puts there, and the separator at its end, unless that is there already.
func (f *Folder) frame(t task) (head, tail []uint32) {
	before, after := f.Around()
	if t.first {
		head = before
	}
	if t.last {
		tail = slices.Clone(after)
		if end := uint32(f.separator); f.separator >= 0 && (len(tail) == 0 || tail[len(tail)-1] != end) {
			tail = append(tail, end)
		}
	}
	return head, tail
}

// refuse names the first byte that is no UTF-8: a tokenizer.json is of characters.
func (f *Folder) refuse(text []byte) error {
	if utf8.Valid(text) {
		return nil
	}
	at := 0
	for at < len(text) {
		r, n := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		at += n
	}
	return fmt.Errorf("line %d, byte %d is 0x%02x, which is not UTF-8, and the tokenizer reads nothing else; convert the file: iconv -f LATIN1 -t UTF-8, if it is in that", 1+bytes.Count(text[:at], []byte("\n")), at, text[at])
}

// spelt is how many special tokens the text of a task has in it.
func (f *Folder) spelt(t task, ids []uint32) int64 {
	head, tail := f.frame(t)
	return f.specials(ids) - f.specials(head) - f.specials(tail)
}

func (f *Folder) specials(ids []uint32) (n int64) {
	for _, id := range ids {
		if f.Special(id) {
			n++
		}
	}
	return n
}

func (f *Folder) noteSpelt(n int64) string {
	return fmt.Sprintf("the text spells out special tokens %d times; there they are those tokens, as in the reference", n)
}

// lastParsed is the tokenizer.json that was parsed last: a start asks for it
// several times.
var lastParsed struct {
	sync.Mutex
	sum [sha256.Size]byte
	tok *tokenizer.Tokenizer
}

func parseTokenizer(raw []byte) (*tokenizer.Tokenizer, error) {
	sum := sha256.Sum256(raw)
	lastParsed.Lock()
	defer lastParsed.Unlock()
	if lastParsed.tok != nil && lastParsed.sum == sum {
		return lastParsed.tok, nil
	}
	t, err := tokenizer.Parse(raw)
	if err == nil {
		lastParsed.sum, lastParsed.tok = sum, t
	}
	return t, err
}

// own is the tokenizer of a folder's tokenizer.json.
func (d description) own(dir string, t *tokenizer.Tokenizer) (*Folder, error) {
	if reasons := d.ownReasons(t); len(reasons) > 0 {
		return nil, fmt.Errorf("%s: %s; encode the text elsewhere, with the tokenizer it is meant for, and give data.tokens", dir, strings.Join(reasons, "; "))
	}
	f := &Folder{t, -1, nil}
	if id, ok := t.ID(cmp.Or(d.endOfText(), EndOfText)); ok {
		f.separator = id
	}
	for _, name := range ownFiles {
		if text, ok := d.texts[name]; ok {
			f.files = append(f.files, Recorded{name, text})
		}
	}
	return f, nil
}

// ownReasons are where the files beside tokenizer.json say otherwise: then programs
// differ in what they do.
func (d description) ownReasons(t *tokenizer.Tokenizer) (reasons []string) {
	add := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	c := d.config
	if !isNull(c.Code) {
		add("auto_map of tokenizer_config.json names code of its own")
	}
	if c.LowerCase {
		add("do_lower_case of tokenizer_config.json is set")
	}
	before, after := t.Around()
	for _, x := range []struct {
		key   string
		said  *bool
		token special
		is    []uint32
	}{{"add_bos_token", c.AddBOS, c.BOS, before}, {"add_eos_token", c.AddEOS, c.EOS, after}} {
		id, ok := t.ID(string(x.token))
		does := ok && slices.Contains(x.is, uint32(id))
		if x.said != nil && *x.said != does {
			add("%s of tokenizer_config.json is %v, and by its post_processor tokenizer.json does otherwise", x.key, *x.said)
		}
	}
	for _, s := range append(c.all(), d.special.all()...) {
		if _, ok := t.ID(string(s)); s != "" && !ok {
			add("the special token %.40q is not among the added tokens of tokenizer.json", s)
		}
	}
	for s, id := range d.added {
		if is, ok := t.ID(s); !ok || uint32(is) != id {
			add("added_tokens.json has %.40q, id %d, tokenizer.json has not", s, id)
		}
	}
	for id, a := range c.Added {
		a.ID = id
		if !slices.Contains(t.Added(), tokenizer.Added(a)) {
			add("added_tokens_decoder of tokenizer_config.json has %.40q, id %d, otherwise than tokenizer.json", a.Content, id)
		}
	}
	slices.Sort(reasons)
	reasons = slices.Compact(reasons)
	if more := len(reasons) - 8; more > 0 {
		reasons = append(reasons[:8:8], fmt.Sprintf("and %d things more", more))
	}
	return reasons
}
