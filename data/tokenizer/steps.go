package tokenizer

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"zeroth/input/jsonread"
)

// step is an object with a type: a normalizer, a pre-tokenizer, a post-processor or a decoder.
type step struct {
	jsonread.Value
	at string // path in the file: "pre_tokenizer.pretokenizers[1]"
}

// steps flattens a sequence into its steps. A step that is not a sequence gives one step, and
// null gives none.
func (s step) steps(list string) (all []step, err error) {
	switch {
	case s.Kind == jsonread.None || s.Kind == jsonread.Null:
		return nil, nil
	case s.Kind != jsonread.Object:
		return nil, fmt.Errorf("%s is %v, not an object", s.at, s.Kind)
	case s.kind() != "Sequence":
		return []step{s}, nil
	}
	if err := s.only(list); err != nil {
		return nil, err
	}
	for i, v := range s.Get(list).Items {
		more, err := step{v, fmt.Sprintf("%s.%s[%d]", s.at, list, i)}.steps(list)
		if err != nil {
			return nil, err
		}
		if all = append(all, more...); len(all) > maxSteps {
			return nil, fmt.Errorf("%s has more than %d steps", s.at, maxSteps)
		}
	}
	return all, nil
}

func (s step) kind() string { return s.Get("type").Text }

// only returns an error if the step has keys other than the given ones.
func (s step) only(keys ...string) error {
	for _, p := range s.Pairs {
		if p.Key != "type" && !slices.Contains(keys, p.Key) {
			return fmt.Errorf("%s: unknown key %.40[3]q of %[2]s", s.at, s.kind(), p.Key)
		}
	}
	return nil
}

// refuse returns an error for something that is not supported.
func (s step) refuse(format string, args ...any) error {
	return fmt.Errorf("%s: %s is not supported", s.at, fmt.Sprintf(format, args...))
}

// flag returns the boolean value of a key, or initial if it is missing.
func (s step) flag(key string, initial bool) (bool, error) {
	switch v := s.Get(key); v.Kind {
	case jsonread.None, jsonread.Null:
		return initial, nil
	case jsonread.Bool:
		return v.True, nil
	default:
		return false, fmt.Errorf("%s.%s is %v, not true or false", s.at, key, v.Kind)
	}
}

// text returns the string value of a key.
func (s step) text(key string) (string, error) {
	v := s.Get(key)
	if v.Kind != jsonread.String {
		return "", fmt.Errorf("%s.%s is %v, not a string", s.at, key, v.Kind)
	}
	return v.Text, nil
}

// literal returns the pattern of a Replace step, which must be a plain string, and its
// replacement.
func (s step) literal() (from, to string, err error) {
	if err := s.only("pattern", "content"); err != nil {
		return "", "", err
	}
	pattern := step{s.Get("pattern"), s.at + ".pattern"}
	if pattern.Get("Regex").Kind != jsonread.None {
		return "", "", s.refuse("replacing by a regular expression")
	}
	from, err = pattern.text("String")
	switch {
	case err != nil:
	case from == "":
		err = s.refuse("replacing an empty text")
	case len(from) > maxToken:
		err = s.refuse("replacing a text of more than %d bytes", maxToken)
	}
	if err == nil {
		to, err = s.text("content")
	}
	return from, to, err
}

// grow counts how much longer a text may become by replacing, and refuses a step that makes it too
// long.
func (s step) grow(times *int, from, to string) error {
	if from == "" {
		return nil // refused elsewhere
	}
	*times *= max(1, (len(to)+len(from)-1)/len(from))
	if *times > maxGrowth {
		return s.refuse("making a text more than %d times as long by replacing", maxGrowth)
	}
	return nil
}

// count returns the value of a key that is a small number.
func (s step) count(key string) (int, error) {
	n, err := strconv.Atoi(s.Get(key).Text)
	if err != nil || n < 0 || n > maxToken {
		return 0, fmt.Errorf("%s.%s is not a number from 0 to %d", s.at, key, maxToken)
	}
	return n, nil
}

// normalizer changes a text; continued is set if the text continues a previous one.
type normalizer func(text []byte, continued bool) []byte

func (t *Tokenizer) readNormalizer(s step) error {
	all, err := s.steps("normalizers")
	if err != nil {
		return err
	}
	times := 1
	for _, s := range all {
		f, err := t.normalizer(s, &times)
		if err != nil {
			return err
		}
		t.normalizers = append(t.normalizers, f)
	}
	return nil
}

