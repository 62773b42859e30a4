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

// A tokenizer's folder has a tokenizer.json, which completely describes the encoding
// (package tokenizer), or a vocab.json and a merges.txt. These two do not describe how text
// is split into pieces before pairs are merged: GPT-2 and Qwen2 have the same two files but
// split differently. Only GPT-2's splitting is supported for them, so something must confirm
// that it applies:
//
//   - tokenizer_config.json with the class GPT2Tokenizer or GPT2TokenizerFast;
//   - or the tokens and merges themselves, if they are GPT-2's own.
//
// A tokenizer.json that only does what GPT-2 does is read like those two files: then text
// that spells out <|endoftext|> is text.
//
// These files, special_tokens_map.json and added_tokens.json must not require anything that
// is not implemented.

// tokenizerFileNames are the files that indicate a tokenizer of some kind in a folder.
var tokenizerFileNames = []string{"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "vocab.txt"}

// TokenizerFiles returns the names of the files in a folder that belong to a tokenizer of
// any kind.
func TokenizerFiles(dir string) (names []string) {
	for _, name := range tokenizerFileNames {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// unsupported returns the error for an unsupported tokenizer.
func unsupported(reasons ...string) error {
	return fmt.Errorf("%s; without a tokenizer.json only GPT-2's text splitting is supported: encode the text elsewhere, with its own tokenizer, and give data.tokens", strings.Join(reasons, "; "))
}

// readFolder returns the tokenizer of a folder: a *BPE if that suffices, otherwise, or if
// there is a chat template, a *Folder.
func readFolder(dir string) (Tokenizer, error) {
	desc, err := readDescription(dir)
	if err != nil {
		return nil, err
	}
	if raw, ok := desc.texts["tokenizer.json"]; ok {
		path := filepath.Join(dir, "tokenizer.json")
		t, err := parseTokenizer(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; encode the text elsewhere, with its own tokenizer, and give data.tokens", path, err)
		}
		if !t.IsGPT2() || desc.hasChatTemplate() {
			return desc.folder(dir, t)
		}
		if err := json.Unmarshal(raw, &desc.whole); err != nil {
			return nil, fmt.Errorf("%s: unexpected content: %w", path, err)
		}
	}
	v, ids, err := desc.vocabulary(dir)
	if err != nil {
		return nil, err
	}
	if reasons := desc.mismatches(v, ids); len(reasons) > 0 {
		return nil, unsupported(reasons...)
	}
	if eos := desc.endOfText(); eos != "" {
		v.separator = int32(ids[eos])
	}
	return v, desc.config.Record.check(dir, v)
}

// hasChatTemplate reports whether there is a chat template, which requires the files.
func (d description) hasChatTemplate() bool {
	_, ok := d.texts["chat_template.jinja"]
	return ok || !isNull(d.config.Template)
}

// vocabulary reads vocab.json and merges.txt or, if they are missing, tokenizer.json.
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
		return nil, nil, unsupported(fmt.Sprintf("%s has %s, but no vocab.json; %s", dir, strings.Join(found, ", "), d.name()))
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

// description has the content of the other files of a tokenizer's folder, as far as they
// exist.
type description struct {
	config  tokenizerConfig
	special specialTokens     // special_tokens_map.json
	added   map[string]uint32 // added_tokens.json
	whole   *tokenizerJSON    // GPT-2's kind; nil if there is none
	texts   map[string][]byte // of ownFiles
}

func readDescription(dir string) (d description, err error) {
	d.texts = map[string][]byte{}
	into := map[string]any{"tokenizer_config.json": &d.config, "special_tokens_map.json": &d.special, "added_tokens.json": &d.added}
	for _, name := range folderFiles {
		path := filepath.Join(dir, name)
		text, err := input.Read(path, maxVocabFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && into[name] != nil {
			err = json.Unmarshal(text, into[name])
			if err != nil {
				err = fmt.Errorf("%s: unexpected content: %w", path, err)
			}
		}
		if err != nil {
			return d, err
		}
		d.texts[name] = text
	}
	return d, nil
}

// tokenizerConfig has the fields of tokenizer_config.json that affect ids.
type tokenizerConfig struct {
	Class       string              `json:"tokenizer_class"`
	Code        json.RawMessage     `json:"auto_map"`
	PrefixSpace bool                `json:"add_prefix_space"`
	AddBOS      *bool               `json:"add_bos_token"` // nil if missing
	AddEOS      *bool               `json:"add_eos_token"`
	LowerCase   bool                `json:"do_lower_case"`
	Added       map[uint32]addition `json:"added_tokens_decoder"`
	Record      *tokenizerRecord    `json:"zeroth"`
	Template    json.RawMessage     `json:"chat_template"`
	specialTokens
}

// specialTokens are the tokens designated for special purposes.
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

// special is a token, given as its text or as an object with its content; null is empty.
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

// addition is a token that is matched in a text before the text is split.
type addition struct {
	ID          uint32
	Content     string
	SingleWord  bool `json:"single_word"`
	SpaceBefore bool `json:"lstrip"`
	SpaceAfter  bool `json:"rstrip"`
	Normalized  bool
	Special     bool
}

// name describes which tokenizer the files name.
func (d description) name() string {
	switch {
	case d.config.Class != "":
		return fmt.Sprintf("tokenizer_config.json names the class %.40q", d.config.Class)
	}
	return "no file names its class"
}

// endOfText returns the token designated to end a text, or "".
func (d description) endOfText() string {
	if d.config.EOS != "" {
		return string(d.config.EOS)
	}
	return string(d.special.EOS)
}

// mismatches returns the reasons why a vocabulary is not known to be encoded as GPT-2's.
func (d description) mismatches(v *BPE, ids map[string]uint32) (reasons []string) {
	add := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	c := d.config
	switch c.Class {
	case "GPT2Tokenizer", "GPT2TokenizerFast":
	case "", "PreTrainedTokenizerFast", "TokenizersBackend": // tokenizer.json is complete
		if d.whole == nil && !v.isGPT2() {
			add(`no file describes how text is split before tokens are merged; if it is split as in GPT-2, put {"tokenizer_class": "GPT2Tokenizer"} into a tokenizer_config.json next to vocab.json`)
		}
	default:
		if d.whole == nil {
			add("tokenizer_config.json names the tokenizer class %.40q", c.Class)
		}
	}
	for _, x := range []struct {
		set bool
		key string
	}{{c.PrefixSpace, "add_prefix_space"}, {c.AddBOS != nil && *c.AddBOS, "add_bos_token"}, {c.AddEOS != nil && *c.AddEOS, "add_eos_token"}, {c.LowerCase, "do_lower_case"},
		{!isNull(c.Code), "auto_map"}} {
		if x.set {
			add("%s in tokenizer_config.json is set", x.key)
		}
	}
	return append(reasons, d.extra(v, ids)...)
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// extra returns the tokens that the files add to vocab.json, or that are matched in text
// before it is split.
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
			reasons = append(reasons, fmt.Sprintf("the added token %.40q must be matched in text as a whole", a.Content))
		}
	}
	slices.Sort(reasons)
	return slices.Compact(reasons)
}
