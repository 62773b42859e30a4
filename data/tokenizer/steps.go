package tokenizer

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"zeroth/internal/input"
	"zeroth/internal/input/jsonread"
)

// step is an object with a type: a normalizer, a pre-tokenizer, a post-processor or a decoder.
type step struct {
	jsonread.Value
	at string // path in the file: "pre_tokenizer.pretokenizers[1]"
}

// failure is an error in a step. Its readers panic with it, and parse returns it.
type failure struct{ error }

func fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// caught calls f and returns its failure.
func caught(f func()) (err error) {
	defer input.Catch(func(e failure) { err = e.error })
	f()
	return nil
}

// steps flattens a sequence into its steps. A step that is not a sequence gives one step, and
// null gives none.
func (s step) steps(list string) (all []step) {
	switch {
	case s.Kind == jsonread.None || s.Kind == jsonread.Null:
		return nil
	case s.Kind != jsonread.Object:
		fail("%s is %v, not an object", s.at, s.Kind)
	case s.kind() != "Sequence":
		return []step{s}
	}
	s.only(list)
	for i, v := range s.Get(list).Items {
		all = append(all, step{v, fmt.Sprintf("%s.%s[%d]", s.at, list, i)}.steps(list)...)
		if len(all) > maxSteps {
			fail("%s has more than %d steps", s.at, maxSteps)
		}
	}
	return all
}

func (s step) kind() string { return s.Get("type").Text }

// only refuses keys other than the given ones.
func (s step) only(keys ...string) {
	for _, p := range s.Pairs {
		if p.Key != "type" && !slices.Contains(keys, p.Key) {
			fail("%s: unknown key %.40[3]q of %[2]s", s.at, s.kind(), p.Key)
		}
	}
}

// refuse fails with something that is not supported.
func (s step) refuse(format string, args ...any) {
	fail("%s: %s is not supported", s.at, fmt.Sprintf(format, args...))
}

// flag returns the boolean value of a key, or initial if it is missing.
func (s step) flag(key string, initial bool) bool {
	switch v := s.Get(key); v.Kind {
	case jsonread.None, jsonread.Null:
	case jsonread.Bool:
		return v.True
	default:
		fail("%s.%s is %v, not true or false", s.at, key, v.Kind)
	}
	return initial
}

// text returns the string value of a key.
func (s step) text(key string) string {
	v := s.Get(key)
	if v.Kind != jsonread.String {
		fail("%s.%s is %v, not a string", s.at, key, v.Kind)
	}
	return v.Text
}

// literal returns the pattern of a Replace step, which must be a plain string, and its
// replacement.
func (s step) literal() (from, to string) {
	s.only("pattern", "content")
	pattern := step{s.Get("pattern"), s.at + ".pattern"}
	if pattern.Get("Regex").Kind != jsonread.None {
		s.refuse("replacing by a regular expression")
	}
	switch from = pattern.text("String"); {
	case from == "":
		s.refuse("replacing an empty text")
	case len(from) > maxToken:
		s.refuse("replacing a text of more than %d bytes", maxToken)
	}
	return from, s.text("content")
}

// grow counts how much longer a text may become by replacing, and refuses a step that makes it too
// long.
func (s step) grow(times *int, from, to string) {
	*times *= max(1, (len(to)+len(from)-1)/len(from))
	if *times > maxGrowth {
		s.refuse("making a text more than %d times as long by replacing", maxGrowth)
	}
}

// count returns the value of a key that is a small number.
func (s step) count(key string) int {
	n, err := strconv.Atoi(s.Get(key).Text)
	if err != nil || n < 0 || n > maxToken {
		fail("%s.%s is not a number from 0 to %d", s.at, key, maxToken)
	}
	return n
}

// normalizer changes a text; continued is set if the text continues a previous one.
type normalizer func(text []byte, continued bool) []byte

func (t *Tokenizer) readNormalizer(s step) {
	times := 1
	for _, s := range s.steps("normalizers") {
		t.normalizers = append(t.normalizers, t.normalizer(s, &times))
	}
}

