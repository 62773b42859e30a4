package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zeroth/input"
)

// A tokenizer's folder has a tokenizer.json, which says all that is done to a text
// (package tokenizer), or a vocab.json and a merges.txt. These do not say how text
// is cut into pieces before pairs are merged: GPT-2 and Qwen2 have the same two
// files and other pieces. Only GPT-2's pieces are made of them, so something has to
// say that they are meant:
//
//   - tokenizer_config.json with the class GPT2Tokenizer or GPT2TokenizerFast;
//   - or the tokens and merges themselves, if they are GPT-2's own.
//
// A tokenizer.json that does nothing but what GPT-2 does is taken as those two
// files: then text that spells out <|endoftext|> is text.
//
// Neither of these, nor special_tokens_map.json and added_tokens.json, may ask
// for anything that is not done here.

// signs are the files by which a folder has a tokenizer of some kind.
var signs = []string{"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "vocab.txt"}

// TokenizerFiles are the names of the files that a tokenizer, of whatever kind,
// has in a folder.
func TokenizerFiles(dir string) (names []string) {
	for _, name := range signs {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// foreign is the error of a tokenizer that does not run here, and why.
func foreign(reasons ...string) error {
	return fmt.Errorf("%s; without a tokenizer.json only GPT-2's way to cut text runs here: encode the text elsewhere, with the tokenizer it is meant for, and give data.tokens", strings.Join(reasons, "; "))
}

// readFolder is the tokenizer of a folder: a *BPE, if that is all there is to it,
// else, and where there is a chat template, a *Folder.
func readFolder(dir string) (Tokenizer, error) {
	said, err := readDescription(dir)
	if err != nil {
		return nil, err
	}
	if raw, ok := said.texts["tokenizer.json"]; ok {
		path := filepath.Join(dir, "tokenizer.json")
		t, err := parseTokenizer(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; encode the text elsewhere, with the tokenizer it is meant for, and give data.tokens", path, err)
		}
		if !t.IsGPT2() || said.chats() {
			return said.own(dir, t)
		}
		if err := json.Unmarshal(raw, &said.whole); err != nil {
			return nil, fmt.Errorf("%s: not what such a file says: %w", path, err)
		}
	}
	v, ids, err := said.vocabulary(dir)
	if err != nil {
		return nil, err
	}
	if reasons := said.against(v, ids); len(reasons) > 0 {
		return nil, foreign(reasons...)
	}
	if eos := said.endOfText(); eos != "" {
		v.separator = int32(ids[eos])
	}
	return v, said.config.Record.check(dir, v)
}

// chats is whether there is a chat template, for which the files are needed.
func (d description) chats() bool {
	_, ok := d.texts["chat_template.jinja"]
	return ok || !isNull(d.config.Template)
}

// vocabulary is what vocab.json and merges.txt say; without them, what
// tokenizer.json does.
func (d description) vocabulary(dir string) (*BPE, map[string]uint32, error) {
	vocab, err := input.Read(filepath.Join(dir, "vocab.json"), maxVocabFile)
	found := TokenizerFiles(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && d.whole != nil:
		v, ids, err := d.whole.vocabulary()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", filepath.Join(dir, "tokenizer.json"), err)
		}
		return v, ids, nil
	case errors.Is(err, fs.ErrNotExist) && len(found) > 0:
		return nil, nil, foreign(fmt.Sprintf("%s has %s, but no vocab.json; %s", dir, strings.Join(found, ", "), d.name()))
	case err != nil:
		return nil, nil, err
	}
	merges, err := input.Read(filepath.Join(dir, "merges.txt"), maxVocabFile)
	if err != nil {
		return nil, nil, err
	}
	v, ids, err := parseVocabulary(vocab, merges)
	if err != nil {
		return nil, nil, fmt.Errorf("%s%c%w", dir, filepath.Separator, err)
	}
	return v, ids, nil
}

// description is what the files beside vocab.json and merges.txt say. A file
// that is not there says nothing.
type description struct {
	config  tokenizerConfig
	special specialTokens     // special_tokens_map.json
	added   map[string]uint32 // added_tokens.json
	whole   *tokenizerJSON    // nil if there is none; it is as GPT-2's
	texts   map[string][]byte // of ownFiles
}

func readDescription(dir string) (d description, err error) {
	d.texts = map[string][]byte{}
	into := map[string]any{"tokenizer_config.json": &d.config, "special_tokens_map.json": &d.special, "added_tokens.json": &d.added}
	for _, name := range ownFiles {
		path := filepath.Join(dir, name)
		text, err := input.Read(path, maxVocabFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && into[name] != nil {
			err = json.Unmarshal(text, into[name])
			if err != nil {
				err = fmt.Errorf("%s: not what such a file says: %w", path, err)
			}
		}
		if err != nil {
			return d, err
		}
		d.texts[name] = text
	}
	return d, nil
}

// tokenizerConfig is tokenizer_config.json, as far as it decides on ids.
type tokenizerConfig struct {
	Class       string              `json:"tokenizer_class"`
	Code        json.RawMessage     `json:"auto_map"`
	PrefixSpace bool                `json:"add_prefix_space"`
	AddBOS      *bool               `json:"add_bos_token"` // nil: it says nothing
	AddEOS      *bool               `json:"add_eos_token"`
	LowerCase   bool                `json:"do_lower_case"`
	Added       map[uint32]addition `json:"added_tokens_decoder"`
	Record      *tokenizerRecord    `json:"zeroth"`
	Template    json.RawMessage     `json:"chat_template"`
	specialTokens
}

// specialTokens are the tokens that a vocabulary is to have for a purpose.
type specialTokens struct {
	BOS        special   `json:"bos_token"`
	EOS        special   `json:"eos_token"`
	UNK        special   `json:"unk_token"`
	SEP        special   `json:"sep_token"`
	PAD        special   `json:"pad_token"`
	CLS        special   `json:"cls_token"`
	Mask       special   `json:"mask_token"`
	Additional []special `json:"additional_special_tokens"`
}

func (s specialTokens) all() []special {
	return append([]special{s.BOS, s.EOS, s.UNK, s.SEP, s.PAD, s.CLS, s.Mask}, s.Additional...)
}

// special is a token, written as its text or as an object with its content;
// empty where there is null.
type special string

// UnmarshalJSON implements json.Unmarshaler.
func (s *special) UnmarshalJSON(raw []byte) error {
	var object struct{ Content *string }
	if json.Unmarshal(raw, &object) == nil && object.Content != nil {
		*s = special(*object.Content)
		return nil
	}
	return json.Unmarshal(raw, (*string)(s))
}

// addition is a token that is looked for in a text before it is cut.
type addition struct {
	ID          uint32
	Content     string
	SingleWord  bool `json:"single_word"`
	SpaceBefore bool `json:"lstrip"`
	SpaceAfter  bool `json:"rstrip"`
	Normalized  bool
	Special     bool
}

// name is what a description calls its tokenizer.
func (d description) name() string {
	switch {
	case d.config.Class != "":
		return fmt.Sprintf("tokenizer_config.json says it is a %.40q", d.config.Class)
	}
	return "nothing says what it is"
}

// endOfText is the token that is said to end a text; empty if none is.
func (d description) endOfText() string {
	if d.config.EOS != "" {
		return string(d.config.EOS)
	}
	return string(d.special.EOS)
}

// against is why a vocabulary is not, or not known to be, one that is encoded
// here as it is meant.
func (d description) against(v *BPE, ids map[string]uint32) (reasons []string) {
	add := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	c := d.config
	switch c.Class {
	case "GPT2Tokenizer", "GPT2TokenizerFast":
	case "", "PreTrainedTokenizerFast", "TokenizersBackend": // tokenizer.json says it all
		if d.whole == nil && !v.isGPT2() {
			add(`nothing says how the text is cut before tokens are merged; if it is as GPT-2 does, put {"tokenizer_class": "GPT2Tokenizer"} into a tokenizer_config.json beside vocab.json`)
		}
	default:
		if d.whole == nil {
			add("its tokenizer is a %.40q, says tokenizer_config.json", c.Class)
		}
	}
	for _, x := range []struct {
		said bool
		key  string
	}{{c.PrefixSpace, "add_prefix_space"}, {c.AddBOS != nil && *c.AddBOS, "add_bos_token"}, {c.AddEOS != nil && *c.AddEOS, "add_eos_token"}, {c.LowerCase, "do_lower_case"},
		{!isNull(c.Code), "auto_map"}} {
		if x.said {
			add("%s of tokenizer_config.json is set", x.key)
		}
	}
	return append(reasons, d.extra(v, ids)...)
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// extra are the tokens that the files add to vocab.json, or that text is
// searched for before it is cut.
func (d description) extra(v *BPE, ids map[string]uint32) (reasons []string) {
	for _, s := range append(d.config.all(), d.special.all()...) {
		if _, ok := ids[string(s)]; s != "" && !ok {
			reasons = append(reasons, fmt.Sprintf("the special token %.40q is not in vocab.json", s))
		}
	}
	added := []addition{}
	for s, id := range d.added {
		added = append(added, addition{ID: id, Content: s, Special: true})
	}
	for id, a := range d.config.Added {
		a.ID = id
		added = append(added, a)
	}
	if d.whole != nil {
		added = append(added, d.whole.Added...)
		if err := d.whole.same(v, ids); err != nil {
			reasons = append(reasons, "tokenizer.json"+err.Error())
		}
	}
	for _, a := range added {
		switch id, ok := ids[a.Content]; {
		case !ok || id != a.ID || !plain(a.Content):
			reasons = append(reasons, fmt.Sprintf("the added token %.40q, id %d, is not in vocab.json", a.Content, a.ID))
		case !a.Special:
			reasons = append(reasons, fmt.Sprintf("the added token %.40q is to be found in text as a whole", a.Content))
		}
	}
	slices.Sort(reasons)
	return slices.Compact(reasons)
}
