package data

import (
	"encoding/json"
	"fmt"
	"strings"

	"zeroth/data/tokenizer"
)

// tokenizerJSON has the fields of a tokenizer.json of GPT-2's kind that are compared with
// vocab.json and merges.txt.
type tokenizerJSON struct {
	Added []tokenizer.Added `json:"added_tokens"`
	Model struct {
		Vocab  json.RawMessage
		Merges []mergeJSON
	}
}

// mergeJSON is "LEFT RIGHT", also written as ["LEFT", "RIGHT"].
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

// vocabulary returns the encoding in tokenizer.json, and its ids by tokens as written there.
func (t *tokenizerJSON) vocabulary() (*BPE, map[string]uint32, error) {
	ids, err := parseIDs(t.Model.Vocab)
	if err != nil {
		return nil, nil, fmt.Errorf("its vocabulary%w", err)
	}
	for _, a := range t.Added {
		if same, ok := ids[a.Content]; ok && same == a.ID {
			continue
		}
		if err := addID(ids, a.Content, a.ID); err != nil {
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

// same compares the vocabulary in tokenizer.json with that of vocab.json and merges.txt. Its
// own vocabulary may omit the tokens it adds.
func (t *tokenizerJSON) same(v *BPE, ids map[string]uint32) error {
	tokens, err := parseIDs(t.Model.Vocab)
	if err != nil {
		return fmt.Errorf(": its vocabulary%w", err)
	}
	for _, a := range t.Added {
		tokens[a.Content] = a.ID
	}
	lacks, first := "", uint32(maxVocab)
	for s, id := range ids {
		if is, ok := tokens[s]; (!ok || is != id) && id < first {
			lacks, first = s, id
		}
	}
	if first < maxVocab {
		return fmt.Errorf(" lacks the token %.40q, id %d, of vocab.json", lacks, first)
	}
	if len(tokens) != len(ids) {
		return fmt.Errorf(" has %d tokens, vocab.json has %d", len(tokens), len(ids))
	}
	for rank, m := range t.Model.Merges {
		left, right, _ := strings.Cut(string(m), " ")
		if rank >= len(v.order) || v.order[rank] != pair(ids[left], ids[right]) {
			return fmt.Errorf(" has %.80q as merge %d, unlike merges.txt", m, rank+1)
		}
	}
	if len(t.Model.Merges) != len(v.order) {
		return fmt.Errorf(" has %d merges, merges.txt has %d", len(t.Model.Merges), len(v.order))
	}
	return nil
}
