package data

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"zeroth/data/tokenizer"
)

// Folder is the tokenizer described by a folder's tokenizer.json and related files. Unlike
// with the other tokenizers, decoding need not restore the original bytes, because
// normalizers change text.
type Folder struct {
	*tokenizer.Tokenizer
	separator int32      // eos_token; -1 if there is none
	as        string     // class and scheme of tokenizer.ParseAs; "" if the file is read as it is
	files     []Recorded // as in the folder
}

// folderFiles are the files of a folder that determine a Folder.
var folderFiles = []string{"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", templateFile, toolsFile}

// The files with chat templates, which replace chat_template in tokenizer_config.json.
const (
	templateFile = "chat_template.jinja"
	toolsFile    = "additional_chat_templates/tool_use.jinja"
)

// Encode returns the ids of a text with the tokens that the tokenizer puts around it.
func (f *Folder) Encode(text []byte) []int32 {
	before, after := f.Around()
	return signed(slices.Concat(before, f.Tokenizer.Encode(text), after))
}

// Plain returns the ids of a text alone, such as a rendered chat, which already contains its
// special tokens.
func (f *Folder) Plain(text []byte) []int32 { return signed(f.Tokenizer.Encode(text)) }

// Decode returns the text of ids, including special tokens. It skips unknown ids.
func (f *Folder) Decode(ids []int32) []byte { return []byte(f.Tokenizer.Decode(ids, false)) }

// Separator returns the id of the token that ends a document, or -1.
func (f *Folder) Separator() int32 { return f.separator }

func signed(ids []uint32) []int32 {
	out := make([]int32, len(ids))
	for i, id := range ids {
		out[i] = int32(id)
	}
	return out
}

// SpecialTokens returns the ids of a tokenizer's eos_token, bos_token and pad_token, as far as it has
// them.
func SpecialTokens(t Tokenizer) map[string]int32 {
	ids := map[string]int32{}
	if end := t.Separator(); end >= 0 {
		ids["eos_token"] = end
		if _, ok := t.(*BPE); ok {
			ids["bos_token"] = end // of GPT2Tokenizer
		}
	}
	f, ok := t.(*Folder)
	if !ok {
		return ids
	}
	d, err := describe(f.files)
	if err != nil {
		panic(fmt.Sprintf("data: a tokenizer's files: %v", err)) // they were read before
	}
	for name, s := range d.config.named() {
		if id, ok := f.ID(string(s)); ok && (name == "bos_token" || name == "pad_token") {
			ids[name] = id
		}
	}
	return ids
}

// sum returns the SHA-256 of everything that affects ids.
func (f *Folder) sum() string {
	h := sha256.New()
	h.Write(f.files[0].Text)
	fmt.Fprint(h, f.separator, f.as)
	return hex.EncodeToString(h.Sum(nil))
}

// MinVocab returns the smallest vocabulary that a model needs for a tokenizer. Tokens added to
// the tokenizer may exceed it: a model may not know them, and plain text does not contain
// them.
func MinVocab(t Tokenizer) int {
	if f, ok := t.(*Folder); ok {
		return f.Model()
	}
	return t.Vocab()
}

// folderEncoder encodes parts of files for a Folder.
type folderEncoder struct {
	*Folder
	texts *tokenizer.Encoder
}

func (f *Folder) parts() partEncoder { return folderEncoder{f, f.NewEncoder()} }

func (f *Folder) cut(text []byte) int { return f.Cut(text, chunkBytes) }

// part appends the ids of a part of a file.
func (e folderEncoder) part(ids []uint32, t task) []uint32 {
	head, tail := e.frame(t)
	ids = append(ids, head...)
	begin := len(ids)
	ids = e.texts.Append(ids, t.text, !t.first)
	if len(ids) > begin && len(tail) == 1 && ids[len(ids)-1] == tail[0] {
		return ids // the text spells its end
	}
	return append(ids, tail...)
}

// frame returns the tokens before and after a task's text: those the tokenizer puts around a
// document, and the separator at its end, unless it is among them.
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

// refuse reports the first byte that is not UTF-8, which a tokenizer.json cannot encode.
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
	return fmt.Errorf("line %d, byte %d is 0x%02x, which is not UTF-8, the only encoding this tokenizer reads; convert the file, for example with iconv -f LATIN1 -t UTF-8", 1+bytes.Count(text[:at], []byte("\n")), at, text[at])
}