// normalizer reads a step; times is how much longer the text may be after it.
func (t *Tokenizer) normalizer(s step, times *int) normalizer {
	switch s.kind() {
	case "NFC":
		s.only()
		loadNFC()
		t.composes = true
		return func(b []byte, _ bool) []byte { return nfc(b) }
	case "NFD", "NFKC", "NFKD":
		s.only()
		loadNFC()
		f := forms[s.kind()]
		if f.compatible {
			t.marked = "" // it may make spaces
		}
		return func(b []byte, _ bool) []byte { return f.apply(b) }
	case "Lowercase":
		s.only()
		loadNFC()
		return func(b []byte, _ bool) []byte { return lowercase(b) }
	case "StripAccents":
		s.only()
		loadNFC()
		t.removes = true
		return func(b []byte, _ bool) []byte { return withoutAccents(b) }
	case "Strip":
		left, right := s.flag("strip_left", true), s.flag("strip_right", true)
		s.only("strip_left", "strip_right")
		t.removes, t.splittable = true, false
		return func(b []byte, _ bool) []byte { return stripped(b, left, right) }
	case "Prepend":
		mark := s.text("prepend")
		if len(mark) > maxToken {
			s.refuse("a text of more than %d bytes", maxToken)
		}
		s.only("prepend")
		if strings.Contains(mark, " ") {
			t.marked = ""
		}
		return func(b []byte, continued bool) []byte {
			if len(b) == 0 || continued {
				return b
			}
			return append([]byte(mark), b...)
		}
	case "Replace":
		from, to := s.literal()
		s.grow(times, from, to)
		t.splittable = t.splittable && !splits(from)
		switch spaces := strings.Contains(to, " "); {
		case from == " " && !spaces:
			t.marked = to
		case spaces:
			t.marked = ""
		}
		t.removes = t.removes || to == "" || utf8.RuneCountInString(from) > 1
		return func(b []byte, _ bool) []byte { return bytes.ReplaceAll(b, []byte(from), []byte(to)) }
	}
	s.refuse("type %.40q", s.kind())
	return nil
}

// cut is a step that splits text into pieces. With prefix, a space is added to a piece that
// does not begin with one.
type cut struct {
	split  splitter // nil if it does not split
	prefix bool
	words  bool // splits between a letter and a space
	gpt2   bool // GPT-2's, built into ByteLevel
	qwen   bool // Qwen 2's
}

func (t *Tokenizer) readPreTokenizer(s step) {
	all := s.steps("pretokenizers")
	for _, s := range all {
		switch {
		case t.bytes && !ofDigits(s):
			s.refuse("a step after ByteLevel")
		case s.kind() == "Metaspace" && len(all) > 1:
			s.refuse("Metaspace combined with other steps")
		}
		t.preTokenizer(s)
	}
}

func (t *Tokenizer) preTokenizer(s step) {
	switch s.kind() {
	case "ByteLevel":
		t.byteLevel(s)
	case "Digits":
		alone := s.flag("individual_digits", false)
		split := digits
		switch {
		case t.bytes && !alone:
			split = digitRuns
		case t.bytes == alone:
			s.refuse("individual_digits: %v at this place", alone)
		}
		s.only("individual_digits")
		t.cuts = append(t.cuts, cut{split: split})
	case "Punctuation":
		if behavior := s.text("behavior"); behavior != "Contiguous" {
			s.refuse("the behavior %.40q", behavior)
		}
		s.only("behavior")
		t.cuts = append(t.cuts, cut{split: punctuated})
	case "Split":
		t.split(s)
	case "Metaspace":
		t.metaspace(s)
	default:
		s.refuse("type %.40q", s.kind())
	}
}

// ofDigits reports whether a step only splits off digits, as Falcon's do after ByteLevel.
func ofDigits(s step) bool {
	return s.kind() == "Digits" || s.kind() == "Split" && s.Get("pattern").Get("Regex").Text == "[0-9][0-9][0-9]"
}

func (t *Tokenizer) byteLevel(s step) {
	c := cut{prefix: s.flag("add_prefix_space", true)}
	if s.flag("use_regex", true) {
		c.split, c.words, c.gpt2 = gpt2, true, true
	}
	s.only("add_prefix_space", "use_regex", "trim_offsets")
	t.bytes = true
	t.cuts = append(t.cuts, c)
}

