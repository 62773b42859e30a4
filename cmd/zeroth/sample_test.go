//go:build unix

package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestSampleMany checks that prompts are read from flags and from a file, and that --json prints
// one line for each.
func TestSampleMany(t *testing.T) {
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--out", "r")
	if err := os.WriteFile("prompts", []byte("to be\n\n\"a\\n\\u00e9\"\r\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	args := []string{"sample", "--run", "r", "--tokens", "3", "--temperature", "0", "--prompts", "prompts"}
	out, _ := zeroth(t, 0, args...)
	if !strings.HasPrefix(out, "to be") || !strings.Contains(out, "\na\né") || len(out) != len("to be")+len("a\né")+2*(3+1) {
		t.Errorf("%q", out)
	}
	out, _ = zeroth(t, 0, append(args, "--prompt", "x", "--json", "--cpuprofile", "p")...)
	lines := strings.Split(out, "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], `{"prompt":"x","text":"`) || !strings.HasPrefix(lines[1], `{"prompt":"to be","text":"`) ||
		!strings.HasPrefix(lines[2], `{"prompt":"a\né","text":"`) || !strings.HasSuffix(lines[2], `,"tokens":3,"finish_reason":"length"}`) {
		t.Errorf("%q", out)
	}
	if info, err := os.Stat("p"); err != nil || info.Size() == 0 {
		t.Errorf("profile: %v %v", info, err)
	}
	if err := os.WriteFile("prompts", []byte("fine\n\"open\nfine\n\"a\"b\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, told := zeroth(t, 2, args...); !strings.Contains(told, `prompts:2: begins with "`) || !strings.Contains(told, `prompts:4: begins with "`) {
		t.Errorf("%q", told)
	}
}

// TestConversation checks that each reply continues all previous messages and replies, and that
// the oldest are dropped, with a notice, once they do not fit.
func TestConversation(t *testing.T) {
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--out", "r", "--set", "model.context=64", "--set", "train.steps=20", "--set", "optimizer.lr=0.01")
	chatTokenizer(t, "r/model", "{% for m in messages %}{{ m.role[0] + ':' + m.content + ';' }}{% endfor %}{{ mood | default('') }}a:")
	args := []string{"sample", "--run", "r", "--tokens", "9", "--temperature", "0"}
	answers := func(lines string, more ...string) (texts []string, errs string) {
		stdin(t, lines)
		out, errs := zeroth(t, 0, slices.Concat(args, []string{"--chat", "--json"}, more)...)
		for line := range strings.Lines(out) {
			var a struct{ Text string }
			if err := json.Unmarshal([]byte(line), &a); err != nil {
				t.Fatal(err)
			}
			texts = append(texts, a.Text)
		}
		return texts, errs
	}
	after := func(prompt string) string {
		out, _ := zeroth(t, 0, append(args, "--prompt", prompt)...)
		return strings.TrimSuffix(strings.TrimPrefix(out, prompt), "\n")
	}
	first := after("u:hi;a:")
	second := after("u:hi;a:" + first + ";u:to be?;a:")
	if got, errs := answers("hi\r\n\n\nto be?"); !slices.Equal(got, []string{first, second}) || errs != "" {
		t.Errorf("%q, %s; want %q and %q", got, errs, first, second)
	}
	stdin(t, "hi\nto be?\n")
	out, _ := zeroth(t, 0, append(args, "--chat")...)
	if out != first+"\n"+second+"\n" {
		t.Errorf("as text: %q", out)
	}
	want := after("s:x;u:to be?;gooda:")
	got, errs := answers("hi\nto be?\n", "--context", "32", "--system", "x", "--template-arg", "mood=good")
	if len(got) != 2 || got[1] != want {
		t.Errorf("without the first messages: %q, want %q", got, want)
	}
	contains(t, errs, "the conversation is longer than 32 tokens (--context): the model no longer sees the first 2 messages\n")
	for arg, want := range map[string]string{
		"mood":       `variable "mood" of the template; want key=value`,
		"moood=1":    `chat_template.jinja: the chat template has no variable "moood"`,
		"mood=True":  "variable mood=True of the template; want mood=true",
		"messages=1": `"messages" cannot be a variable of the template`,
	} {
		_, errs := zeroth(t, 2, append(args, "--chat", "--prompt", "a", "--template-arg", arg)...)
		contains(t, errs, want)
	}
	_, errs = zeroth(t, 2, append(args, "--template-arg", "a=b", "--prompt", "a")...)
	contains(t, errs, "--template-arg needs --chat")
}

// TestSampleSettings checks which values of generation_config.json are used and which are
// reported as ignored.
func TestSampleSettings(t *testing.T) {
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--out", "r")
	for _, c := range []struct {
		settings string
		args     []string
		code     int
		says     string // the complete notice
	}{
		{`{"eos_token_id": 300, "max_length": 5, "top_a": 3, "num_beams": 1, "typical_p": 1.0, "bad_words_ids": null}`, nil, 0, ""},
		{`{"do_sample": true, "top_p": 0.9}`, nil, 0, "from generation_config.json: --temperature 1 --top-k 50 --top-p 0.9\n"},
		{`{"do_sample": true, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1}`, []string{"--temperature", "2", "--top-k", "0", "--top-p", "1"}, 0,
			"from generation_config.json: --min-p 0.1 --repetition-penalty 1.1\n"},
		{`{"temperature": 0.6, "top_k": 5}`, nil, 0, "from generation_config.json: --temperature 0\n"},
		{`{"temperature": 0.6, "top_k": 5}`, []string{"--temperature", "1"}, 0, "from generation_config.json: --top-k 5\n"},
		{`{"num_beams": 4, "no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.2, "stop_strings": ["a"], "remove_invalid_values": true}`, nil, 0,
			"not supported in generation_config.json, and ignored: num_beams, no_repeat_ngram_size, encoder_repetition_penalty, remove_invalid_values, stop_strings\n"},
		{`{"do_sample": "yes", "temperature": -1, "top_k": 1.5, "top_p": "0.9"}`, nil, 2, "r/model/generation_config.json: temperature is -1; want a number of at least 0\n" +
			"top_k is 1.5; want a whole number of at least 0\ntop_p is a string; want a number above 0 and at most 1\ndo_sample is a string; want true or false\n"},
	} {
		put("generation_config.json", c.settings)(t, "r/model")
		_, errs := zeroth(t, c.code, append([]string{"sample", "--run", "r", "--prompt", "to be", "--tokens", "3"}, c.args...)...)
		if errs != c.says {
			t.Errorf("%s %v: %q, want %q", c.settings, c.args, errs, c.says)
		}
	}
}
