package data

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zeroth/tests/nightly"
)

// marksOf lists how programs mark what is not learned, and what is.
var marksOf = []struct {
	program, key string
	no, yes      []any
}{
	{"OpenAI, Mistral, Together", "weight", []any{0, 0.0, false}, []any{1, 1.0}},
	{"Axolotl", "train", []any{false, 0}, []any{true, 1}},
	{"Axolotl", "training", []any{false}, []any{true}},
	{"Axolotl", "train_on_turn", []any{false}, []any{true}},
	{"ms-swift, XTuner, ChatGLM", "loss", []any{false, 0}, []any{true, 1}},
	{"ms-swift", "loss_scale", []any{0.0, 0}, []any{1.0}},
	{"LLaMA-Factory", "loss_weight", []any{0.0}, []any{1.0}},
	{"XTuner", "output_with_loss", []any{false}, []any{true}},
	{"Tinker", "trainable", []any{false}, []any{true}},
	{"torchtune", "masked", []any{true}, []any{false}},
	{"NeMo", "is_mask", []any{true}, []any{false}},
	{"slime", "step_loss_mask", []any{0}, []any{1}},
	{"verl, Megatron", "loss_mask", []any{0, false}, []any{1, true}},
	{"others", "mask", []any{true, 1}, []any{false, 0}},
	{"others", "ignore_loss", []any{true}, []any{false}},
	{"others", "no_train", []any{1}, []any{0}},
	{"others", "exclude_from_training", []any{true}, []any{false}},
	{"others", "sample_weight", []any{0}, []any{1}},
	{"others", "learnable", []any{false}, []any{true}},
	{"others", "mask_span", []any{true}, []any{false}},
}

// TestMarkKeys checks which keys are marks, and that common keys of data sets are not.
func TestMarkKeys(t *testing.T) {
	for _, m := range marksOf {
		for _, key := range []string{m.key, strings.ToUpper(m.key), camel(m.key), strings.ReplaceAll(m.key, "_", "-"), strings.ReplaceAll(m.key, "_", "")} {
			if mark, excludes := isMark(key); !mark || excludes != (m.no[0] == true || m.no[0] == 1) {
				t.Errorf("%s: mark %t, excludes %t", key, mark, excludes)
			}
		}
	}
	for _, key := range strings.Fields("id source text messages trainer training_data trained_by model weight_class lossy losses_url bitmask taskmask maskara label labels score split name learner unmaskable notes information tags") {
		if mark, _ := isMark(key); mark {
			t.Errorf("%s is a mark", key)
		}
	}
}

func camel(key string) string {
	parts := strings.Split(key, "_")
	for i, p := range parts[1:] {
		parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
	}
	return strings.Join(parts, "")
}