func (t *Tokenizer) split(s step) {
	behavior, invert := s.text("behavior"), s.flag("invert", false)
	s.only("pattern", "behavior", "invert")
	pattern := s.Get("pattern")
	if text := pattern.Get("String"); text.Kind == jsonread.String && text.Text == " " && behavior == "MergedWithPrevious" && !invert {
		if t.marked == "" { // otherwise there are no spaces
			t.cuts = append(t.cuts, cut{split: after(' ')})
			t.splittable = false
		}
		return
	}
	expression := pattern.Get("Regex")
	whole := behavior == "Isolated" || behavior == "Removed" && invert // equivalent, because the expressions match everything
	f, words := patterns[expression.Text], true
	if part := parts[expression.Text]; part != nil {
		f, words, whole = part, len(expression.Text) > 40, behavior == "Isolated" && !invert
	}
	switch {
	case expression.Kind != jsonread.String || !whole:
		s.refuse("splitting at %.40q (%.40q, inverted: %v)", pattern.Get("String").Text+expression.Text, behavior, invert)
	case f == nil:
		s.refuse("the regular expression %.400q", expression.Text)
	}
	t.cuts = append(t.cuts, cut{split: f, words: words, qwen: expression.Text == qwen2})
}

// metaspace replaces spaces like SentencePiece: by a mark, with another one before the text.
type metaspace struct {
	mark   string
	scheme string // "always", "first", "never"
}

// apply appends the marked text to dst.
func (m *metaspace) apply(dst, text []byte, first bool) []byte {
	text = bytes.ReplaceAll(text, []byte(" "), []byte(m.mark))
	if (m.scheme == "always" || m.scheme == "first" && first) && !bytes.HasPrefix(text, []byte(m.mark)) {
		dst = append(dst, m.mark...)
	}
	return append(dst, text...)
}

// readMetaspace reads the mark and the scheme of a pre-tokenizer or a decoder. Old files have
// add_prefix_space instead of prepend_scheme.
func readMetaspace(s step) (m metaspace) {
	m.mark = s.text("replacement")
	prefix := s.flag("add_prefix_space", true)
	s.only("replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep")
	m.scheme = "always"
	if !prefix {
		m.scheme = "never"
	}
	if v := s.Get("prepend_scheme"); v.Kind == jsonread.String {
		if v.Text != "always" && v.Text != "first" && v.Text != "never" {
			s.refuse("the scheme %.40q", v.Text)
		}
		if !prefix && v.Text != "never" {
			s.refuse("add_prefix_space is false and prepend_scheme is %q", v.Text)
		}
		m.scheme = v.Text
	}
	if m.mark == "" || len(m.mark) > maxMark {
		s.refuse("a replacement of %d bytes", len(m.mark))
	}
	return m
}

func (t *Tokenizer) metaspace(s step) {
	m := readMetaspace(s)
	t.meta, t.marked = &m, m.mark
	if m.scheme == "first" && t.removes { // the reference determines the first piece before normalizing
		s.refuse("marking the first piece of a text whose first character the normalizer may remove")
	}
	if s.flag("split", true) {
		t.cuts = append(t.cuts, cut{split: before(m.mark), words: true})
	}
}

// readPostProcessor reads the tokens put before and after a text.
func (t *Tokenizer) readPostProcessor(s step) {
	for _, s := range s.steps("processors") {
		switch s.kind() {
		case "ByteLevel": // only affects offsets
			s.only("add_prefix_space", "use_regex", "trim_offsets")
		case "TemplateProcessing":
			if t.before != nil || t.after != nil {
				s.refuse("a second template")
			}
			t.template(s)
		default:
			s.refuse("type %.40q", s.kind())
		}
	}
}

// template reads the template for a single text.
func (t *Tokenizer) template(s step) {
	s.only("single", "pair", "special_tokens")
	texts, to := 0, &t.before
	for i, part := range s.Get("single").Items {
		if special := part.Get("SpecialToken"); special.Kind != jsonread.None {
			*to = append(*to, t.templateIDs(s, special.Get("id").Text)...)
			continue
		}
		if part.Get("Sequence").Get("id").Text != "A" {
			fail("%s.single[%d] is neither a special token nor the text", s.at, i)
		}
		texts++
		to = &t.after
	}
	if texts != 1 {
		fail("%s.single has the text %d times", s.at, texts)
	}
}

// templateIDs returns the ids for a name in a template.
func (t *Tokenizer) templateIDs(s step, name string) (ids []uint32) {
	special := s.Get("special_tokens").Get(name)
	if special.Kind == jsonread.None {
		fail("%s.special_tokens has no %.40q", s.at, name)
	}
	for _, v := range special.Get("ids").Items {
		id, err := strconv.ParseUint(v.Text, 10, 32)
		if err != nil || id >= uint64(len(t.tokens)) || t.tokens[id] == "" {
			fail("%s.special_tokens: %.40q has the unknown id %.20q", s.at, name, v.Text)
		}
		ids = append(ids, uint32(id))
	}
	return ids
}
