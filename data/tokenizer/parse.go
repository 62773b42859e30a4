package tokenizer

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"

	"zeroth/internal/input/jsonread"
)

// Limits of a tokenizer.json. The caller limits its size.
const (
	maxVocab  = 1 << 20 // ids
	maxMerges = 1 << 20
	maxAdded  = 1 << 16
	maxToken  = 1 << 10 // bytes of a token's text
	maxFound  = 1 << 7  // bytes of an added token, which is searched for at every position
	allFound  = 1 << 19 // bytes of all added tokens
	maxMark   = 8       // bytes that Metaspace writes for a space
	maxSteps  = 32      // of a sequence of steps
	maxGrowth = 4       // times that replacing may make a text longer
)

// Tokenizer is a parsed tokenizer.json. It is immutable and safe for concurrent use.
type Tokenizer struct {
	added       []Added
	raw, normed finder // finders of added, in the original and in the normalized text
	found       int    // bytes of added

	normalizers []normalizer
	meta        *metaspace // nil if none
	marked      string     // replacement of spaces; "" if they stay
	cuts        []cut
	removes     bool // normalizing may remove a character, or replace several as one
	splittable  bool // no searched string extends from other text into white space
	composes    bool // NFC is a normalizer
	bytes       bool // the model's alphabet is bytes (ByteLevel) rather than characters

	ids               map[string]uint32 // by text; if bytes is set, by the bytes represented
	uni               *unigram          // nil for BPE
	merges            Merges
	fallback          [256]int64 // id of a byte, or -1
	fallsBack         bool       // characters without a token fall back to bytes
	unknown           int64      // id, or -1
	fuse              bool       // consecutive unknown characters become one token
	ignoreMerges      bool       // a piece that is a token is not merged
	mergesAcrossMarks bool       // some merge extends from other text into mark

	before, after []uint32 // ids the template puts around a text

	tokens    []string // by id, as written; "" if an id has none
	model     int      // exclusive upper bound of ids in the model's own vocabulary
	special   []bool   // by id
	decoder   []func(next stage) stage
	separator string // separator of tokens if there is no decoder

	// specials are skipped by Decode if plain. They are identified by their text, so that, as in
	// the reference, a token that normalizing changes is not skipped.
	specials map[string]bool
}

// Added is a token that is matched in a text before the text is split.
type Added struct {
	ID          uint32 `json:"id"`
	Content     string `json:"content"`
	SingleWord  bool   `json:"single_word"` // matches only if no letter or digit is adjacent
	SpaceBefore bool   `json:"lstrip"`      // includes white space before it
	SpaceAfter  bool   `json:"rstrip"`      // includes white space after it
	Normalized  bool   `json:"normalized"`  // matched in normalized text
	Special     bool   `json:"special"`
}

// Parse reads a tokenizer.json. Its error names the unsupported part.
func Parse(text []byte) (*Tokenizer, error) {
	return parse(text, func(*fileReader) error { return nil })
}

// parse reads a tokenizer.json, of which change may replace parts.
func parse(text []byte, change func(*fileReader) error) (*Tokenizer, error) {
	load()
	t := &Tokenizer{unknown: -1, splittable: true, separator: " ", specials: map[string]bool{}}
	f := fileReader{Reader: jsonread.New(text), model: modelReader{ids: map[string]uint32{}}}
	if err := f.read(); err != nil {
		return nil, err
	}
	if err := cmp.Or(f.model.check(), change(&f)); err != nil {
		return nil, err
	}
	must := func(err error) {
		if err != nil {
			panic(failure{err})
		}
	}
	err := caught(func() {
		t.readNormalizer(step{f.steps["normalizer"], "normalizer"})
		t.readPreTokenizer(step{f.steps["pre_tokenizer"], "pre_tokenizer"})
		must(t.setModel(&f.model))
		must(t.setAdded(f.added, len(f.model.ids)))
		t.readPostProcessor(step{f.steps["post_processor"], "post_processor"})
		t.readDecoder(step{f.steps["decoder"], "decoder"})
	})
	if err != nil {
		return nil, err
	}
	t.cutWords()
	return t, nil
}

// fileReader reads the parts of the file in any order.
type fileReader struct {
	*jsonread.Reader
	steps map[string]jsonread.Value
	added []Added
	model modelReader
}