// chatReader returns a reader of chats in ChatML.
func chatReader(t *testing.T, d Documents, template string) *docReader {
	t.Helper()
	dir := t.TempDir()
	ownFolder(t, dir, "qwen", map[string]string{"chat_template.jinja": template})
	tok, err := NewTokenizer(dir)
	if err != nil {
		t.Fatal(err)
	}
	d.Date = time.Unix(0, 0)
	r, err := Source{Documents: d, Tokenizer: dir, Context: 1000}.newDocReader(tok)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// learnedText returns the text of an example, with what is learned in brackets.
func (d *docReader) learnedText(x example) (out string) {
	for _, doc := range x.documents {
		for i, id := range doc.ids {
			if doc.learn[i] && (i == 0 || !doc.learn[i-1]) {
				out += "["
			}
			out += string(d.tok.Decode([]int32{id}))
			if doc.learn[i] && (i == len(doc.ids)-1 || !doc.learn[i+1]) {
				out += "]"
			}
		}
	}
	return out
}

// drawnRecord is a record in the spelling of some program, and what of it is to be learned.
type drawnRecord struct {
	format string
	record map[string]any
	text   string   // with what is learned in brackets
	refuse string   // or part of the error
	empty  bool     // nothing is learned
	unused []string // parts that are to be reported
}

// drawRecord draws a record.
func drawRecord(r *rand.Rand) (d drawnRecord) {
	d.record, d.format = map[string]any{}, "chat"
	m := marksOf[r.IntN(len(marksOf))]
	key := []string{m.key, m.key, m.key, camel(m.key), strings.ToUpper(m.key), strings.ReplaceAll(m.key, "_", "-")}[r.IntN(6)]
	pick := func(of []any) any { return of[r.IntN(len(of))] }
	mark := func(in map[string]any, learnable bool) (learn bool) {
		switch learn = true; r.IntN(4) {
		case 0:
			in[key], learn = pick(m.no), false
		case 1:
			in[key] = pick(m.yes)
			if !learnable {
				d.unused = append(d.unused, fmt.Sprintf("the mark %q of messages", key))
			}
		case 2:
			in[key] = nil
		}
		if r.IntN(40) == 0 {
			learn = true
			in[key] = []any{0.5, 2, "0", "no", []any{1}, map[string]any{"a": 1}}[r.IntN(6)]
			if learnable && d.refuse == "" {
				d.refuse = fmt.Sprintf("%q is ", key)
			} else if !learnable {
				d.unused = append(d.unused, fmt.Sprintf("the mark %q of messages", key))
			}
		}
		return learn
	}
	word := func() string { return fmt.Sprint("w", r.IntN(1000)) }
	whole := true
	if r.IntN(3) == 0 {
		whole = mark(d.record, true)
	}
	if r.IntN(3) == 0 {
		d.record["system_prompt"], d.record["null"] = word(), nil
		d.unused = append(d.unused, `"system_prompt"`)
	}
	ofRecord, learned := d, false
	turn := func(role, text string, learn bool) {
		if learn {
			learned, text = true, "["+text+"<|im_end|>\n]"
		} else {
			text += "<|im_end|>\n"
		}
		d.text += "<|im_start|>" + role + "\n" + text
	}
	switch r.IntN(7) {
	case 0: // a text, or a prompt and its completion
		a, b := word(), word()
		if d.format, d.text = "prompt", a+"["+b+"<|endoftext|>]"; r.IntN(2) == 0 {
			d.format, d.record["text"], d.text = "text", a, "["+a+"<|endoftext|>]"
		} else {
			d.record["prompt"], d.record["completion"] = a, b
		}
		learned = true
	case 1: // Alpaca
		q, a := word(), word()
		d.record["instruction"], d.record["output"] = q, a
		turn("user", q, false)
		turn("assistant", a, true)
	default:
		var list []any
		roleKey, textKey, listKey, first := "role", "content", "messages", 0
		kind := r.IntN(3)
		if kind == 1 {
			listKey = "conversations"
			if r.IntN(2) == 0 {
				roleKey, textKey = "from", "value"
			}
		}
		n := 1 + r.IntN(6)
		if kind == 2 {
			first = r.IntN(n)
		}
		for i := range n {
			role := []string{"user", "assistant", "assistant", "system", "bot", "Assistant", "model"}[r.IntN(7)]
			said := map[string]string{"user": "human", "assistant": "gpt"}[role]
			if roleKey == "role" {
				said = role
			} else if said == "" {
				role, said = "system", "system"
			}
			msg, text := map[string]any{roleKey: said}, word()
			msg[textKey] = text
			if r.IntN(3) == 0 {
				msg["id"] = i + 1
				d.unused = append(d.unused, `"id" in messages`)
			}
			if role == "bot" || role == "Assistant" || role == "model" {
				d.unused = append(d.unused, fmt.Sprintf("the role %q", role))
			}
			learn := true
			if learnable := role == "assistant" && i >= first; r.IntN(2) == 0 && (role != "assistant" || learnable) {
				learn = mark(msg, learnable)
			}
			turn(role, text, learn && role == "assistant" && i >= first)
			list = append(list, msg)
		}
		if d.record[listKey] = list; kind == 2 {
			delete(d.record, listKey)
			d.record["prompt"], d.record["completion"] = append([]any{}, list[:first]...), append([]any{}, list[first:]...)
		}
	}
	if d.empty = !learned; !whole { // nothing in it matters
		d.text, d.empty, d.unused, d.refuse = "", true, ofRecord.unused, ofRecord.refuse
	}
	return d
}

// TestDrawnMarks draws records in the spellings of other programs: exactly what they do not exclude is
// learned, and what has no effect is reported.
func TestDrawnMarks(t *testing.T) {
	readers := map[string]*docReader{}
	for _, format := range []string{"text", "prompt", "chat"} {
		readers[format] = chatReader(t, Documents{Format: format}, chatML)
	}
	r, refused, empty := rand.New(rand.NewPCG(1, 42)), 0, 0
	n := nightly.Of(100, 5_000)
	for i := range n {
		want := drawRecord(r)
		text, err := json.Marshal(want.record)
		if err != nil {
			t.Fatal(err)
		}
		d := readers[want.format]
		x := d.example(d.tok.parts(), line{text: text})
		switch {
		case want.refuse != "":
			if refused++; x.err == nil || !strings.Contains(x.err.Error(), want.refuse) {
				t.Fatalf("%d: %s: %v, want %s", i, text, x.err, want.refuse)
			}
			continue
		case x.err != nil:
			t.Fatalf("%d: %s: %v", i, text, x.err)
		}
		if want.empty {
			empty++
		}
		if got := d.learnedText(x); got != want.text || (x.empty != "") != want.empty {
			t.Fatalf("%d: %s:\n got %q\nwant %q; %q", i, text, got, want.text, x.empty)
		}
		said := fmt.Sprint(x.unused)
		for _, part := range want.unused {
			if !strings.Contains(said, part) {
				t.Fatalf("%d: %s: %s, without %s", i, text, said, part)
			}
		}
		if len(want.unused) == 0 && len(x.unused) > 0 {
			t.Fatalf("%d: %s: %s", i, text, said)
		}
	}
	t.Logf("%d records: %d refused, %d without anything to learn", n, refused, empty)
	if refused < n/100 || empty < n/20 || empty > n/2 {
		t.Error("too few")
	}
}

// TestUnused checks the notes about parts of records that have no effect, and the reasons why records
// are left out.
func TestUnused(t *testing.T) {
	const asking = `{"role": "user", "content": "a"}`
	answer := func(more string) string { return `{"role": "assistant", "content": "b"` + more + `}` }
	chat := func(more string, messages ...string) string {
		return `{"messages": [` + strings.Join(messages, ", ") + `]` + more + `}`
	}
	const unused = "in the records, but not used: "
	const mute = "no learned special token ends an answer in the chat template, so the model may not learn to stop"
	for name, c := range map[string]struct {
		template, lines string
		want            []string
	}{
		"nothing": {chatML, chat(`, "tools": [], "note": "", "meta": {}`, asking, answer(`, "name": null`)), nil},
		"keys": {chatML, chat(`, "system_prompt": "s", "tool_defs": [{}]`, asking, answer("")) + "\n" + chat(`, "tools": [{"type": "function"}], "id": 3`, asking, answer(`, "tool_calls": [1]`)),
			[]string{unused + `"system_prompt", "tool_defs" (from FILE:1 on), "id", "tool_calls" in messages, "tools" (from FILE:2 on)`}},
		"used once": {chatML + "{{ tools }}{{ messages[0].name }}", chat(`, "tools": [{}]`, asking, answer(`, "name": "x", "kind": "y"`)) + "\n" + chat("", `{"role": "user", "content": "a", "name": "u"}`),
			[]string{`documents without a token to learn: 1, left out: only messages of the role "assistant" are learned, and these have "user"; rename roles, or set data.learn: all (the first is FILE:2)`, unused + `"kind" in messages (from FILE:1 on)`, mute}},
		"variables": {chatML + "{{ loud }}", chat(`, "chat_template_kwargs": {"loud": 1, "enable_thinking": false}`, asking, answer("")), []string{unused + `"enable_thinking" in chat_template_kwargs (from FILE:1 on)`}},
		"all used":  {"{{ messages | tojson }}{{ tools | tojson }}" + chatML, chat(`, "tools": [{}]`, asking, answer(`, "id": 1`)), nil},
		"marks":     {chatML, chat("", `{"role": "user", "content": "a", "train": true}`, answer(`, "train": true`)), []string{unused + `the mark "train" of messages that are not learned anyway (from FILE:1 on)`}},
		"roles": {chatML, chat("", asking, answer("")) + "\n" + chat("", asking, `{"role": "bot", "content": "b"}`),
			[]string{`documents without a token to learn: 1, left out: only messages of the role "assistant" are learned, and these have "user", "bot"; rename roles, or set data.learn: all (the first is FILE:2)`,
				unused + `the role "bot", whose messages are not learned (from FILE:2 on)`}},
		"parts": {"{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}<|im_end|>{% endfor %}", chat("", `{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "url": "x"}]}`, answer("")),
			[]string{unused + `"url" in messages (from FILE:1 on)`, mute}},
		"record": {chatML, chat(`, "weight": 0`, asking, answer("")) + "\n" + chat("", asking, answer("")), []string{`documents without a token to learn: 1, left out: "weight" says not to learn them (the first is FILE:1)`}},
		"NeMo":   {chatML, `{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "label": ""}], "system": "", "mask": "User", "type": ""}`, []string{"records read as ShareGPT: conversations of from and value (human is user, gpt is assistant, observation is tool): 1"}},
	} {
		dir := tree(t, map[string]string{"a.jsonl": chat("", asking, answer("")) + "\n" + c.lines})
		ownFolder(t, filepath.Join(dir, "tok"), "qwen", map[string]string{"chat_template.jinja": c.template})
		set := open(t, Source{Documents: Documents{Files: []string{"a.jsonl"}, Format: "chat"}, Dir: dir, Tokenizer: "tok", Context: 100})
		notes := slices.DeleteFunc(set.Notes, func(s string) bool { return strings.HasPrefix(s, "documents fill") })
		for i := range notes {
			notes[i] = strings.NewReplacer(filepath.Join(dir, "a.jsonl:2"), "FILE:1", filepath.Join(dir, "a.jsonl:3"), "FILE:2").Replace(notes[i])
		}
		if !slices.Equal(notes, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, notes, c.want)
		}
	}
}

