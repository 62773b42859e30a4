//go:build campaign && linux

package campaign

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
)

// keys are all keys of a job file, as listed by the program.
var keys []string

var keyLine = regexp.MustCompile(`(?m)^([a-z_]+(?:\.[a-z_]+)*) {2,}\S`)

func listKeys(help string) (keys []string) {
	_, list, _ := strings.Cut(help, "Keys, defaults, meanings:")
	for _, m := range keyLine.FindAllStringSubmatch(list, -1) {
		keys = append(keys, m[1])
	}
	return keys
}

// texts are the keys that accept any text but an empty one.
var texts = []string{"model.from", "data.text", "data.tokens", "data.vocab", "zero.offload.path", "checkpoint.dir", "sample.prompt", "parallel.token_file", "parallel.bind",
	"parallel.tls.cert", "parallel.tls.key", "parallel.tls.ca"}

// long are the keys that can make a run long or large. Trials set them only to invalid values
// when they train.
var long = []string{"train.steps", "train.batch", "train.micro_batch", "train.accumulate", "train.eval_batches", "train.loss_chunk",
	"model.layers", "model.heads", "model.kv_heads", "model.width", "model.ffn", "model.context", "model.vocab",
	"parallel.ranks", "parallel.shard", "parallel.replicate", "parallel.timeout", "parallel.memory", "parallel.heartbeat", "parallel.dead_after", "sample.tokens", "zero.prefetch", "zero.offload.buffers"}

// invisible are characters that are not shown or that change the direction of text.
var invisible = []string{"\u202e", "\u200b", "\u00ad", "\u2028", "\u2029", "\u2066", "\u200d", "\u061c", "\ufeff", "\u0085", "\U000e0041"}

// wrong are values that only keys of texts accept.
var wrong = []string{"-7", "-9223372036854775808", "-99999999999999999999999", "1e400", ".nan", "NaN", "-.inf", ".inf", "xyzzy", "[[1]]", "{q: 1}",
	"[1, 2, 3]", "[]", "{}", `"\e[31mred"`, "'\a'", "１２", "٣", "1 000", "''", `"\0"`, "\u202e21", "2\u200b1", "21\u00ad", "\u202821", strings.Repeat("9", 4000), strings.Repeat("x", 50_000),
	"-1e400", "0x", "1 2", "!!python/object:os.system x", "*a", "[", "]", "{", "}", `"`, "'", "|", ">", "- -", "? ?", ": :", "%TAG", "@", "`", "\x00", "\x1b[2J", "\x7f",
	strings.Repeat("[", 45_000), strings.Repeat("{a: ", 9_000), strings.Repeat("- ", 20_000) + "1"}

// odd are values that some keys accept and others refuse.
var odd = []string{"0", "1", "2", "3", "5", "7", "64", "4096", "65535", "65536", "1048576", "1048577", "2147483647", "2147483648", "4294967296", "1099511627776",
	"9223372036854775807", "9223372036854775808", "18446744073709551615", "0.5", "-0", "-1", "1.0", "1e-9", "1e30", "1e308", "1e-400", "0x10", "0o17", "017", "1_000", "+1", "true", "false", "yes", "off",
	"null", "~", "", "host", "disk", "none", "block", "adam", "lion", "sgd", "fp16", "fp32", "constant", "llama", "gpt2", "always", "continue", "1ns", "1ms", "5m", "2562047h", "1B", "64MiB", "1EiB", "99999999999TiB",
	"[0.9, 0.95]", "[0, 0]", "[.nan, 1]", "{last: 1}", "{last: -1}", "{best: \"\"}", "{every_steps: 9223372036854775807}", "auto", "2024-01-01", "!!int '3'", "# comment", "&a", "\t"}

// words are values for keys that take text. None refers to anything outside the trial's folder
// that could be deleted.
var words = []string{"text.txt", "missing", "", ".", "..", "/dev/null", "/dev/zero", "/dev/full", "fifo", "folder", "dangling", "loop", "binary", "empty", "*", "**", "[", "{a,b", "${NOPE}", "${HOME", "~", "~/text.txt", "~nobody/x",
	strings.Repeat("a", 300), strings.Repeat("a/", 3000), strings.Repeat("*", 300), strings.Repeat("{a,b}", 12) + "*", strings.Repeat("**/", 40) + "*.txt", "/usr/**/**/**/**/**/*.zzz", "text\u200b.txt", "\u00ad",
	`"a\0b"`, `"\e[31mred"`, "\u202etxt.", "名前", "5", "null", "[]", "[[]]", "[text.txt, [text.txt]]", "{}", "{a: b}", "[" + strings.Repeat("text.txt, ", 5000) + "text.txt]", "-1", ".nan"}

