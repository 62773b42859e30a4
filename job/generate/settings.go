package generate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/internal/input/jsonread"
	"zeroth/internal/show"
)

const (
	settingsFile = "generation_config.json"
	maxSettings  = 2 << 20 // bytes of a JSON file
)

// rule is a key of generation_config.json that is one of the Rules.
type rule struct {
	key  string
	ok   func(float64) bool
	want string
	set  func(*Rules, float64)
}

var rules = []rule{
	{"temperature", func(x float64) bool { return x >= 0 }, "a number of at least 0", func(r *Rules, x float64) { r.Temperature = x }},
	{"top_k", func(x float64) bool { return x >= 0 && x <= math.MaxInt32 && x == math.Trunc(x) }, "a whole number of at least 0", func(r *Rules, x float64) { r.TopK = int(x) }},
	{"top_p", func(x float64) bool { return x > 0 && x <= 1 }, "a number above 0 and at most 1", func(r *Rules, x float64) { r.TopP = x }},
	{"min_p", func(x float64) bool { return x >= 0 && x <= 1 }, "a number from 0 to 1", func(r *Rules, x float64) { r.MinP = x }},
	{"repetition_penalty", func(x float64) bool { return x > 0 }, "a number above 0", func(r *Rules, x float64) { r.Penalty = x }},
}

// others are the keys of generation_config.json that change in transformers which text a decoder
// generates, and the value besides null and an empty list with which they do not.
var others = []struct{ key, neutral string }{
	{"num_beams", "1"}, {"num_beam_groups", "1"}, {"diversity_penalty", "0"}, {"constraints", ""}, {"force_words_ids", ""}, {"penalty_alpha", "0"},
	{"dola_layers", ""}, {"guidance_scale", "1"}, {"sequence_bias", ""}, {"no_repeat_ngram_size", "0"}, {"encoder_no_repeat_ngram_size", "0"}, {"encoder_repetition_penalty", "1"}, {"bad_words_ids", ""}, {"min_length", "0"},
	{"min_new_tokens", "0"}, {"forced_bos_token_id", ""}, {"forced_eos_token_id", ""}, {"remove_invalid_values", "false"},
	{"exponential_decay_length_penalty", ""}, {"suppress_tokens", ""}, {"begin_suppress_tokens", ""}, {"top_h", ""}, {"typical_p", "1"},
	{"epsilon_cutoff", "0"}, {"eta_cutoff", "0"}, {"watermarking_config", ""}, {"stop_strings", ""}, {"token_healing", "false"}, {"max_time", ""},
}

// adopt sets the rules that the caller did not choose to those of the model's generation_config.json,
// and notes them. A file without rules changes nothing. Otherwise they are the rules of transformers'
// generate: the most likely token, or with do_sample the file's rules and transformers' defaults for
// missing keys.
func (o *Options) adopt(folder string) error {
	if o.Chosen == nil {
		return nil
	}
	path := filepath.Join(folder, settingsFile)
	raw, err := input.Read(path, maxSettings)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var file jsonread.Value
	if err == nil {
		file, err = jsonread.Parse(raw)
	}
	if err != nil {
		return input.BadInput(fmt.Errorf("%s: %w", path, err))
	}
	values, err := numbers(file)
	if err != nil {
		return input.BadInput(fmt.Errorf("%s: %w", path, err))
	}
	var given []string
	for _, r := range rules {
		x, ok := values[r.key]
		if !ok || o.Chosen[r.key] {
			continue
		}
		if r.set(&o.Rules, x); o.Temperature > 0 || r.key == "temperature" || r.key == "repetition_penalty" {
			given = append(given, fmt.Sprintf("--%s %v", strings.ReplaceAll(r.key, "_", "-"), x))
		}
	}
	if len(given) > 0 {
		o.Note(fmt.Sprintf("from %s: %s", settingsFile, strings.Join(given, " ")))
	}
	if left := unsupported(file); len(left) > 0 {
		o.Note(fmt.Sprintf("not supported in %s, and ignored: %s", settingsFile, strings.Join(left, ", ")))
	}
	return nil
}

// numbers returns the rules in generation_config.json by key, none if it has none of them.
func numbers(file jsonread.Value) (map[string]float64, error) {
	var errs []error
	values := map[string]float64{}
	for _, r := range rules {
		switch v := file.Get(r.key); v.Kind {
		case jsonread.None, jsonread.Null:
		case jsonread.Number:
			x, err := strconv.ParseFloat(v.Text, 64)
			if err != nil || !r.ok(x) {
				errs = append(errs, fmt.Errorf("%s is %.40s; want %s", r.key, v.Text, r.want))
			}
			values[r.key] = x
		default:
			errs = append(errs, fmt.Errorf("%s is %v; want %s", r.key, v.Kind, r.want))
		}
	}
	sample := file.Get("do_sample")
	if k := sample.Kind; k != jsonread.None && k != jsonread.Null && k != jsonread.Bool {
		errs = append(errs, fmt.Errorf("do_sample is %v; want true or false", k))
	}
	defaults := map[string]float64{"temperature": 1, "top_k": 50}
	switch {
	case len(values) == 0 && sample.Kind != jsonread.Bool:
	case sample.True:
		for key, x := range defaults {
			if _, ok := values[key]; !ok {
				values[key] = x
			}
		}
	default:
		values["temperature"] = 0
	}
	return values, errors.Join(errs...)
}

// unsupported returns the keys of generation_config.json that would change the text, but do not here.
func unsupported(file jsonread.Value) (keys []string) {
	for _, k := range others {
		v := file.Get(k.key)
		text := v.Text
		if v.Kind == jsonread.Bool {
			text = strconv.FormatBool(v.True)
		}
		if x, err := strconv.ParseFloat(text, 64); err == nil {
			text = fmt.Sprint(x)
		}
		if v.Kind != jsonread.None && v.Kind != jsonread.Null && text != k.neutral || len(v.Items)+len(v.Pairs) > 0 {
			keys = append(keys, k.key)
		}
	}
	return keys
}

// endsOfText returns the tokens that end a text: eos_token_id, a number or a list, from
// config.json and generation_config.json in the model's folder, and the tokenizer's separator of
// documents.
func endsOfText(folder string, tok data.Tokenizer) (ends []int32, err error) {
	for _, name := range []string{"config.json", settingsFile} {
		path := filepath.Join(folder, name)
		these, err := endsIn(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, input.BadInput(fmt.Errorf("%s: %w", path, err))
		}
		ends = append(ends, these...)
	}
	if s := tok.Separator(); s >= 0 {
		ends = append(ends, s)
	}
	return ends, nil
}

// endsIn reads eos_token_id from a file of at most 2 MiB.
func endsIn(path string) (ends []int32, err error) {
	raw, err := input.Read(path, maxSettings)
	if err != nil {
		return nil, err
	}
	var c struct {
		EOS json.RawMessage `json:"eos_token_id"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	if len(c.EOS) == 0 || string(c.EOS) == "null" {
		return nil, nil
	}
	var one int32
	if json.Unmarshal(c.EOS, &one) == nil {
		return []int32{one}, nil
	}
	if json.Unmarshal(c.EOS, &ends) != nil {
		return nil, fmt.Errorf("eos_token_id is %s; want a token's number, or a list of them", show.Printable(fmt.Sprintf("%.60s", c.EOS)))
	}
	return ends, nil
}