// TestRefusedMessages checks that messages that cannot be learned as their record says are refused by
// what is wrong with them.
func TestRefusedMessages(t *testing.T) {
	for lines, want := range map[string]string{
		`{"messages": [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "train": false}]}]}`: `message 1: "train" in part 2 of its content`,
		`{"messages": [{"role": "assistant", "content": "ab", "train_detail": [{"begin_offset": 0, "end_offset": 1, "train": false}]}]}`:   `message 1: "train_detail" is an array: marks of parts`,
		`{"messages": [{"role": "assistant", "content": null}]}`:                                                                           `message 1: its "content" is missing or null`,
		`{"messages": [{"role": "assistant", "id": 3}]}`:                                                                                   `message 1: its "content" is missing or null`,
		`{"messages": [{"role": "user", "content": null}, {"role": "assistant", "content": "a"}]}`:                                         `message 1: its "content" is missing or null`,
		`{"messages": [{"role": "user", "content": 5}, {"role": "assistant", "content": "a"}]}`:                                            `message 1: "content" is a number, not a text`,
		`{"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}`:                                                            `message 1: no part of its "content" is a text`,
		`{"messages": [{"role": "assistant", "content": 5}]}`:                                                                              `message 1: "content" is a number, not a text`,
		`{"messages": [{"role": "assistant", "content": {"text": "a"}}]}`:                                                                  `message 1: "content" is an object, not a text`,
		`{"messages": [{"role": "assistant", "content": "a"}], "weight": 2}`:                                                               `"weight" is 2: a weight other than 0 and 1`,
		`{"messages": [{"role": "assistant", "content": "a"}], "mask": "Assistant"}`:                                                       `"mask" is "Assistant"; want 1 or 0`,
		`{"messages": [{"role": "assistant", "content": "a"}], "labels": [1], "loss_mask": [0, 1]}`:                                        `"loss_mask" is an array: marks of parts`,
		`{"conversations": [{"from": "gpt", "value": "a", "loss": 0.3}]}`:                                                                  `message 1: "loss" is 0.3: a weight other than 0 and 1`,
		`{"prompt": [], "completion": [{"role": "assistant", "content": "a", "weight": 1, "trainable": "false"}]}`:                         `message 1: "trainable" is "false"; want 1 or 0`,
	} {
		d := chatReader(t, Documents{Format: "chat"}, chatML)
		if x := d.example(d.tok.parts(), line{text: []byte(lines)}); x.err == nil || !strings.Contains(x.err.Error(), want) {
			t.Errorf("%s: %v, want %s", lines, x.err, want)
		}
	}
	named := chatReader(t, Documents{Format: "text", Keys: map[string]string{"text": "train"}}, chatML)
	if x := named.example(named.tok.parts(), line{text: []byte(`{"train": "abc"}`)}); x.err != nil || len(x.documents) != 1 {
		t.Errorf("a text under a key that is a mark elsewhere: %v", x.err)
	}
	all := chatReader(t, Documents{Format: "chat", Learn: "all"}, chatML)
	x := all.example(all.tok.parts(), line{text: []byte(`{"messages": [{"role": "user", "content": "a", "train": 0}, {"role": "assistant", "content": "b"}]}`)})
	if x.err == nil || !strings.Contains(x.err.Error(), `message 1: "train" says not to learn it, but data.learn is all`) {
		t.Errorf("%v", x.err)
	}
	marked := chatReader(t, Documents{Format: "chat"}, "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}")
	x = marked.example(marked.tok.parts(), line{text: []byte(`{"messages": [{"role": "assistant", "content": "a", "weight": 0}, {"role": "assistant", "content": "b"}]}`)})
	if x.err == nil || !strings.Contains(x.err.Error(), "the template marks all answers with generation") {
		t.Errorf("%v", x.err)
	}
}