// spelledOut counts the special tokens in a task's text.
func (f *Folder) spelledOut(t task, ids []uint32) int64 {
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

func (f *Folder) noteSpelledOut(n int64) string {
	return fmt.Sprintf("the text contains special tokens %d times; they are encoded as those tokens, as by Hugging Face tokenizers", n)
}

// lastParsed caches the last tokenizer.json parsed, because a start requests it several
// times.
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

// folder returns the tokenizer of a folder with a tokenizer.json.
func (d description) folder(dir string, t *tokenizer.Tokenizer) (f *Folder, err error) {
	class, as := d.class(t.ByteLevel()), ""
	if class == "LlamaTokenizer" || class == "Qwen2Tokenizer" && !d.splits(t, class) {
		scheme := d.config.prefixScheme()
		as = class + scheme
		if t, err = tokenizer.ParseAs(d.texts["tokenizer.json"], class, scheme); err != nil {
			return nil, fmt.Errorf("%s, which transformers reads with %s: %w", filepath.Join(dir, "tokenizer.json"), class, err)
		}
	}
	if reasons := d.conflicts(t, class); len(reasons) > 0 {
		return nil, fmt.Errorf("%s; or encode the text with another program and set data.tokens", strings.Join(reasons, "; "))
	}
	f = &Folder{t, -1, as, nil}
	if id, ok := t.ID(cmp.Or(string(d.config.EOS), EndOfText)); ok {
		f.separator = id
	}
	for _, name := range folderFiles {
		if text, ok := d.texts[name]; ok {
			f.files = append(f.files, Recorded{name, text})
		}
	}
	return f, nil
}

// usual are the tokenizer classes of transformers 5.23 by type of model: "" leaves everything to
// tokenizer.json, whatever class the folder names.
var usual = map[string]string{"mistral": "", "mixtral": "", "phi3": "", "olmo2": "", "olmo3": "", "granite": "", "gpt2": "GPT2Tokenizer", "phi": "GPT2Tokenizer", "starcoder2": "GPT2Tokenizer",
	"qwen2": "Qwen2Tokenizer", "qwen2_moe": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "qwen3_moe": "Qwen2Tokenizer",
	"gemma": "GemmaTokenizer", "gemma2": "GemmaTokenizer", "gemma3": "GemmaTokenizer", "gemma3_text": "GemmaTokenizer"}

// class returns the class with which transformers 5.23 reads the folder, if that builds a tokenizer
// of its own from tokenizer.json, otherwise "". bytes is set if the file's alphabet is bytes.
func (d description) class(bytes bool) string {
	class := strings.TrimSuffix(cmp.Or(d.config.Class, d.model.Class), "Fast")
	own, known := usual[d.model.Type]
	switch {
	case class == "LlamaTokenizer" && bytes && d.model.Type != "qwen2":
		return ""
	case known && (own == "" || class == "" || d.model.Type == "qwen2"):
		class = own
	}
	if !tokenizer.Builds(class) {
		return ""
	}
	return class
}

// splits reports whether tokenizer.json splits text as the class does.
func (d description) splits(t *tokenizer.Tokenizer, class string) bool {
	prefix := d.config.PrefixSpace
	return t.Splits(class, prefix != nil && *prefix)
}

// prefixScheme returns the prepend_scheme with which LlamaTokenizer marks the beginning of a text.
func (c tokenizerConfig) prefixScheme() string {
	switch {
	case c.PrefixSpace != nil && !*c.PrefixSpace:
		return "never"
	case c.Legacy != nil && *c.Legacy:
		return "always"
	}
	return "first"
}

// conflicts lists where the other files contradict tokenizer.json, so that programs would
// encode differently. class is the result of d.class.
func (d description) conflicts(t *tokenizer.Tokenizer, class string) (reasons []string) {
	add := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	c := d.config
	if !isNull(c.Code) {
		add("auto_map in tokenizer_config.json names custom code")
	}
	if c.LowerCase {
		add("do_lower_case in tokenizer_config.json is set")
	}
	if c.Split {
		add("split_special_tokens in tokenizer_config.json is set")
	}
	if class != "LlamaTokenizer" && !d.splits(t, class) {
		add("%s", d.otherwise(class))
	}
	if class != "" && c.Added != nil { // the class adds no others
		for _, a := range t.Added() {
			if _, ok := c.Added[a.ID]; !ok {
				add("added_tokens_decoder in tokenizer_config.json lacks %.40q, id %d, of tokenizer.json", a.Content, a.ID)
			}
		}
	}
	before, after := t.Around()
	for _, x := range []struct {
		key   string
		set   *bool
		token special
		is    []uint32
	}{{"add_bos_token", c.AddBOS, c.BOS, before}, {"add_eos_token", c.AddEOS, c.EOS, after}} {
		id, ok := t.ID(string(x.token))
		does := ok && slices.Contains(x.is, uint32(id))
		if x.set != nil && *x.set != does {
			add("%s in tokenizer_config.json is %v, but the post_processor in tokenizer.json does the opposite", x.key, *x.set)
		}
	}
	for _, s := range append(c.all(), d.special.all()...) {
		if _, ok := t.ID(string(s)); s != "" && !ok {
			add("the special token %.40q is not among the added tokens of tokenizer.json", s)
		}
	}
	for _, s := range c.unnamed() {
		if !slices.ContainsFunc(t.Added(), func(a tokenizer.Added) bool { return a.Content == string(s) }) {
			add("extra_special_tokens has %.40q, which is not among the added tokens of tokenizer.json", s)
		}
	}
	for s, id := range d.added {
		if own, ok := t.ID(s); !ok || uint32(own) != id {
			add("added_tokens.json has %.40q, id %d, but tokenizer.json does not", s, id)
		}
	}
	for id, a := range c.Added {
		a.ID = id
		if !slices.Contains(t.Added(), a) {
			add("added_tokens_decoder in tokenizer_config.json defines %.40q, id %d, differently from tokenizer.json", a.Content, id)
		}
	}
	slices.Sort(reasons)
	reasons = slices.Compact(reasons)
	if more := len(reasons) - 8; more > 0 {
		reasons = append(reasons[:8:8], fmt.Sprintf("and %d more", more))
	}
	return reasons
}

// otherwise returns an error that a class contradicts tokenizer.json, with advice.
func (d description) otherwise(class string) string {
	says, advice := "tokenizer_config.json names "+class, "name PreTrainedTokenizerFast there"
	if strings.TrimSuffix(d.config.Class, "Fast") != class {
		says = fmt.Sprintf("transformers reads the tokenizer of a model of type %s with %s", d.model.Type, class)
	}
	if d.model.Type == "qwen2" {
		advice = "copy it to a folder of its own, name PreTrainedTokenizerFast in its tokenizer_config.json, and set data.vocab to that folder"
	}
	return fmt.Sprintf("%s, which splits text otherwise than tokenizer.json; if tokenizer.json is right, %s", says, advice)
}