// normalizer reads a step; times is how much longer the text may be after it.
func (t *Tokenizer) normalizer(s step, times *int) (normalizer, error) {
	switch s.kind() {
	case "NFC":
		loadNFC()
		t.composes = true
		return func(b []byte, _ bool) []byte { return nfc(b) }, s.only()
	case "NFD", "NFKC", "NFKD":
		loadNFC()
		f := forms[s.kind()]
		if f.compatible {
			t.marked = "" // it may make spaces
		}
		return func(b []byte, _ bool) []byte { return f.apply(b) }, s.only()
	case "Lowercase":
		loadNFC()
		return func(b []byte, _ bool) []byte { return lowercase(b) }, s.only()
	case "StripAccents":
		loadNFC()
		t.removes = true
		return func(b []byte, _ bool) []byte { return withoutAccents(b) }, s.only()
	case "Strip":
		left, err := s.flag("strip_left", true)
		right, err2 := s.flag("strip_right", true)
		t.removes, t.splittable = true, false
		return func(b []byte, _ bool) []byte { return stripped(b, left, right) }, cmp.Or(err, err2, s.only("strip_left", "strip_right"))
	case "Prepend":
		mark, err := s.text("prepend")
		if err == nil && len(mark) > maxToken {
			err = s.refuse("a text of more than %d bytes", maxToken)
		}
		err = cmp.Or(err, s.only("prepend"))
		if strings.Contains(mark, " ") {
			t.marked = ""
		}
		return func(b []byte, continued bool) []byte {
			if len(b) == 0 || continued {
				return b
			}
			return append([]byte(mark), b...)
		}, err
	case "Replace":
		from, to, err := s.literal()
		err = cmp.Or(err, s.grow(times, from, to))
		t.splittable = t.splittable && !splits(from)
		switch spaces := strings.Contains(to, " "); {
		case from == " " && !spaces:
			t.marked = to
		case spaces:
			t.marked = ""
		}
		t.removes = t.removes || to == "" || utf8.RuneCountInString(from) > 1
		return func(b []byte, _ bool) []byte { return bytes.ReplaceAll(b, []byte(from), []byte(to)) }, err
	}
	return nil, s.refuse("type %.40q", s.kind())
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

func (t *Tokenizer) readPreTokenizer(s step) error {
	all, err := s.steps("pretokenizers")
	if err != nil {
		return err
	}
	for i, s := range all {
		switch {
		case t.bytes && !ofDigits(s):
			return s.refuse("a step after ByteLevel")
		case s.kind() == "Metaspace" && len(all) > 1:
			return s.refuse("Metaspace combined with other steps")
		}
		if err := t.preTokenizer(all[i]); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tokenizer) preTokenizer(s step) error {
	switch s.kind() {
	case "ByteLevel":
		return t.byteLevel(s)
	case "Digits":
		alone, err := s.flag("individual_digits", false)
		split := digits
		switch {
		case t.bytes && !alone:
			split = digitRuns
		case t.bytes == alone:
			err = cmp.Or(err, s.refuse("individual_digits: %v at this place", alone))
		}
		t.cuts = append(t.cuts, cut{split: split})
		return cmp.Or(err, s.only("individual_digits"))
	case "Punctuation":
		behavior, err := s.text("behavior")
		if err == nil && behavior != "Contiguous" {
			err = s.refuse("the behavior %.40q", behavior)
		}
		t.cuts = append(t.cuts, cut{split: punctuated})
		return cmp.Or(err, s.only("behavior"))
	case "Split":
		return t.split(s)
	case "Metaspace":
		return t.metaspace(s)
	}
	return s.refuse("type %.40q", s.kind())
}

// ofDigits reports whether a step only splits off digits, as Falcon's do after ByteLevel.
func ofDigits(s step) bool {
	return s.kind() == "Digits" || s.kind() == "Split" && s.Get("pattern").Get("Regex").Text == "[0-9][0-9][0-9]"
}

func (t *Tokenizer) byteLevel(s step) error {
	prefix, err := s.flag("add_prefix_space", true)
	expression, err2 := s.flag("use_regex", true)
	t.bytes = true
	c := cut{prefix: prefix}
	if expression {
		c.split, c.words, c.gpt2 = gpt2, true, true
	}
	t.cuts = append(t.cuts, c)
	return cmp.Or(err, err2, s.only("add_prefix_space", "use_regex", "trim_offsets"))
}

func (t *Tokenizer) split(s step) error {
	behavior, err := s.text("behavior")
	invert, err2 := s.flag("invert", false)
	if err := cmp.Or(err, err2, s.only("pattern", "behavior", "invert")); err != nil {
		return err
	}
	pattern := s.Get("pattern")
	if text := pattern.Get("String"); text.Kind == jsonread.String && text.Text == " " && behavior == "MergedWithPrevious" && !invert {
		if t.marked == "" { // otherwise there are no spaces
			t.cuts = append(t.cuts, cut{split: after(' ')})
			t.splittable = false
		}
		return nil
	}
	expression := pattern.Get("Regex")
	whole := behavior == "Isolated" || behavior == "Removed" && invert // equivalent, because the expressions match everything
	f, words := patterns[expression.Text], true
	if part := parts[expression.Text]; part != nil {
		f, words, whole = part, len(expression.Text) > 40, behavior == "Isolated" && !invert
	}
	switch {
	case expression.Kind != jsonread.String || !whole:
		return s.refuse("splitting at %.40q (%.40q, inverted: %v)", pattern.Get("String").Text+expression.Text, behavior, invert)
	case f == nil:
		return s.refuse("the regular expression %.400q", expression.Text)
	}
	t.cuts = append(t.cuts, cut{split: f, words: words, qwen: expression.Text == qwen2})
	return nil
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
func readMetaspace(s step) (m metaspace, err error) {
	m.mark, err = s.text("replacement")
	prefix, err2 := s.flag("add_prefix_space", true)
	if err := cmp.Or(err, err2, s.only("replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep")); err != nil {
		return m, err
	}
	m.scheme = "always"
	if !prefix {
		m.scheme = "never"
	}
	if v := s.Get("prepend_scheme"); v.Kind == jsonread.String {
		if v.Text != "always" && v.Text != "first" && v.Text != "never" {
			return m, s.refuse("the scheme %.40q", v.Text)
		}
		if !prefix && v.Text != "never" {
			return m, s.refuse("add_prefix_space is false and prepend_scheme is %q", v.Text)
		}
		m.scheme = v.Text
	}
	if m.mark == "" || len(m.mark) > maxMark {
		err = s.refuse("a replacement of %d bytes", len(m.mark))
	}
	return m, err
}

func (t *Tokenizer) metaspace(s step) error {
	m, err := readMetaspace(s)
	split, err2 := s.flag("split", true)
	t.meta, t.marked = &m, m.mark
	if m.scheme == "first" && t.removes { // the reference determines the first piece before normalizing
		return s.refuse("marking the first piece of a text whose first character the normalizer may remove")
	}
	if split {
		t.cuts = append(t.cuts, cut{split: before(m.mark), words: true})
	}
	return cmp.Or(err, err2)
}

// readPostProcessor reads the tokens put before and after a text.
func (t *Tokenizer) readPostProcessor(s step) error {
	all, err := s.steps("processors")
	if err != nil {
		return err
	}
	for _, s := range all {
		switch s.kind() {
		case "ByteLevel": // only affects offsets
			err = s.only("add_prefix_space", "use_regex", "trim_offsets")
		case "TemplateProcessing":
			if t.before != nil || t.after != nil {
				return s.refuse("a second template")
			}
			err = t.template(s)
		default:
			err = s.refuse("type %.40q", s.kind())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// template reads the template for a single text.
func (t *Tokenizer) template(s step) error {
	if err := s.only("single", "pair", "special_tokens"); err != nil {
		return err
	}
	texts, to := 0, &t.before
	for i, part := range s.Get("single").Items {
		if special := part.Get("SpecialToken"); special.Kind != jsonread.None {
			ids, err := t.templateIDs(s, special.Get("id").Text)
			if err != nil {
				return err
			}
			*to = append(*to, ids...)
			continue
		}
		if part.Get("Sequence").Get("id").Text != "A" {
			return fmt.Errorf("%s.single[%d] is neither a special token nor the text", s.at, i)
		}
		texts++
		to = &t.after
	}
	if texts != 1 {
		return fmt.Errorf("%s.single has the text %d times", s.at, texts)
	}
	return nil
}

// templateIDs returns the ids for a name in a template.
func (t *Tokenizer) templateIDs(s step, name string) (ids []uint32, err error) {
	special := s.Get("special_tokens").Get(name)
	if special.Kind == jsonread.None {
		return nil, fmt.Errorf("%s.special_tokens has no %.40q", s.at, name)
	}
	for _, v := range special.Get("ids").Items {
		id, err := strconv.ParseUint(v.Text, 10, 32)
		if err != nil || id >= uint64(len(t.tokens)) || t.tokens[id] == "" {
			return nil, fmt.Errorf("%s.special_tokens: %.40q has the unknown id %.20q", s.at, name, v.Text)
		}
		ids = append(ids, uint32(id))
	}
	return ids, nil
}
