package spec

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
	"zeroth/config/tree"

	"zeroth/internal/input"
	"zeroth/job/jobtest"
	"zeroth/tests/nightly"
)

// crowds returns job files of about n bytes, each crowded with a construct for which the YAML
// library needs quadratic time or memory.
func crowds(n int) map[string]string {
	r := strings.Repeat
	lines := func(line func(i int) string) string {
		var b strings.Builder
		for i := 0; b.Len() < n; i++ {
			b.WriteString(line(i))
		}
		return b.String()
	}
	return map[string]string{
		"brackets":        r("[", n),
		"closed brackets": r("[", n/2) + r("]", n/2),
		"braces":          r("{a: ", n/4),
		"dashes":          r("- ", n/2) + "a",
		"questions":       r("? ", n/2) + "a",
		"stairs":          lines(func(i int) string { return r(" ", i) + "a:\n" }),
		"stairs of lists": lines(func(i int) string { return r(" ", i) + "-\n" }),
		"colons":          r("a: ", n/3),
		"bare colons":     r(": ", n/2),
		"keys":            lines(func(i int) string { return fmt.Sprintf("a%d:\n", i) }),
		"keys in braces":  "{" + lines(func(i int) string { return fmt.Sprintf("a%d: 1,", i) }) + "}",
		"a long key":      r("x", n) + ": 1",
		"literals":        r("a: |\n", n/5),
		"items":           "data:\n  text:\n" + r("  - b\n", n/6),
		"items in braces": "data: {text: [" + r("b,", n/2) + "]}",
		"tags":            "a: " + r("!a ", n/3) + "a",
		"anchors":         "a: " + r("&a ", n/3) + "a",
		"aliases":         "a: &a b\nc: [" + r("*a,", n/3) + "]",
		"merges":          "a: &a {b: c}\nd: {<<: [" + r("*a,", n/3) + "]}",
		"repeated merges": "a: &a {b: c}\nd:\n" + r("  <<: *a\n", n/9),
		"documents":       r("--- a\n", n/6),
		"ends":            r("a\n...\n", n/6),
		"directives":      r("%YAML 1.2\n", n/10),
		"comments":        r("# x\n", n/4),
		"spaces":          "a: 1" + r(" ", n),
		"tabs":            r("\t", n),
		"line feeds":      r("\n", n),
		"returns":         r("\r", n),
		"a long text":     "a: " + r("x", n),
		"a long line":     "a: " + r("x ", n/2),
		"an open quote":   `a: "` + r("x", n),
		"escapes":         `a: "` + r(`\x41`, n/4) + `"`,
		"quotes":          r(`"`, n),
		"single quotes":   "a: '" + r("''", n/2) + "'",
		"signs":           r("@", n),
		"bars":            r("|", n),
		"digits":          "train: {steps: " + r("9", n) + "}",
		"a literal":       "a: |\n" + r("  x\n", n/4),
		"a folded text":   "a: >\n" + r("  x\n", n/4),
		"dots in a key":   r("a.", n/2) + ": 1",
	}
}

// TestCrowdedJobs checks that any full job file is read or rejected in little time, memory and
// text.
func TestCrowdedJobs(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, "")
	for what, text := range crowds(tree.JobBytes - 100) {
		jobtest.Write(t, "job.yaml", text)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		_, err := Load("job.yaml", nil)
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		if err == nil || !input.IsInput(err) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if n := len(err.Error()); n > 20_000 {
			t.Errorf("%s: a message of %d bytes", what, n)
		}
		if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 300<<20 || took > time.Minute {
			t.Errorf("%s: took %v and %d MB", what, took, bytes>>20)
		}
	}
}