func (f *fileReader) read() error {
	f.steps = map[string]jsonread.Value{}
	one := func(key string) func() error {
		return func() (err error) {
			f.steps[key], err = f.Value()
			return err
		}
	}
	f.model.Reader = f.Reader
	seen := false
	err := f.Fields(map[string]func() error{
		"version":    f.readVersion,
		"truncation": nil, "padding": nil, // concern batches; programs set them for each batch
		"normalizer": one("normalizer"), "pre_tokenizer": one("pre_tokenizer"), "post_processor": one("post_processor"), "decoder": one("decoder"),
		"added_tokens": f.readAdded,
		"model":        func() error { seen = true; return f.model.read() },
	})
	if err == nil {
		err = f.End()
	}
	if err == nil && !seen {
		err = f.Wrong("no model")
	}
	return err
}

func (f *fileReader) readVersion() error {
	v, err := f.Value()
	if err == nil && (v.Kind != jsonread.String || v.Text != "1.0") {
		err = f.Wrong("the version is %.20q; want \"1.0\"", v.Text)
	}
	return err
}

func (f *fileReader) readAdded() error {
	if f.Null() {
		return nil
	}
	return f.Array(func(i int) error {
		var a Added
		err := f.Strict(&a)
		switch {
		case err != nil:
			return err
		case a.ID >= maxVocab:
			return f.Wrong("id %d where a number below %d is expected", a.ID, maxVocab)
		case i == maxAdded:
			return f.Wrong("more than %d added tokens", maxAdded)
		case len(a.Content) > maxFound:
			return f.Wrong("the added token %.40q... is longer than %d bytes", a.Content, maxFound)
		}
		f.added = append(f.added, a)
		return nil
	})
}

// modelReader reads the model.
type modelReader struct {
	*jsonread.Reader
	kind           string
	unknown        string // ignored if it is not a token
	fuse, fallback bool
	ignoreMerges   bool
	prefix, suffix string
	dropout        float64
	ids            map[string]uint32
	merges         [][3]uint32      // left, right, both
	early          *jsonread.Reader // at the merges, if they came before the vocabulary
	uni            *unigram         // if the vocabulary has scores
	unknownID      *int             // of a Unigram model; nil if it is missing
	otherModel     string           // a key of another model type
}

func (m *modelReader) read() error {
	into := func(v any) func() error {
		return func() error {
			if m.Null() {
				return nil
			}
			return m.Strict(v)
		}
	}
	return m.Fields(map[string]func() error{
		"type": into(&m.kind), "unk_token": into(&m.unknown), "unk_id": into(&m.unknownID), "dropout": into(&m.dropout),
		"continuing_subword_prefix": into(&m.prefix), "end_of_word_suffix": into(&m.suffix),
		"fuse_unk": into(&m.fuse), "byte_fallback": into(&m.fallback), "ignore_merges": into(&m.ignoreMerges),
		"vocab": m.readVocab, "merges": m.readMerges,
		"max_input_chars_per_word": m.pass("max_input_chars_per_word"), // keys of other models
	})
}

// pass skips a key of another model type; check reports it.
func (m *modelReader) pass(key string) func() error {
	return func() error {
		m.otherModel = key
		_, err := m.Raw()
		return err
	}
}

func (m *modelReader) readVocab() error {
	if m.Next() == jsonread.Array {
		return m.readScores()
	}
	return m.Object(func(s string) error {
		id, err := m.Int(maxVocab - 1)
		switch {
		case err != nil:
			return err
		case s == "":
			return m.Wrong("id %d is an empty token", id)
		case len(s) > 2*maxToken || utf8.RuneCountInString(s) > maxToken: // a byte is at most two bytes in the alphabet
			return m.Wrong("token %.40q... is longer than %d bytes", s, maxToken)
		case len(m.ids) == maxVocab:
			return m.Wrong("more than %d tokens", maxVocab)
		}
		m.ids[s] = uint32(id)
		return nil
	})
}

// readMerges reads merges, written as "LEFT RIGHT" or ["LEFT", "RIGHT"].
func (m *modelReader) readMerges() error {
	if len(m.ids) == 0 {
		m.early = m.Fork()
		_, err := m.Raw()
		return err
	}
	return m.Array(func(i int) error {
		if i == maxMerges {
			return m.Wrong("more than %d merges", maxMerges)
		}
		var parts [2]string
		if m.Next() == jsonread.Array {
			n := 0
			err := m.Array(func(i int) (err error) {
				if n++; i > 1 {
					return m.Wrong("a merge of more than two tokens")
				}
				parts[i], err = m.String()
				return err
			})
			if err == nil && n < 2 {
				err = m.Wrong("a merge of %d tokens", n)
			}
			if err != nil {
				return err
			}
		} else {
			line, err := m.String()
			left, right, ok := strings.Cut(line, " ")
			if err == nil && (!ok || strings.Contains(right, " ")) {
				err = m.Wrong("%.80q is not two tokens separated by a space", line)
			}
			if err != nil {
				return err
			}
			parts = [2]string{left, right}
		}
		return m.addMerge(parts[0], parts[1])
	})
}