// setting is a key with a value; refused means that it must be refused.
type setting struct {
	key, value string
	refused    bool
}

func (s setting) String() string { return s.key + "=" + s.value }

// absurd returns a random setting. If tame, it does not make a run long.
func absurd(rng *rand.Rand, tame bool) setting {
	key := pick(rng, keys)
	switch {
	case rng.IntN(20) == 0: // an unknown key
		return setting{strangeKey(rng, key), pick(rng, odd), false}
	case slices.Contains(texts, key):
		v := pick(rng, words)
		if strings.HasPrefix(key, "data.t") && rng.IntN(2) == 0 {
			v = "[" + v + "]"
		}
		return setting{key, v, false}
	case rng.IntN(2) == 0 || tame && slices.Contains(long, key):
		return setting{key, pick(rng, wrong), true}
	}
	return setting{key, pick(rng, odd), false}
}

// strangeKey returns an unknown key similar to key, or the name of a section.
func strangeKey(rng *rand.Rand, key string) string {
	section, _, _ := strings.Cut(key, ".")
	return pick(rng, []string{section, section + ".", "." + key, key + ".x", key + "..y", strings.ToUpper(key), key + " ", "\uFEFF" + key, strings.Repeat(key, 500),
		key[1:], "<<", "x\x1b[31m", "model.\x00", "\u202e" + key, strings.Repeat("a.", 10_000) + "b", "=", "[", "*a", "&a", "-"})
}

// small returns one valid value for each key of a small job. Other spellings of these values must
// give the same job.
func small(rng *rand.Rand) (pairs [][2]string) {
	good := map[string][]string{
		"model.layers": {"1", "2"}, "model.heads": {"1", "2"}, "model.width": {"8", "4"}, "model.context": {"8", "5"},
		"data.validation": {"0.2", "0"}, "train.steps": {"1", "2"}, "train.micro_batch": {"1", "2"}, "train.clip": {"0.5", "0"}, "train.seed": {"7", "0"},
		"parallel.ranks": {"1", "2"}, "parallel.timeout": {"30s", "1m30s"}, "zero.stage": {"0", "1", "2", "3"}, "zero.prefetch": {"0", "2"}, "zero.recompute": {"none", "block"},
		"precision": {"fp32", "bf16"}, "optimizer.type": {"adamw", "adam"}, "optimizer.lr": {"1e-2", "0.001"}, "optimizer.betas": {"[0.8, 0.9]", "[0, 0.5]"},
		"schedule.type": {"cosine", "constant"}, "schedule.warmup": {"0", "1"}, "checkpoint.every": {"0", "1"}, "checkpoint.keep": {"1", "{last: 2}"}, "checkpoint.async": {"true", "false"},
		"sample.prompt": {"the", `"a \"b\" c"`}, "sample.tokens": {"0"}, "data.text": {"[text.txt]", `["text.txt"]`},
	}
	for _, key := range keys {
		always := slices.Contains(long, key) || key == "data.text"
		if v, ok := good[key]; ok && (always || rng.IntN(2) == 0) {
			pairs = append(pairs, [2]string{key, pick(rng, v)})
		}
	}
	return pairs
}

// plain writes the pairs of a job one per line, in sections.
func plain(pairs [][2]string) string {
	var b strings.Builder
	for _, s := range sections(pairs) {
		if s.name == "" {
			b.WriteString(s.lines("", ": "))
			continue
		}
		fmt.Fprintf(&b, "%s:\n%s", s.name, s.lines("  ", ": "))
	}
	return b.String()
}

type section struct {
	name  string // empty for top-level keys
	pairs [][2]string
}

func (s section) lines(indent, colon string) string {
	var b strings.Builder
	for _, p := range s.pairs {
		b.WriteString(indent + p[0] + colon + p[1] + "\n")
	}
	return b.String()
}

func (s section) flow() string {
	var all []string
	for _, p := range s.pairs {
		all = append(all, p[0]+": "+p[1])
	}
	return "{" + strings.Join(all, ", ") + "}"
}

func sections(pairs [][2]string) (out []section) {
	for _, p := range pairs {
		name, key, ok := strings.Cut(p[0], ".")
		if !ok {
			name, key = "", p[0]
		}
		i := slices.IndexFunc(out, func(s section) bool { return s.name == name })
		if i < 0 {
			i = len(out)
			out = append(out, section{name: name})
		}
		out[i].pairs = append(out[i].pairs, [2]string{key, p[1]})
	}
	return out
}