// TestLimitsOfJobs checks that a file at a limit is read, and that one above it is rejected at the
// right place.
func TestLimitsOfJobs(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, "")
	r := strings.Repeat
	pad := func(n int) string { return jobtest.Least + "#" + r("x", n-len(jobtest.Least)-2) + "\n" }
	keys := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "a%d: 1\n", i)
		}
		return b.String()
	}
	names := "data: {text: &a [a.txt]}\ntrain: &b {steps: 3}\n" // two
	for _, c := range []struct{ fits, over, want string }{
		{pad(tree.JobBytes), pad(tree.JobBytes + 1), "job.yaml: the job file cannot be read: it is larger than the limit of 262144 bytes for such a file; want the path"},
		{"x: " + r("[", tree.JobDepth-1) + r("]", tree.JobDepth-1), "x: " + r("[", tree.JobDepth) + r("]", tree.JobDepth), "job.yaml:1:35: lists and mappings nested more than 32 deep"},
		{r("- ", tree.JobDepth) + "x", r("- ", tree.JobDepth+1) + "x", "job.yaml:1:65: lists and mappings nested more than 32 deep"},
		{keys(tree.JobKeys), keys(tree.JobKeys + 1), "job.yaml:1001:6: more than 1000 keys"},
		{names + "x: [" + r("*a,", tree.JobNames-2) + "]", names + "x: [" + r("*a,", tree.JobNames-1) + "]", "job.yaml:3:299: more than 100 anchors, aliases and tags"},
		{jobtest.Least + r("---\n", tree.JobDocs), jobtest.Least + r("---\n", tree.JobDocs+1), "job.yaml:12:1: more than 10 documents"},
		{"data: {text: [" + r("'a.txt',", 25_000-10) + "]}", "data: {text: [" + r("'a.txt',", 25_000+10) + "]}", "job.yaml:1:199991: more than 50000 words and signs"},
	} {
		jobtest.Write(t, "job.yaml", c.over)
		if _, err := Load("job.yaml", nil); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got %.300v\nwant %s", err, c.want)
		}
		jobtest.Write(t, "job.yaml", c.fits)
		_, of, _ := strings.Cut(c.want, ": ")
		if _, err := Load("job.yaml", nil); err != nil && strings.Contains(err.Error(), of) {
			t.Errorf("what is at the limit is refused: %.300v", err)
		}
	}
	if _, err := Load("job.yaml", []string{"sample.prompt=" + r("x", tree.JobBytes+1)}); err == nil || !strings.Contains(err.Error(), "262145 bytes, more than 262144") {
		t.Errorf("a long set: %.300v", err)
	}
}

// TestManyProblems checks that only the first of many problems are listed, with the number of the
// others.
func TestManyProblems(t *testing.T) {
	var b strings.Builder
	b.WriteString(jobtest.Least)
	for i := range 200 {
		fmt.Fprintf(&b, "unknown%d: 1\n", i)
	}
	jobtest.InFolder(t, b.String())
	_, err := Load("job.yaml", nil)
	lines := strings.Split(fmt.Sprint(err), "\n")
	if len(lines) != tree.ProblemsShown+1 || lines[tree.ProblemsShown] != "and 150 more" || len(err.(tree.Problems)) != 200 {
		t.Errorf("%d lines, the last: %s", len(lines), lines[len(lines)-1])
	}
	if _, err := Load("job.yaml", []string{"x." + strings.Repeat("y", 1000) + "=1"}); len(strings.Split(err.Error(), "\n")[tree.ProblemsShown-1]) > 500 {
		t.Errorf("a long line: %v", err)
	}
}