func (m *modelReader) addMerge(left, right string) error {
	var ids [3]uint32
	for i, s := range [...]string{left, right, left + right} {
		id, ok := m.ids[s]
		if !ok {
			return m.Wrong("the merge of %.40q and %.40q: %.40q is not in the vocabulary", left, right, s)
		}
		ids[i] = id
	}
	m.merges = append(m.merges, ids)
	return nil
}

// check refuses unsupported models.
func (m *modelReader) check() error {
	if m.early != nil && len(m.ids) > 0 {
		m.Reader = m.early
		if err := m.readMerges(); err != nil {
			return err
		}
	}
	switch {
	case m.kind == "Unigram" && m.uni != nil && m.otherModel == "" && len(m.merges) == 0:
		return m.checkUnigram()
	case m.kind != "BPE" && m.kind != "":
		return fmt.Errorf("model: type %.40q is not supported; only BPE and Unigram are", m.kind)
	case m.uni != nil || m.unknownID != nil:
		return fmt.Errorf("model: scores and unk_id are not valid for BPE")
	case m.otherModel != "":
		return fmt.Errorf("model: %s is not valid for BPE", m.otherModel)
	case len(m.ids) == 0:
		return fmt.Errorf("model: no vocabulary")
	case m.dropout != 0:
		return fmt.Errorf("model: dropout %v is not supported", m.dropout)
	case m.prefix != "" || m.suffix != "":
		return fmt.Errorf("model: marking parts of words (continuing_subword_prefix %.20q, end_of_word_suffix %.20q) is not supported", m.prefix, m.suffix)
	}
	return nil
}

// setModel sets the vocabulary and the merges.
func (t *Tokenizer) setModel(m *modelReader) error {
	t.fuse, t.fallsBack, t.ignoreMerges = m.fuse, m.fallback, m.ignoreMerges
	if t.bytes && t.fallsBack {
		return fmt.Errorf("model: byte_fallback with a byte-level vocabulary is not supported")
	}
	if id, ok := m.ids[m.unknown]; ok {
		t.unknown = int64(id)
	}
	if t.uni = m.uni; t.uni != nil {
		t.unknown = int64(*m.unknownID)
		t.ignoreMerges = false // there are none
	}
	if t.bytes && t.uni != nil {
		return fmt.Errorf("model: Unigram with ByteLevel is not supported")
	}
	if err := t.setTokens(m.ids); err != nil {
		return err
	}
	for rank, x := range m.merges {
		t.merges.Set(x[0], x[1], uint32(rank), x[2])
		t.mergesAcrossMarks = t.mergesAcrossMarks || strings.Contains(strings.TrimLeft(t.tokens[x[2]], mark), mark)
	}
	t.model = len(t.tokens)
	return t.complete()
}

func (t *Tokenizer) setTokens(ids map[string]uint32) error {
	t.ids = ids
	if t.bytes {
		t.ids = make(map[string]uint32, len(ids))
	}
	for s, id := range ids {
		if err := t.setToken(id, s); err != nil {
			return err
		}
		if text, ok := Literal(s); ok && t.bytes {
			t.ids[text] = id
		}
	}
	for b := range t.fallback {
		s := string(Alphabet[b])
		if !t.bytes {
			s = fmt.Sprintf("<0x%02X>", b)
		}
		t.fallback[b] = -1
		if id, ok := ids[s]; ok {
			t.fallback[b] = int64(id)
		}
	}
	return nil
}

func (t *Tokenizer) setToken(id uint32, s string) error {
	for int(id) >= len(t.tokens) {
		t.tokens = append(t.tokens, make([]string, 1+int(id)-len(t.tokens))...)
	}
	if old := t.tokens[id]; old != "" && old != s {
		return fmt.Errorf("id %d is given to %.40q and to %.40q", id, min(old, s), max(old, s))
	}
	t.tokens[id] = s
	return nil
}

