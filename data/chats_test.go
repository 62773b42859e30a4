package data

import (
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zeroth/data/chat"
	"zeroth/internal/input/jsonread"
	"zeroth/tests/nightly"
)

// recordedChat is what transformers makes of a chat; see tests/interop/chats.py.
type recordedChat struct {
	Error   string
	IDs     []int32
	Mask    []int
	Turns   [][2][]int32 // of each answer: the prompt, and the text with the answer
	Refused string       // why there are no turns
}

type recordedChats struct {
	Chats     []json.RawMessage
	Templates map[string]struct {
		Config    json.RawMessage
		Tokenizer string
		Results   []recordedChat
	}
}

func readRecordedChats(t *testing.T) (all recordedChats) {
	readRecorded(t, cmp.Or(os.Getenv("ZEROTH_CHATS"), "testdata/chats.json.gz"), &all)
	return all
}

// readRecorded reads JSON compressed with gzip.
func readRecorded(t *testing.T, path string, into any) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestChatsAreTransformers encodes chats with tools, reasoning, nulls and variables, by the
// families' own templates: ids and masks are apply_chat_template's, and every answer is learned
// once, after exactly the tokens that the model sees at its turn.
func TestChatsAreTransformers(t *testing.T) {
	nightly.Long(t)
	all := readRecordedChats(t)
	equal, divided := 0, 0
	for name, template := range all.Templates {
		dir := t.TempDir()
		ownFolder(t, dir, template.Tokenizer, map[string]string{"tokenizer_config.json": string(template.Config)})
		tok, err := NewTokenizer(dir)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		d := &docReader{Documents: Documents{Format: "chat"}}
		if d.chat, err = NewChat(tok, time.Date(2026, 3, 7, 0, 0, 0, 0, time.UTC)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i, want := range template.Results {
			record, err := jsonread.Parse(all.Chats[i])
			if err != nil {
				t.Fatal(err)
			}
			c, err := d.conversation(record, false)
			if err != nil {
				t.Fatal(err)
			}
			whole, err := d.chat.Examples(c.talk, "all")
			if want.Error != "" || err != nil {
				if want.Error == "" || err == nil {
					t.Errorf("%s, chat %d: %v, but transformers: %q", name, i, err, want.Error)
				}
				continue
			}
			if !slices.Equal(whole[0].ids, want.IDs) {
				t.Errorf("%s, chat %d:\n got %q\nwant %q", name, i, tok.Decode(whole[0].ids), tok.Decode(want.IDs))
				continue
			}
			examples, err := d.chat.Examples(c.talk, "assistant")
			if err != nil {
				t.Errorf("%s, chat %d: %v", name, i, err)
				continue
			}
			if want.Mask != nil {
				var mask []int
				for _, l := range examples[0].learn {
					mask = append(mask, map[bool]int{true: 1}[l])
				}
				if !slices.Equal(mask, want.Mask) || len(examples) > 1 {
					t.Errorf("%s, chat %d:\n got %v\nwant %v", name, i, mask, want.Mask)
				}
			} else if err := learnedOnce(examples, want.Turns); err != nil {
				t.Errorf("%s, chat %d (%q): %.600v", name, i, tok.Decode(want.IDs), err)
			}
			if equal++; len(examples) > 1 {
				divided++
			}
		}
	}
	if t.Logf("%d chats equal, %d of them divided", equal, divided); equal < 450 || divided < 50 {
		t.Error("too few")
	}
}

// learnedOnce checks that each turn is learned, after the tokens that the model sees then, and that
// nothing else is.
func learnedOnce(examples []tokens, turns [][2][]int32) error {
	learned := 0
	for _, x := range examples {
		for _, l := range x.learn {
			if l {
				learned++
			}
		}
	}
	for i, turn := range turns {
		n := 0
		for _, x := range examples {
			n = max(n, learnedOf(x, turn[0], turn[1]))
		}
		if n == 0 {
			return fmt.Errorf("answer %d is not learned: %v", i+1, turn[1])
		}
		learned -= n
	}
	if learned != 0 {
		return fmt.Errorf("%d tokens of others are learned, too", learned)
	}
	return nil
}

// learnedOf returns how many tokens of a turn are learned in an example that has it; 0 if it has
// not.
func learnedOf(x tokens, prompt, text []int32) int {
	from := 0
	for from < min(len(prompt), len(text)) && prompt[from] == text[from] {
		from++
	}
	end := len(text) // the last token may end every conversation, and not the answer
	if from < len(text)-1 && (len(x.ids) < end || !slices.Equal(x.ids[:end], text) || !x.learn[end-1]) {
		end--
	}
	if from < len(prompt) && len(x.ids) > len(prompt) && slices.Equal(x.ids[:len(prompt)], prompt) { // its text is another without the answer
		tail := x.ids[len(prompt):]
		if len(tail) <= len(text) && slices.Equal(tail, text[len(text)-len(tail):]) && !slices.Contains(x.learn[len(prompt):], false) {
			return len(tail)
		}
	}
	if len(x.ids) < end || !slices.Equal(x.ids[:end], text[:end]) {
		return 0
	}
	for most := from + 2; from < len(prompt) && from < most && from < end && !x.learn[from]; { // a token of a prompt that goes on otherwise
		from++
	}
	if slices.Contains(x.learn[from:end], false) {
		return 0
	}
	return end - from
}

// TestRecordForms checks that records of other programs are read as chats, and that those that
// cannot be are refused by what they are.
func TestRecordForms(t *testing.T) {
	const user, assistant = "<|im_start|>user\n", "<|im_start|>assistant\n"
	for record, want := range map[string]string{
		`{"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}`:                                                          "<|im_start|>system\ns<|im_end|>\n" + user + "a<|im_end|>\n" + assistant + "[b<|im_end|>\n]",
		`{"conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`:                                                                                   user + "a<|im_end|>\n" + assistant + "[b<|im_end|>\n]",
		`{"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "instruction": "no", "output": "no"}`:                                                            user + "a<|im_end|>\n" + assistant + "[b<|im_end|>\n]",
		`{"instruction": "a", "input": "b", "output": "c", "system": null}`:                                                                                                              user + "a\nb<|im_end|>\n" + assistant + "[c<|im_end|>\n]",
		`{"instruction": "a", "input": "", "output": "c", "history": [["x", "y"]]}`:                                                                                                      user + "x<|im_end|>\n" + assistant + "[y<|im_end|>\n]" + user + "a<|im_end|>\n" + assistant + "[c<|im_end|>\n]",
		`{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]}`: user + "a<|im_end|>\n" + assistant + "b<|im_end|>\n" + user + "c<|im_end|>\n" + assistant + "[d<|im_end|>\n]",
		`{"messages": [{"role": "user", "content": "a", "x": null}, {"role": "assistant", "content": "b", "tool_calls": null}], "tools": null}`:                                          user + "a<|im_end|>\n" + assistant + "[b<|im_end|>\n]",
		`{"messages": [{"role": "assistant", "content": "b"}], "tools": ""}`:                                                                                                             assistant + "[b<|im_end|>\n]",
		`{"system": "s", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 1}]}`:                                                            "<|im_start|>system\ns<|im_end|>\n" + user + "a<|im_end|>\n" + assistant + "[b<|im_end|>\n]",
		`{"system": "s", "messages": [{"role": "system", "content": "a"}]}`:                                                                                                              "",
		`{"system": 1, "conversations": [{"from": "human", "value": "a"}]}`:                                                                                                              "",
		`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}`:                                                                           "",
		`{"messages": [{"role": "user", "content": "a", "weight": 0}, {"role": "assistant", "content": "b", "weight": 1.0, "train": true, "loss": null}]}`:                               user + "a<|im_end|>\n" + assistant + "[b<|im_end|>\n]",
		`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0.5}]}`:                                                                         "",
		`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": "0"}]}`:                                                                         "",
		`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "loss": false}]}`:                                                                         "",
		`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": 0}]}`:                                                                            "",
		`{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b", "weight": 0}]}`:                                                             "",
		`{"prompt": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 0}], "completion": [{"from": "gpt", "value": "c"}]}`:                                       user + "a<|im_end|>\n" + assistant + "b<|im_end|>\n" + assistant + "[c<|im_end|>\n]",
		`{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}], "system": "s"}`:                                                           "<|im_start|>system\ns<|im_end|>\n" + user + "a<|im_end|>\n" + assistant + "[b<|im_end|>\n]",
		`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "label": false}`:                                                                        "",
		`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "functions": [{"name": "f"}]}`:                                                          "",
		`{"conversations": [{"from": "human", "value": "a", "content": "b"}]}`:                                                                                                           "",
		`{"messages": [{"content": "a"}, {"role": "assistant", "content": "b"}]}`:                                                                                                        "",
		`{"instruction": "a", "output": "c", "history": "[]"}`:                                                                                                                           "",
		`{"prompt": "a", "completion": "b"}`: "",
		`{"chosen": [], "rejected": []}`:     "",
		`{"prompt": [], "completion": [{"role": "assistant", "content": "b"}], "label": false}`: "",
		`{"text": "a"}`:      "",
		`{"messages": []}`:   "",
		`{"messages": [1]}`:  "",
		`{"messages": "hi"}`: "",
		`{"conversations": [{"from": "function_call", "value": "x"}]}`:                                  "",
		`{"messages": [{"role": "user", "content": "a"}], "tools": ["f"]}`:                              "",
		`{"messages": [{"role": "user", "content": "a"}], "tools": "{"}`:                                "",
		`{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"tokenize": false}}`: "",
		`{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": [1]}`:                 "",
		`{"instruction": "a", "input": 1, "output": "c"}`:                                               "",
	} {
		dir := tree(t, map[string]string{"a.jsonl": record})
		ownFolder(t, filepath.Join(dir, "tok"), "qwen", map[string]string{"chat_template.jinja": chatML})
		set, err := Open(t.Context(), Source{Documents: Documents{Files: []string{"a.jsonl"}, Format: "chat"}, Dir: dir, Tokenizer: "tok", Context: 100})
		if said.Fails(t, record, err, want == ""); err != nil {
			continue
		}
		if got := marked(set); got != want {
			t.Errorf("%s:\n got %q\nwant %q", record, got, want)
		}
	}
}

// TestMasks checks that exactly the tokens are learned that transformers marks as the assistant's,
// where answers begin and end within tokens; see tests/interop/masks.py.
func TestMasks(t *testing.T) {
	var all struct {
		Template string
		Chats    map[string][]struct {
			Messages json.RawMessage
			IDs      []int32
			Mask     string
		}
	}
	readRecorded(t, "testdata/masks.json.gz", &all)
	for family, chats := range all.Chats {
		dir := t.TempDir()
		ownFolder(t, dir, family, map[string]string{"chat_template.jinja": all.Template})
		tok, err := NewTokenizer(dir)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewChat(tok, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range chats {
			messages, err := jsonread.Parse(x.Messages)
			if err != nil {
				t.Fatal(err)
			}
			list, err := chat.FromJSON(messages)
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.Examples(Talk{Messages: list}, "assistant")
			if err != nil {
				t.Fatal(err)
			}
			mask := ""
			for _, learn := range got[0].learn {
				mask += map[bool]string{true: "1", false: "0"}[learn]
			}
			if !slices.Equal(got[0].ids, x.IDs) || mask != x.Mask {
				t.Errorf("%s: %s:\n got %s\nwant %s", family, x.Messages, mask, x.Mask)
			}
			if len(messages.Items) == 2 {
				checkCompletion(t, tok.(*Folder), messages, x.Mask)
			}
		}
	}
}

// checkCompletion checks that the same tokens of a question and an answer are learned in a record of the
// format prompt.
func checkCompletion(t *testing.T, tok *Folder, messages jsonread.Value, mask string) {
	d := &docReader{tok: tok, vocab: tok.Vocab(), Documents: Documents{Format: "prompt"}}
	prompt, answer := messages.Items[0].Get("content"), messages.Items[1].Get("content")
	x := d.completion(tok.parts(), jsonread.Value{Kind: jsonread.Object, Pairs: []jsonread.Pair{{Key: "prompt", Value: prompt}, {Key: "completion", Value: answer}}})
	before, _ := tok.Around()
	for i, want := range mask {
		if x.err != nil || x.documents[0].learn[len(before)+i] != (want == '1') {
			t.Errorf("%q and %q: token %d is learned: %v, want %c; %v", prompt.Text, answer.Text, i, want != '1', want, x.err)
			return
		}
	}
}

// marked returns the first training document, with what is learned in brackets.
func marked(set *Set) string {
	docs := set.Train.docs
	out, in := "", false
	ids, learn := docs.ids[:docs.starts[1]], docs.learn[:docs.starts[1]]
	for i, id := range ids {
		if learn[i] != in {
			out += map[bool]string{true: "[", false: "]"}[learn[i]]
			in = learn[i]
		}
		out += string(set.Tokenizer.Decode([]int32{id}))
	}
	if in {
		out += "]"
	}
	return out
}

// TestArrowIsNamed checks that files of the library datasets are refused by what they are.
func TestArrowIsNamed(t *testing.T) {
	for name, content := range map[string]string{"a.arrow": "ARROW1\x00\x00\xff\xff\xff\xff", "data-00000-of-00001.arrow": "\xff\xff\xff\xff\x10\x01\x00\x00"} {
		dir := tree(t, map[string]string{name: content})
		_, err := Open(t.Context(), Source{Documents: Documents{Files: []string{name}, Format: "text"}, Dir: dir, Tokenizer: "bytes", Context: 8})
		if err == nil || !strings.Contains(err.Error(), "is an Arrow") || !strings.Contains(err.Error(), "data.parquet") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLearn checks which answers are learned, and that the documents of a divided conversation are on
// one side of the validation split.
func TestLearn(t *testing.T) {
	talk := func(a, b string) any {
		return map[string]any{"messages": []any{
			map[string]string{"role": "user", "content": "q"}, map[string]string{"role": "assistant", "content": a},
			map[string]string{"role": "user", "content": "r"}, map[string]string{"role": "assistant", "content": b},
		}}
	}
	const begin, user, assistant, end = "<|im_start|>", "user\n", "assistant\n", "<|im_end|>\n"
	for learn, want := range map[string]string{
		"assistant": begin + user + "q" + end + begin + assistant + "[one" + end + "]" + begin + user + "r" + end + begin + assistant + "[two" + end + "]",
		"last":      begin + user + "q" + end + begin + assistant + "one" + end + begin + user + "r" + end + begin + assistant + "[two" + end + "]",
		"all":       "[" + begin + user + "q" + end + begin + assistant + "one" + end + begin + user + "r" + end + begin + assistant + "two" + end + "]",
	} {
		dir := tree(t, map[string]string{"a.jsonl": records(t, talk("one", "two"))})
		ownFolder(t, filepath.Join(dir, "tok"), "qwen", map[string]string{"chat_template.jinja": chatML})
		set := open(t, Source{Documents: Documents{Files: []string{"a.jsonl"}, Format: "chat", Learn: learn}, Dir: dir, Tokenizer: "tok", Context: 100})
		if got := marked(set); got != want {
			t.Errorf("%s:\n got %q\nwant %q", learn, got, want)
		}
	}
	hiding := "{% for m in messages %}<|im_start|>{{ m.role }} {% if m.role == 'user' or loop.last %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
	var all []any
	for i := range 10 {
		all = append(all, talk(fmt.Sprint("one", i), fmt.Sprint("two", i)))
	}
	dir := tree(t, map[string]string{"a.jsonl": records(t, all...)})
	ownFolder(t, filepath.Join(dir, "tok"), "qwen", map[string]string{"chat_template.jinja": hiding})
	set := open(t, Source{Documents: Documents{Files: []string{"a.jsonl"}, Format: "chat"}, Dir: dir, Tokenizer: "tok", Context: 100, Validation: 0.3})
	if set.Train.Windows() != 14 || set.Validation.Windows() != 6 || !strings.Contains(strings.Join(set.Notes, "\n"), "conversations divided into documents: 10 into 20, because the template renders earlier answers differently") {
		t.Errorf("%d and %d documents; %q", set.Train.Windows(), set.Validation.Windows(), set.Notes)
	}
	held := map[int32]bool{}
	for i := range set.Validation.Windows() {
		held[set.Validation.docs.records[set.Validation.docs.documentsOf(i)[0]]] = true
	}
	if len(held) != 3 {
		t.Errorf("validation has parts of %d conversations", len(held))
	}
}

// TestManyAnswers checks that a conversation of many answers is refused if their tokens can be found
// only by encoding its beginning again for each.
func TestManyAnswers(t *testing.T) {
	dir := t.TempDir()
	ownFolder(t, dir, "qwen", nil)
	tok, err := NewTokenizer(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := &Chat{tok: tok.(*Folder)}
	spans := make([][2]int, 20_000)
	for i := range spans {
		spans[i] = [2]int{4 * i, 4*i + 3}
	}
	for text, refused := range map[string]bool{strings.Repeat("abc ", 20_000): false, strings.Repeat("e\u0301 ", 20_000): true} {
		if _, err := c.encoded(text, spans); (err != nil) != refused {
			t.Errorf("%.8q: %v", text, err)
		}
	}
}
