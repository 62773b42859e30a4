package data

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zeroth/data/tokenizer"
	"zeroth/internal/input"
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
// is unsupported.

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
	return fmt.Errorf("%s; without a tokenizer.json only GPT-2's text splitting is supported; add a tokenizer.json, or encode the text with another program and set data.tokens", strings.Join(reasons, "; "))
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
			return nil, fmt.Errorf("%s: %w; or encode the text with another program and set data.tokens", path, err)
		}
		if !t.IsGPT2() || desc.hasChatTemplate() || !desc.splits(t, desc.class(true)) {
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
	if eos := string(desc.config.EOS); eos != "" {
		v.separator = int32(ids[eos])
	}
	return v, desc.config.Record.check(dir, v)
}

// hasChatTemplate reports whether there is a chat template, which requires the files.
func (d description) hasChatTemplate() bool {
	return len(d.texts[templateFile])+len(d.texts[toolsFile]) > 0 || !isNull(d.config.Template)
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
	model   modelConfig       // empty if there is no config.json
}

func readDescription(dir string) (description, error) {
	var files []Recorded
	for _, name := range folderFiles {
		text, err := input.Read(filepath.Join(dir, name), maxVocabFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return description{}, err
		}
		files = append(files, Recorded{name, text})
	}
	d, err := describe(files)
	if err != nil {
		return d, fmt.Errorf("%s%c%w", dir, filepath.Separator, err)
	}
	var model modelConfig
	if text, err := input.Read(filepath.Join(dir, "config.json"), maxVocabFile); err == nil && json.Unmarshal(text, &model) == nil {
		d.model = model
	}
	return d, nil
}

// modelConfig has the fields of a model's config.json that affect ids.
type modelConfig struct {
	Type  string `json:"model_type"`
	Class string `json:"tokenizer_class"`
}

// describe reads files of folderFiles. As in transformers, special_tokens_map.json counts where
// tokenizer_config.json has no added_tokens_decoder.
func describe(files []Recorded) (d description, err error) {
	d.texts = map[string][]byte{}
	into := map[string]any{"tokenizer_config.json": &d.config, "special_tokens_map.json": &d.special, "added_tokens.json": &d.added}
	for _, f := range files {
		d.texts[f.Name] = f.Text
		if into[f.Name] == nil {
			continue
		}
		if err := json.Unmarshal(f.Text, into[f.Name]); err != nil {
			return d, fmt.Errorf("%s: unexpected content: %w", f.Name, err)
		}
	}
	if d.config.Added == nil {
		d.config.specialTokens.overlay(d.special)
	}
	d.config.Extra.addNamed(d.texts["tokenizer_config.json"])
	return d, nil
}

// tokenizerConfig has the fields of tokenizer_config.json that affect ids.
type tokenizerConfig struct {
	Class       string                     `json:"tokenizer_class"`
	Code        json.RawMessage            `json:"auto_map"`
	PrefixSpace *bool                      `json:"add_prefix_space"` // nil if missing, as those below
	Legacy      *bool                      `json:"legacy"`
	AddBOS      *bool                      `json:"add_bos_token"`
	AddEOS      *bool                      `json:"add_eos_token"`
	LowerCase   bool                       `json:"do_lower_case"`
	Split       bool                       `json:"split_special_tokens"`
	Added       map[uint32]tokenizer.Added `json:"added_tokens_decoder"`
	Record      *tokenizerRecord           `json:"zeroth"`
	Template    json.RawMessage            `json:"chat_template"`
	specialTokens
}

// specialTokens are the tokens designated for special purposes.
type specialTokens struct {
	BOS        special      `json:"bos_token"`
	EOS        special      `json:"eos_token"`
	UNK        special      `json:"unk_token"`
	SEP        special      `json:"sep_token"`
	PAD        special      `json:"pad_token"`
	CLS        special      `json:"cls_token"`
	Mask       special      `json:"mask_token"`
	Additional []special    `json:"additional_special_tokens"`
	Extra      extraSpecial `json:"extra_special_tokens"`
}

// named returns the tokens that have a name, which templates know them by.
func (s *specialTokens) named() map[string]special {
	all := map[string]special{"bos_token": s.BOS, "eos_token": s.EOS, "unk_token": s.UNK, "sep_token": s.SEP, "pad_token": s.PAD, "cls_token": s.CLS, "mask_token": s.Mask}
	maps.Copy(all, s.Extra.named)
	return all
}

// unnamed returns the tokens that have no name.
func (s *specialTokens) unnamed() []special { return slices.Concat(s.Additional, s.Extra.list) }

func (s *specialTokens) all() []special {
	return append(slices.Collect(maps.Values(s.named())), s.unnamed()...)
}

// overlay replaces the tokens that o sets by those of o, and appends the additional ones.
func (s *specialTokens) overlay(o specialTokens) {
	for _, x := range []struct{ to, from *special }{{&s.BOS, &o.BOS}, {&s.EOS, &o.EOS}, {&s.UNK, &o.UNK}, {&s.SEP, &o.SEP}, {&s.PAD, &o.PAD}, {&s.CLS, &o.CLS}, {&s.Mask, &o.Mask}} {
		*x.to = cmp.Or(*x.from, *x.to)
	}
	s.Additional, s.Extra.list = append(s.Additional, o.Additional...), append(s.Extra.list, o.Extra.list...)
	if s.Extra.named == nil {
		s.Extra.named = o.Extra.named
	}
}

// extraSpecial is a list of tokens, or an object with a name for each.
type extraSpecial struct {
	list  []special
	named map[string]special
}

// addNamed adds the tokens of a tokenizer_config.json that have names of their own, such as
// image_token.
func (s *extraSpecial) addNamed(config []byte) {
	var keys map[string]json.RawMessage
	_ = json.Unmarshal(config, &keys) // it was read before
	var usual specialTokens
	for name, raw := range keys {
		var t special
		_, known := usual.named()[name]
		if !known && strings.HasSuffix(name, "_token") && raw[0] == '"' && json.Unmarshal(raw, &t) == nil {
			if s.named == nil {
				s.named = map[string]special{}
			}
			s.named[name] = t
		}
	}
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *extraSpecial) UnmarshalJSON(raw []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		return json.Unmarshal(raw, &s.named)
	}
	return json.Unmarshal(raw, &s.list)
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

// name describes which tokenizer the files name.
func (d description) name() string {
	if d.config.Class != "" {
		return fmt.Sprintf("tokenizer_config.json names the class %.40q", d.config.Class)
	}
	return "no file names its class"
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
	}{{c.PrefixSpace != nil && *c.PrefixSpace, "add_prefix_space"}, {c.AddBOS != nil && *c.AddBOS, "add_bos_token"}, {c.AddEOS != nil && *c.AddEOS, "add_eos_token"}, {c.LowerCase, "do_lower_case"}, {c.Split, "split_special_tokens"},
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
	added := []tokenizer.Added{}
	for s, id := range d.added {
		added = append(added, tokenizer.Added{ID: id, Content: s, Special: true})
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