// complete refuses a vocabulary that would lose text: the reference drops characters without a
// token.
func (t *Tokenizer) complete() error {
	if t.unknown >= 0 {
		return nil
	}
	for b, id := range t.fallback {
		never := b == 0xc0 || b == 0xc1 || b > 0xf4 // never in UTF-8
		switch {
		case id >= 0 || never:
		case t.bytes:
			return fmt.Errorf("model: no token for the byte 0x%02x and no unk_token: text would be lost", b)
		default:
			return fmt.Errorf("model: no token <0x%02X> and no unk_token: text would be lost", b)
		}
	}
	if !t.bytes && !t.fallsBack {
		return fmt.Errorf("model: neither byte_fallback nor unk_token: characters without a token would be lost")
	}
	return nil
}

// setAdded adds the added tokens. Whatever ids the file gives, the reference uses the id in the
// vocabulary or, for a new token, the next free one.
func (t *Tokenizer) setAdded(all []Added, vocab int) error {
	byText := make(map[string]uint32, len(t.tokens))
	for id, s := range t.tokens {
		if s != "" {
			byText[s] = uint32(id)
		}
	}
	next, seen := vocab, map[string]bool{}
	for _, a := range all {
		if a.Content == "" {
			return fmt.Errorf("added_tokens: id %d is an empty token", a.ID)
		}
		if seen[a.Content] {
			return fmt.Errorf("added_tokens: duplicate token %.40q", a.Content)
		}
		seen[a.Content] = true
		id, ok := byText[a.Content]
		if !ok {
			id = uint32(next)
		}
		if id != a.ID {
			return fmt.Errorf("added_tokens: %.40q has id %d, but the reference gives it id %d; programs would disagree", a.Content, a.ID, id)
		}
		next = max(next, int(id)+1)
		if next > maxVocab {
			return fmt.Errorf("added_tokens: more than %d tokens in all", maxVocab)
		}
		if err := t.setToken(id, a.Content); err != nil {
			return fmt.Errorf("added_tokens: %w", err)
		}
		if t.add(a); t.found > allFound {
			return fmt.Errorf("added_tokens: more than %d bytes of tokens", allFound)
		}
	}
	return nil
}

func (t *Tokenizer) add(a Added) {
	i := len(t.added)
	t.added = append(t.added, a)
	t.found += len(a.Content)
	if a.Normalized {
		t.tokens[a.ID] = string(t.normalize([]byte(a.Content), false)) // as the reference decodes it
		t.normed.add(t.tokens[a.ID], i)
	} else {
		t.raw.add(a.Content, i)
	}
	t.splittable = t.splittable && !splits(a.Content)
	for int(a.ID) >= len(t.special) {
		t.special = append(t.special, false)
	}
	t.special[a.ID] = a.Special
	if a.Special {
		t.specials[a.Content] = true
	}
}

// Added returns the tokens that are matched in a text before it is split.
func (t *Tokenizer) Added() []Added { return t.added }

// Vocab returns the largest id plus one.
func (t *Tokenizer) Vocab() int { return len(t.tokens) }

// Model returns the largest id of the model's own vocabulary plus one. It is less than Vocab if
// tokens were added that the network may not know.
func (t *Tokenizer) Model() int { return t.model }

// ID returns the id of an added token.
func (t *Tokenizer) ID(content string) (int32, bool) {
	for _, a := range t.added {
		if a.Content == content {
			return int32(a.ID), true
		}
	}
	return 0, false
}

// Special reports whether an id is that of a special token.
func (t *Tokenizer) Special(id uint32) bool { return int(id) < len(t.special) && t.special[id] }

// IsGPT2 reports whether text is encoded exactly as in GPT-2, with at most one added token,
// which ends a text.
func (t *Tokenizer) IsGPT2() bool {
	return len(t.normalizers) == 0 && t.meta == nil && t.bytes && len(t.cuts) == 1 && t.cuts[0].gpt2 && !t.cuts[0].prefix &&
		!t.ignoreMerges && t.before == nil && t.after == nil && t.unknown < 0 &&
		(len(t.added) == 0 || len(t.added) == 1 && t.added[0].Special)
}

// Token returns the token of an id as written in the file, or "".
func (t *Tokenizer) Token(id int32) string {
	if id < 0 || int(id) >= len(t.tokens) {
		return ""
	}
	return t.tokens[id]
}

// Around returns the ids that the template puts before and after a text.
func (t *Tokenizer) Around() (before, after []uint32) { return t.before, t.after }