// TestYAMLIsReadOrRefused checks that YAML constructs are either read correctly or rejected with
// their line.
func TestYAMLIsReadOrRefused(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, "")
	for text, want := range map[string]string{
		// What is taken: the steps, the seed, the clip.
		"\ufefftrain: {steps: 5}\n":                                    "5 1 1",
		"train: {steps: 5}\r\n":                                        "5 1 1",
		"train:\n  <<: [{steps: 3}, {steps: 4, seed: 9}]\n":            "3 9 1",
		"train:\n  seed: 2\n  <<: {seed: 9, steps: 4}\n":               "4 2 1",
		"? train\n: {steps: 5}\n":                                      "5 1 1",
		"? train\n":                                                    "200 1 1",
		"train: {steps: &a 5, seed: *a}\n":                             "5 5 1",
		"train: {steps: &a 5, seed: &a 6, clip: *a}\n":                 "5 6 6",
		"train: {steps: +5, seed: +6, clip: +.5}\n":                    "5 6 0.5",
		"train: {seed: -0, clip: 5.}\n":                                "200 0 5",
		"train: {seed: 18446744073709551615, clip: 1e+3}\n":            "200 18446744073709551615 1000",
		"train: {steps: ~, seed: null, clip: }\n":                      "200 1 1",
		"train:\n  steps:\t5\t\n":                                      "5 1 1",
		"train: {steps: 5}\n...\n---\n":                                "5 1 1",
		"parallel: {timeout: 8760h}\ntrain: {steps: 5}\n":              "5 1 1",
		"parallel: {memory: 1e3GiB}\ntrain: {steps: 5}\n":              "5 1 1",
		"sample: {prompt: \"\\x1b\\u0085\\ufeff\"}\ntrain: {steps: 5}": "5 1 1",

		// What is refused.
		"<<: 5\n":                         "2:1: << takes the keys of mappings, but this is the single value 5",
		"train:\n  <<: [{steps: 3}, 5]\n": "3:3: train: << takes the keys of mappings, but this is the single value 5",
		"train:\n  <<: []\n":              "3:3: train: << takes the keys of mappings, but this is a list",
		"train:\n  <<:\n":                 "3:3: train: << takes the keys of mappings, but this is nothing",
		"train:\n  <<: {steps: 3}\n  <<: {seed: 3}\n": "4:3: train: << given twice, first at job.yaml:3:3",
		"train:\n  \"<<\": {steps: 3}\n":              "3:3: train.<<: unknown key",
		"train:\n  <<: *x\n":                          "3:7: train: *x refers to no anchor before it",
		"train: {steps: 1_000}\n":                     "2:16: train.steps: 1_000 is not a whole number",
		"train: {steps: 0x10}\n":                      "2:16: train.steps: 0x10 is not a whole number",
		"train: {steps: 0o10}\n":                      "2:16: train.steps: 0o10 is not a whole number",
		"train: {steps: 010}\n":                       "2:16: train.steps: 010 begins with a 0, which may mean octal",
		"train: {seed: 010}\n":                        "2:15: train.seed: 010 begins with a 0, which may mean octal",
		"train: {clip: 010.5}\n":                      "2:15: train.clip: 010.5 begins with a 0, which may mean octal",
		"train: {steps: 1e3}\n":                       "2:16: train.steps: 1e3 is not a whole number",
		"train: {steps: 5.0}\n":                       "2:16: train.steps: 5.0 is not a whole number",
		"train: {steps: .inf}\n":                      "2:16: train.steps: .inf is not a whole number",
		"train: {seed: -1}\n":                         "2:15: train.seed: -1 is negative",
		"train: {seed: 18446744073709551616}\n":       "2:15: train.seed: 18446744073709551616 is too large",
		"train: {seed: \"1\"}\n":                      "2:15: train.seed: \"1\" is not a whole number",
		"train: {clip: 1_000}\n":                      "2:15: train.clip: 1_000 is not a number",
		"train: {clip: 0x10}\n":                       "2:15: train.clip: 0x10 is not a number",
		"train: {clip: 0x1p4}\n":                      "2:15: train.clip: 0x1p4 is not a number",
		"train: {clip: 1e-400}\n":                     "2:15: train.clip: 1e-400 is too small",
		"train: {clip: 1e400}\n":                      "2:15: train.clip: 1e400 is too large",
		"train: {clip: .nan}\n":                       "2:15: train.clip: .nan is not a usable number",
		"train: {clip: -.inf}\n":                      "2:15: train.clip: -.inf is not finite",
		"parallel: {timeout: 5}\n":                    "2:21: parallel.timeout: 5 is not a time span",
		"parallel: {timeout: 8761h}\n":                "2:21: parallel.timeout: 8761h is more than 8760h0m0s",
		"parallel: {memory: 0x1p3GiB}\n":              "2:20: parallel.memory: 0x1p3GiB is not a number of bytes",
		"parallel: {memory: 1_0GiB}\n":                "2:20: parallel.memory: 1_0GiB is not a number of bytes",
		"parallel: {memory: 2000000TiB}\n":            "2:20: parallel.memory: 2000000TiB is not a number of bytes",
		"train: {steps: !!int 5}\n":                   "2:16: train.steps: a tag, !!int; remove it",
		"sample: {prompt: !!binary aGk=}\n":           "2:18: sample.prompt: a tag, !!binary; remove it",
		"train: !foo {steps: 5}\n":                    "2:8: train: a tag, !foo; remove it",
		"&a train: {steps: 5}\n":                      "2:1: a key with &; want a plain name",
		"!!str train: {steps: 5}\n":                   "2:1: a key with !!str; want a plain name",
		"1: 2\n":                                      "2:1: 1: unknown key",
		"~: 2\n":                                      "2:1: null: unknown key",
		"[a, b]: 2\n":                                 "2:7: not YAML: ",
		"? {a: b}\n: 2\n":                             "3:1: not YAML: ",
		"%YAML 1.1\n---\n":                            "2:1: a directive (a line that begins with %), which is not supported",
		"...\ntrain: {steps: 5}\n":                    "3:6: a second document after ---",
		"train: {steps: 5}\n---\nx\n":                 "3:1: a second document after ---",
		"train:\n\tsteps: 5\n":                        `3:1: not YAML: found character '\t' that cannot start any token; YAML indents with spaces`,
		"train: {steps: 5, steps: 5}\n":               "2:19: train.steps: given twice, first at job.yaml:2:9",
		"train: {steps: 5}\ntrain: {seed: 5}\n":       "3:1: train: given twice, first at job.yaml:2:1",
		"sample: {prompt: \"\x1b[31m\"}\n":            `2:19: there is a character U+001B, which does not print; remove it, or write it in a value as "\u001B", in double quotes`,
		"sample: {prompt: \"\u0085\"}\n":              "2:19: there is a character U+0085",
		"sample: {prompt: \"\ufeff\"}\n":              "2:19: there is a character U+FEFF",
		"sample: {prompt: \"\xff\"}\n":                "2:19: this is not text in UTF-8",
		"sample: {prompt: \"\xef\x41\"}\n":            "2:19: this is not text in UTF-8",
		"sample: {prompt: \"\x00\"}\n":                "2:19: there is a zero byte: this is text in UTF-16, or no text",
		"\"\\e[31m\": 5\n":                            `2:1: \x1b[31m: unknown key`,
		"zero: {stage: \"\\e[31m\\u202e\"}\n":         `2:15: zero.stage: "\x1b[31m\u202e" is not a whole number`,
		"zero: {stage: \u202e5}\n":                    "2:15: there is a character U+202E",
		"# \u202etxt.a\n":                             "2:3: there is a character U+202E",
		"train: {steps: 5} # a\u200b\n":               "2:22: there is a character U+200B",
		"tra\u00adin: {steps: 5}\n":                   "2:4: there is a character U+00AD",
		"model: {from: a\u2028b}\n":                   "2:16: there is a character U+2028",
		"sample: {prompt: \"\U000e0041\"}\n":          `2:19: there is a character U+E0041, which does not print; remove it, or write it in a value as "\U000E0041", in double quotes`,
		"sample: {prompt: \"\\U000e0041\\u200d\"} # \u00a0日本語 é\n": "200 1 1",
		"data: {text: !!seq [a.txt]}\n":                            "2:1: data: given twice",
	} {
		file := jobtest.Least + text
		if mark := strings.TrimPrefix(text, "\ufeff"); mark != text {
			file = "\ufeff" + jobtest.Least + mark
		}
		jobtest.Write(t, "job.yaml", file)
		c, err := Load("job.yaml", nil)
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprint(c.Train.Steps, c.Train.Seed, c.Train.Clip)
		}
		if refused := strings.Contains(want, ": "); refused && !strings.HasPrefix(got, "job.yaml:"+want) || !refused && got != want {
			t.Errorf("%q: %s\nwant %s", text, got, want)
		}
	}
	for _, mark := range []string{"\xff\xfe", "\xfe\xff"} {
		jobtest.Write(t, "job.yaml", mark+"d\x00a\x00")
		if _, err := Load("job.yaml", nil); err == nil || err.Error() != "job.yaml:1:1: this is text in UTF-16 or UTF-32; save it as UTF-8" {
			t.Errorf("%q: %v", mark, err)
		}
	}
}

// TestPromptsReadBack checks that any prompt reads back unchanged.
func TestPromptsReadBack(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, jobtest.Least)
	c := mustLoad(t)
	const page = 1 << 12 // 48 prompts in all
	for first := rune(0); first < 0x300_00; first += page {
		var b strings.Builder
		for r := max(first, 1); r < first+page; r++ {
			if utf8.ValidRune(r) {
				b.WriteRune(r)
			}
		}
		c.Sample.Prompt = b.String()
		jobtest.Write(t, "again.yaml", string(c.YAML()))
		if got, err := Load("again.yaml", nil); err != nil || got.Sample.Prompt != c.Sample.Prompt {
			t.Errorf("%U: %v", first, err)
		}
	}
}

// TestSettingsOfOlderJobs checks that the job of an old checkpoint may contain invisible
// characters that a job file must escape.
func TestSettingsOfOlderJobs(t *testing.T) {
	was := SettingsOf("train: {steps: 77} # \u202e\nsample: {prompt: \"a\u200db\"}\n")
	if was == nil || was.Train.Steps != 77 {
		t.Errorf("got %+v", was)
	}
}
