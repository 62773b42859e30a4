package data

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// tokenizerJSON is tokenizer.json, as far as it decides on ids.
type tokenizerJSON struct {
	Added      []addition      `json:"added_tokens"`
	Normalizer json.RawMessage `json:"normalizer"`
	Pre        stepJSON        `json:"pre_tokenizer"`
	Post       stepJSON        `json:"post_processor"`
	Model      struct {
		Type         string
		Dropout      float64
		Prefix       string `json:"continuing_subword_prefix"`
		Suffix       string `json:"end_of_word_suffix"`
		IgnoreMerges bool   `json:"ignore_merges"`
		Vocab        json.RawMessage
		Merges       []mergeJSON
	}
}

// stepJSON is a step before or after merging.
type stepJSON struct {
	Type        string
	PrefixSpace *bool      `json:"add_prefix_space"`
	Regex       *bool      `json:"use_regex"`
	Single      []partJSON // of a template: what a text becomes
}

// partJSON is a part of a template: a special token, or the text.
type partJSON struct {
	Token json.RawMessage `json:"SpecialToken"`
}

// adds tells whether a step after merging adds tokens to a text.
func (s stepJSON) adds() bool {
	if s.Type == "TemplateProcessing" {
		return slices.ContainsFunc(s.Single, func(p partJSON) bool { return !isNull(p.Token) })
	}
	return s.Type != "" && s.Type != "ByteLevel"
}

// mergeJSON is "LEFT RIGHT", written so or as ["LEFT", "RIGHT"].
type mergeJSON string

// UnmarshalJSON implements json.Unmarshaler.
func (m *mergeJSON) UnmarshalJSON(raw []byte) error {
	var two [2]string
	if len(raw) == 0 || raw[0] != '[' {
		return json.Unmarshal(raw, (*string)(m))
	}
	err := json.Unmarshal(raw, &two)
	*m = mergeJSON(two[0] + " " + two[1])
	return err
}

// against is what of tokenizer.json is not as GPT-2's, or not as vocab.json and
// merges.txt.
func (t *tokenizerJSON) against(v *BPE, ids map[string]uint32) (reasons []string) {
	m, pre, post := t.Model, t.Pre, t.Post
	for _, x := range []struct {
		wrong bool
		what  string
	}{
		{!t.isBPE(), fmt.Sprintf("has a model of type %.40q", m.Type)},
		{m.Dropout != 0, "drops merges at random"},
		{m.Prefix != "" || m.Suffix != "", "marks the parts of words"},
		{m.IgnoreMerges, "takes whole pieces without merging (ignore_merges)"},
		{!isNull(t.Normalizer), "changes text before it is cut (normalizer)"},
		{pre.Type != "ByteLevel", fmt.Sprintf("cuts text by %.40q (pre_tokenizer), not by GPT-2's ByteLevel alone", pre.Type)},
		{pre.Type == "ByteLevel" && (pre.PrefixSpace == nil || *pre.PrefixSpace), "puts a space before the text (add_prefix_space)"},
		{pre.Regex != nil && !*pre.Regex, "does not cut text into pieces (use_regex is false)"},
		{post.adds(), fmt.Sprintf("adds tokens around the text (post_processor %.40q)", post.Type)},
	} {
		if x.wrong {
			reasons = append(reasons, "tokenizer.json "+x.what)
		}
	}
	if err := t.same(v, ids); err != nil {
		reasons = append(reasons, "tokenizer.json"+err.Error())
	}
	return reasons
}

func (t *tokenizerJSON) isBPE() bool { return t.Model.Type == "" || t.Model.Type == "BPE" }

// vocabulary is the encoding of the tokens and merges in tokenizer.json, and its
// ids by the tokens as they are written.
func (t *tokenizerJSON) vocabulary() (*BPE, map[string]uint32, error) {
	ids, err := parseIDs(t.Model.Vocab)
	if err != nil {
		return nil, nil, fmt.Errorf("its vocabulary%w", err)
	}
	for _, a := range t.Added {
		if is, ok := ids[a.Content]; ok && is == a.ID {
			continue
		}
		if err := addID(ids, a.Content, json.Number(fmt.Sprint(a.ID))); err != nil {
			return nil, nil, fmt.Errorf("its added tokens: %w", err)
		}
	}
	v, err := newVocabulary(ids)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range t.Model.Merges {
		if err := v.addMerge(string(m), ids); err != nil {
			return nil, nil, fmt.Errorf("its merges: %w", err)
		}
	}
	return v, ids, nil
}

// same compares the vocabulary in tokenizer.json with that of vocab.json and
// merges.txt. Its own may be without the tokens it adds.
func (t *tokenizerJSON) same(v *BPE, ids map[string]uint32) error {
	own, err := parseIDs(t.Model.Vocab)
	if err != nil {
		return fmt.Errorf(": its vocabulary%w", err)
	}
	for _, a := range t.Added {
		own[a.Content] = a.ID
	}
	for s, id := range ids {
		if is, ok := own[s]; !ok || is != id {
			return fmt.Errorf(" has not the token %.40q, id %d, of vocab.json", s, id)
		}
	}
	if len(own) != len(ids) {
		return fmt.Errorf(" has %d tokens, vocab.json has %d", len(own), len(ids))
	}
	for rank, m := range t.Model.Merges {
		left, right, _ := strings.Cut(string(m), " ")
		if rank >= len(v.order) || v.order[rank] != pair(ids[left], ids[right]) {
			return fmt.Errorf(" has %.80q for its merge %d, merges.txt has not", m, rank+1)
		}
	}
	if len(t.Model.Merges) != len(v.order) {
		return fmt.Errorf(" has %d merges, merges.txt has %d", len(t.Model.Merges), len(v.order))
	}
	return nil
}