// TestParquetMarks checks that marks in columns of Parquet are obeyed, and that columns that are not read
// are reported. testdata/marks.parquet was written by pyarrow 26.
func TestParquetMarks(t *testing.T) {
	dir := t.TempDir()
	ownFolder(t, filepath.Join(dir, "tok"), "qwen", map[string]string{"chat_template.jinja": chatML})
	file, err := filepath.Abs("testdata/marks.parquet")
	if err != nil {
		t.Fatal(err)
	}
	set := open(t, Source{Documents: Documents{Files: []string{file}, Format: "chat"}, Dir: dir, Tokenizer: "tok", Context: 100})
	got := strings.ReplaceAll(strings.Join(set.Notes[:2], "\n"), file, "FILE")
	want := `documents without a token to learn: 1, left out: "weight" says not to learn them (the first is FILE:3)` + "\n" +
		`in the records, but not used: "source", "extra" (from FILE:1 on), "name" in messages, the role "bot", whose messages are not learned (from FILE:4 on)`
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got, want := marked(set), "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>\n]"; got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestEmptyAnswerOfALongDocument checks that a document without a token to learn is not said to be too long.
func TestEmptyAnswerOfALongDocument(t *testing.T) {
	lines := `{"prompt": "a long question", "completion": ""}` + "\n" + `{"prompt": "a", "completion": "bc"}` + "\n"
	dir := tree(t, map[string]string{"a.jsonl": lines})
	set := open(t, Source{Documents: Documents{Files: []string{"a.jsonl"}, Format: "prompt"}, Dir: dir, Tokenizer: "bytes", Context: 4})
	if notes := strings.Join(set.Notes, "\n"); !strings.Contains(notes, "left out: a text or answer is empty or a single token (the first is "+dir+"/a.jsonl:1)") {
		t.Error(notes)
	}
}
