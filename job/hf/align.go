package hf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"zeroth/checkpoint"
	"zeroth/data"
	"zeroth/internal/input"
)

const generationFile = "generation_config.json"

// Aligned returns the files carried with a trained model and its config.json. In both, the tokens that end,
// begin and pad a text become those of the tokenizer, as after transformers' Trainer, because programs that
// generate text read them only there. generation_config.json may have several ends. It also gets turn, with
// which a chat template ends an answer, unless that is negative. note describes the changes; it is empty if
// there are none.
//
// A checkpoint's own config is not aligned, because pad_token_id affects training.
func (c Carried) Aligned(config []byte, turn int32) (aligned Carried, note string, err error) {
	c.Config = config
	tok, _, err := c.Tokenizer()
	if err != nil {
		return c, "", err
	}
	return c.AlignedWith(tok, config, turn)
}

// AlignedWith is Aligned with the tokenizer among the files; nil is unknown.
func (c Carried) AlignedWith(tok data.Tokenizer, config []byte, turn int32) (aligned Carried, note string, err error) {
	if c.Config = config; config == nil || tok == nil {
		return c, "", nil
	}
	var a aligner
	if a.config, err = members(config); err != nil {
		panic(fmt.Sprintf("hf: config.json: %v", err)) // it was parsed before
	}
	if a.generation, err = c.generation(); err != nil {
		return c, "", err
	}
	special := data.SpecialTokens(tok)
	for _, key := range []string{"eos_token", "bos_token", "pad_token"} {
		if id, ok := special[key]; ok {
			a.align(key+"_id", int(id))
		}
	}
	a.endTurn(int(turn))
	if len(a.notes) == 0 {
		return c, "", nil
	}
	c.Config = append(MustJSON(a.config), '\n')
	c.Files = append(c.with(func(name string) bool { return name != generationFile }).Files,
		checkpoint.Attachment{Path: generationFile, Data: append(MustJSON(a.generation), '\n')})
	return c, "the saved model gets its tokenizer's special tokens, with which other programs stop: " + strings.Join(a.notes, ", "), nil
}

// generation returns the keys of generation_config.json, nil if there is none.
func (c Carried) generation() (keys map[string]json.RawMessage, err error) {
	for _, f := range c.Files {
		if f.Path != generationFile {
			continue
		}
		if keys, err = members(f.Data); err != nil {
			return nil, input.BadInput(fmt.Errorf("the model's %s: %w; mend or remove it", generationFile, err))
		}
	}
	return keys, nil
}

// aligner changes the special tokens of a model.
type aligner struct {
	config, generation map[string]json.RawMessage // generation is nil without generation_config.json
	notes              []string
}

// align sets a token, if the model knows it.
func (a *aligner) align(key string, id int) {
	was, generates := ids(a.config[key]), ids(a.generationOf(key))
	if !a.knows(id) || slices.Contains(was, id) && slices.Contains(generates, id) {
		return
	}
	listed := strings.HasPrefix(tokenID(a.config[key]), "[")
	had := []string{cmp.Or(tokenID(a.config[key]), "none"), cmp.Or(tokenID(a.generationOf(key)), "none")} // in both files
	a.notes = append(a.notes, fmt.Sprintf("%s %d (was %s)", key, id, strings.Join(slices.Compact(had), " and ")))
	a.begin()
	a.config[key], a.generation[key] = MustJSON(id), MustJSON(id)
	if key != "eos_token_id" {
		return
	}
	first := func(all []int) json.RawMessage {
		return mustJSONLine(append([]int{id}, slices.DeleteFunc(all, func(x int) bool { return x == id })...))
	}
	if a.generation[key] = first(generates); listed {
		a.config[key] = first(was)
	}
}

// endTurn adds the end of an answer to the tokens that end a text.
func (a *aligner) endTurn(id int) {
	const key = "eos_token_id"
	ends := ids(a.generationOf(key))
	if !a.knows(id) || slices.Contains(ends, id) {
		return
	}
	a.begin()
	a.generation[key] = mustJSONLine(append(ends, id))
	a.notes = append(a.notes, fmt.Sprintf("%d, which ends an answer in the chat template, also ends a text", id))
}

// knows reports whether a token is in the model's vocabulary.
func (a *aligner) knows(id int) bool {
	var vocab int
	return id >= 0 && (json.Unmarshal(a.config["vocab_size"], &vocab) != nil || id < vocab)
}

// generationOf returns a key of generation_config.json or, without that file, what programs use.
func (a *aligner) generationOf(key string) json.RawMessage {
	if a.generation == nil {
		return a.config[key]
	}
	return a.generation[key]
}

// begin makes a generation_config.json if there is none.
func (a *aligner) begin() {
	if a.generation != nil {
		return
	}
	a.generation = map[string]json.RawMessage{}
	for _, key := range []string{"eos_token_id", "bos_token_id", "pad_token_id"} {
		if raw := a.config[key]; len(ids(raw)) > 0 {
			a.generation[key] = raw
		}
	}
}

// ids returns the tokens in a value that is a number or a list of them.
func ids(raw json.RawMessage) (all []int) {
	if id := tokenID(raw); strings.HasPrefix(id, "[") {
		_ = json.Unmarshal([]byte(id), &all) // tokenID wrote it
	} else if id != "" {
		_ = json.Unmarshal([]byte("["+id+"]"), &all)
	}
	return all
}
