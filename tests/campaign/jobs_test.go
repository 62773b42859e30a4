//go:build campaign && linux

package campaign

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// tiny is a job that trains in milliseconds with any value of one other key.
const tiny = `model: {layers: 1, heads: 1, width: 4, context: 4}
data: {text: [text.txt]}
train: {steps: 1, micro_batch: 1, eval_batches: 1}
parallel: {ranks: 2, memory: 64MiB}
sample: {tokens: 0}
`

// oddity is a kind of odd input. Its function also returns whether the input must be refused.
type oddity struct {
	name string
	run  func(o *odds) (e ended, mustRefuse bool)
}

// odds is a trial of an odd input.
type odds struct {
	*trial
}

var oddities = []oddity{
	{"--set, plan", func(o *odds) (ended, bool) { return o.sets([]string{"plan", o.example()}, 1, false) }},
	{"--set, fit", func(o *odds) (ended, bool) { return o.sets(o.fit(o.example()), 1, false) }},
	{"--set, train", func(o *odds) (ended, bool) { return o.sets(o.train(o.job(tiny)), 1, true) }},
	{"several --set, plan", func(o *odds) (ended, bool) { return o.sets([]string{"plan", o.example()}, 2+o.rng.IntN(5), false) }},
	{"several --set, train", func(o *odds) (ended, bool) { return o.sets(o.train(o.job(tiny)), 2+o.rng.IntN(3), true) }},
	{"key in the file, plan", func(o *odds) (ended, bool) {
		s := absurd(o.rng, false)
		return o.zeroth(nil, "plan", o.job(o.with(o.read(o.example()), s))), s.refused
	}},
	{"key in the file, train", func(o *odds) (ended, bool) {
		s := absurd(o.rng, true)
		return o.zeroth([]int{1}, o.train(o.job(o.with([]byte(tiny), s)))...), s.refused
	}},
	{"file damaged, plan", func(o *odds) (ended, bool) {
		return o.zeroth(nil, "plan", o.job(o.damaged(o.read(o.example())))), false
	}},
	{"file damaged, fit", func(o *odds) (ended, bool) {
		return o.zeroth(nil, o.fit(o.job(o.damaged(o.read(o.example()))))...), false
	}},
	{"structure", func(o *odds) (ended, bool) {
		s := pick(o.rng, structures)
		return o.zeroth(nil, "plan", o.job(s.text(o))), s.refused
	}},
	{"other spelling", func(o *odds) (ended, bool) { return o.spelled(), false }},
	{"special file", func(o *odds) (ended, bool) { return o.special(), true }},
	{"flags", func(o *odds) (ended, bool) { return o.zeroth(nil, o.flags()...), false }},
	{"folders", func(o *odds) (ended, bool) { return o.zeroth([]int{1}, o.folders()...), false }},
}

// TestJobs runs the program with odd job files, settings and flags. It must do what they mean, or
// refuse with exit code 2 and create nothing. Values that are wrong for every key must be
// refused.
func TestJobs(t *testing.T) {
	oddities := slices.Concat(oddities, edges)
	var kinds []string
	for _, k := range oddities {
		kinds = append(kinds, k.name)
	}
	trials(t, count(*jobs), kinds, func(x *trial) string {
		o := &odds{trial: x}
		o.surround()
		outside := look(x.outside())
		e, refuse := oddities[x.number%len(oddities)].run(o)
		x.same(outside, look(x.outside()), "the command")
		if refuse && e.code == 0 {
			x.Errorf("taken, and should have been refused:\n%s", brief(e.said()))
		}
		switch e.code {
		case 0:
			return "done"
		case 2:
			if left, _ := filepath.Glob(filepath.Join(x.dir, "run*")); len(left) > 0 {
				x.Errorf("refused, and left %v", left)
			}
			return "refused"
		}
		return fmt.Sprintf("exit code %d", e.code)
	})
}

// surround creates the files that settings can name.
func (o *odds) surround() {
	o.write(filepath.Join(o.dir, "text.txt"), prose(2000))
	o.write(filepath.Join(o.dir, "empty"), "")
	o.write(filepath.Join(o.dir, "binary"), "\x00\xff\xfe\x80ELF"+strings.Repeat("\x00\xc3\x28", 300))
	o.mkdir(filepath.Join(o.dir, "folder"))
	o.must(os.Symlink("nowhere", filepath.Join(o.dir, "dangling")))
	o.must(os.Symlink("loop", filepath.Join(o.dir, "loop")))
	o.must(syscall.Mkfifo(filepath.Join(o.dir, "fifo"), 0o666))
}

// example returns a job file of the repository.
func (o *odds) example() string {
	found, err := filepath.Glob("../../examples/*.yaml")
	o.must(err)
	path, err := filepath.Abs(pick(o.rng, found))
	o.must(err)
	return path
}

// job writes a job file and returns its name.
func (o *odds) job(text string) string {
	o.write(filepath.Join(o.dir, "job.yaml"), text)
	o.ran = append(o.ran, fmt.Sprintf("  (job.yaml has %d bytes: %q)", len(text), brief(text)))
	return "job.yaml"
}

func (o *odds) fit(file string) []string {
	return []string{"fit", file, "--gpus", pick(o.rng, []string{"1", "2", "8", "64"}), "--gpu-memory", pick(o.rng, []string{"1MiB", "80GiB", "1TiB"})}
}

func (o *odds) train(file string) []string { return []string{"train", file, "--out", "run"} }

// sets runs a command with n absurd settings.
func (o *odds) sets(args []string, n int, tame bool) (e ended, refuse bool) {
	for range n {
		s := absurd(o.rng, tame)
		if strings.Contains(s.String(), "\x00") { // no argument can contain a zero byte
			continue
		}
		args = append(args, "--set", s.String())
		refuse = refuse || s.refused && n == 1
	}
	var also []int
	if args[0] == "train" {
		also = []int{1}
	}
	return o.zeroth(also, args...), refuse
}

// with writes a setting into a job file, within its section or at the end.
func (o *odds) with(file []byte, s setting) string {
	name, key, ok := strings.Cut(s.key, ".")
	var kept []string
	for _, line := range strings.Split(string(file), "\n") {
		if !strings.HasPrefix(line, name+":") || !ok {
			kept = append(kept, line)
		}
	}
	if !ok {
		return strings.Join(kept, "\n") + "\n" + s.key + ": " + s.value + "\n"
	}
	out := strings.Join(kept, "\n") + "\n" + name + ":\n  " + key + ": " + s.value + "\n"
	if name == "sample" && key != "tokens" { // sampled text is not a message
		out += "  tokens: 0\n"
	}
	return out
}

// damaged changes a text in one to four places.
func (o *odds) damaged(text []byte) string {
	for range 1 + o.rng.IntN(4) {
		at := o.rng.IntN(len(text) + 1)
		piece := pick(o.rng, []string{"\t", "\x00", "\x1b[2J", "\r\n", "\uFEFF", "\u202e", "\u00a0", "\xff\xfe", "[", "{", "}", "]", ":", ": ", "- ", "&a ", "*a", "<<: ", "? ", "| \n", "\"", "'", "#", "%", "!", "---\n", "...\n", "\u2028", "\u200b", "\u00ad", "# \u2066", "\u0085", "é", "０", strings.Repeat(" ", 300), strings.Repeat("x", 3000)})
		switch o.rng.IntN(6) {
		case 0:
			text = slices.Insert(slices.Clone(text), at, []byte(piece)...)
		case 1:
			text = slices.Delete(slices.Clone(text), at, min(len(text), at+1+o.rng.IntN(9)))
		case 2:
			text = append(slices.Clone(text[:at]), text[o.rng.IntN(len(text)+1):]...)
		case 3:
			lines := strings.SplitAfter(string(text), "\n")
			i, j := o.rng.IntN(len(lines)), o.rng.IntN(len(lines))
			lines[i], lines[j] = lines[j], lines[i]
			text = []byte(strings.Join(lines, ""))
		case 4:
			lines := strings.SplitAfter(string(text), "\n")
			lines = append(lines, lines[o.rng.IntN(len(lines))])
			text = []byte(strings.Join(lines, ""))
		case 5:
			text = slices.Clone(text)
			if at < len(text) {
				text[at] ^= 1 << o.rng.IntN(8)
			}
		}
	}
	return string(text)
}

// structures are files with odd YAML. The marked ones must be refused.
var structures = []struct {
	text    func(o *odds) string
	refused bool
}{
	{func(*odds) string { return "" }, true},
	{func(*odds) string { return "\uFEFF" }, true},
	{func(*odds) string { return "# only a comment\n" }, true},
	{func(*odds) string { return "null\n" }, true},
	{func(*odds) string { return "just words\n" }, true},
	{func(*odds) string { return "[1, 2]\n" }, true},
	{func(*odds) string { return "\uFEFF" + tiny }, false},
	{func(*odds) string { return strings.ReplaceAll(tiny, "\n", "\r\n") }, false},
	{func(*odds) string { return strings.ReplaceAll(tiny, "\n", "\r") }, false},
	{func(*odds) string { return tiny + "---\n" + tiny }, true},
	{func(*odds) string { return tiny + "<<: 5\n" }, true},
	{func(*odds) string { return tiny + "<<: [{zero: {stage: 9}}]\n" }, true},
	{func(*odds) string { return tiny + "<<: [5]\n" }, true},
	{func(*odds) string { return tiny + "<<: {zero: {stage: 9}}\n" }, true},
	{func(*odds) string { return tiny + "<<: *nobody\n" }, true},
	{func(*odds) string { return tiny + "zero: {<<: [{stage: 9}]}\n" }, true},
	{func(*odds) string { return tiny + "zero: {<<: {<<: {stage: 9}}}\n" }, true},
	{func(*odds) string { return tiny + "zero: &z {stage: 1, prefetch: *z}\n" }, true},
	{func(*odds) string { return tiny + "zero: &z\n  <<: *z\n" }, true},
	{func(*odds) string { return tiny + "zero: {stage: 1}\nzero: {stage: 2}\n" }, true},
	{func(*odds) string { return tiny + "zero: {stage: 1, stage: 2}\n" }, true},
	{func(*odds) string { return tiny + "zero: {? [a, b] : 1}\n" }, true},
	{func(*odds) string { return tiny + "1: 2\n" }, true},
	{func(*odds) string { return tiny + "zero:\n\tstage: 1\n" }, true},
	{func(*odds) string { return tiny + "zero: {stage: !!str 1}\n" }, true},
	{func(*odds) string { return tiny + "zero: {stage: !!python/object:os.system 1}\n" }, true},
	{func(*odds) string { return tiny + "zero: {stage: \"1\"}\n" }, true},
	{func(*odds) string { return tiny + "zero: {stage: |\n  1\n}\n" }, true},
	{func(*odds) string { return tiny + "\x1b[31mred: 1\n" }, true},
	{func(*odds) string { return tiny + "\"\\e[31mred\\0\": 1\n" }, true},
	{func(*odds) string { return tiny + "\"\\u202ered\": 1\n" }, true},
	{func(o *odds) string { return tiny + "# a" + pick(o.rng, invisible) + "b\n" }, true},
	{func(o *odds) string { return strings.Replace(tiny, ": ", ": "+pick(o.rng, invisible), 1+o.rng.IntN(5)) }, true},
	{func(o *odds) string {
		return strings.Replace(tiny, "text.txt", "'te"+pick(o.rng, invisible)+"xt.txt'", 1)
	}, true},
	{func(o *odds) string {
		return strings.Repeat(pick(o.rng, []string{"[", "{", "{a: ", "- ", "? ", "!a ", "&a ", "[[", "\"", "'", ">", "|"}), 1000+o.rng.IntN(45_000))
	}, true},
	{func(o *odds) string { return "zero: " + strings.Repeat("[", 3000) + strings.Repeat("]", 3000) + "\n" }, true},
	{func(o *odds) string { return tiny + strings.Repeat("k", 1<<(10+o.rng.IntN(15))) + ": 1\n" }, true},
	{func(o *odds) string {
		return tiny + "zero: {stage: " + strings.Repeat("1", 1<<(10+o.rng.IntN(15))) + "}\n"
	}, true},
	{func(o *odds) string {
		var b strings.Builder
		for i := range 1 << (8 + o.rng.IntN(11)) {
			fmt.Fprintf(&b, "key%d: %d\n", i, i)
		}
		return tiny + b.String()
	}, true},
	{func(o *odds) string { return tiny + strings.Repeat("# a comment\n", 1<<(8+o.rng.IntN(14))) }, false},
	{func(o *odds) string { return tiny + strings.Repeat("\n", 1<<(8+o.rng.IntN(16))) }, false},
	{func(o *odds) string { // expands to 10^10 texts
		b := "a0: &a0 [text.txt, text.txt, text.txt, text.txt, text.txt, text.txt, text.txt, text.txt, text.txt, text.txt]\n"
		for i := range 9 {
			b += fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 9), i)
		}
		return b + "data: {text: *a9}\n"
	}, true},
	{func(o *odds) string { // expands to 2^25 mappings
		b := "a0: &a0 {stage: 1}\n"
		for i := range 25 {
			b += fmt.Sprintf("a%d: &a%d {x: *a%d, y: *a%d}\n", i+1, i+1, i, i)
		}
		return b + "zero: *a25\ndata: {text: [text.txt]}\n"
	}, true},
	{func(o *odds) string { return string(make([]byte, 1<<o.rng.IntN(20))) }, true},
	{func(o *odds) string { return strings.Repeat(" ", 1<<(10+o.rng.IntN(14))) }, true},
}

// spelled trains a small job in plain YAML and in an equivalent spelling. The job.yaml of both
// runs must be equal.
func (o *odds) spelled() ended {
	pairs := small(o.rng)
	first := o.zeroth([]int{1}, "train", o.job(plain(pairs)), "--out", "run1")
	second := o.zeroth([]int{1}, "train", o.job(o.otherwise(pairs)), "--out", "run2")
	if first.code != second.code {
		o.Errorf("the plain job ends with exit code %d, the other with %d:\n%s", first.code, second.code, brief(second.said()))
	}
	if first.code == 0 {
		a, b := o.read(filepath.Join(o.dir, "run1/job.yaml")), o.read(filepath.Join(o.dir, "run2/job.yaml"))
		if string(a) != string(b) {
			o.Errorf("the plain job is\n%s\nthe other\n%s", a, b)
		}
	}
	return second
}

// otherwise returns the same pairs in another spelling of YAML.
func (o *odds) otherwise(pairs [][2]string) string {
	all := sections(pairs)
	var b strings.Builder
	switch o.rng.IntN(6) {
	case 0: // flow mappings
		for _, s := range all {
			if s.name == "" {
				b.WriteString(s.lines("", ": "))
			} else {
				b.WriteString(s.name + ": " + s.flow() + "\n")
			}
		}
	case 1: // comments, quoted keys, wide spaces
		for _, s := range all {
			if s.name == "" {
				b.WriteString(s.lines("", ":    "))
			} else {
				fmt.Fprintf(&b, "# %s: {wrong: 1}\n\"%s\":   # a comment\n\n%s", s.name, s.name, s.lines("      ", ":   "))
			}
		}
	case 2: // anchors on the values
		for i, p := range pairs {
			pairs[i][1] = fmt.Sprintf("&a%d %s", i, p[1])
		}
		b.WriteString(plain(pairs))
	case 3: // a merge that changes nothing
		for _, s := range all {
			if s.name == "" {
				b.WriteString(s.lines("", ": "))
			} else {
				fmt.Fprintf(&b, "%s:\n  <<: %s\n%s", s.name, s.flow(), s.lines("  ", ": "))
			}
		}
	case 4: // a byte order mark, document start and end
		b.WriteString("\uFEFF---\n" + plain(pairs) + "...\n")
	case 5: // CRLF line ends
		b.WriteString(strings.ReplaceAll(plain(pairs), "\n", "\r\n"))
	}
	return b.String()
}

// special gives a command an input that is not a file of the expected type.
func (o *odds) special() ended {
	path := pick(o.rng, []string{"/dev/zero", "fifo", "folder", "dangling", "loop", "binary", "/dev/null", "/dev/full", "missing", "/proc/self/mem", "/dev/stdin", "empty"})
	return pick(o.rng, []func() ended{
		func() ended { return o.zeroth(nil, "plan", path) },
		func() ended { return o.zeroth(nil, "fit", path, "--gpus", "2", "--gpu-memory", "8GiB") },
		func() ended { return o.zeroth(nil, o.train(path)...) },
		func() ended { return o.zeroth(nil, "plan", o.job(tiny), "--machine", path) },
		func() ended {
			return o.zeroth(nil, "fit", o.job(tiny), "--gpus", "2", "--gpu-memory", "8GiB", "--machine", path)
		},
		func() ended { return o.zeroth(nil, "plan", "--model", path) },
		func() ended { return o.zeroth(nil, append(o.train(o.job(tiny)), "--set", "model={from: "+path+"}")...) },
		func() ended {
			return o.zeroth(nil, append(o.train(o.job(tiny)), "--set", "data={tokens: ["+path+"]}")...)
		},
		func() ended {
			return o.zeroth(nil, append(o.train(o.job(tiny)), "--set", "data={text: [text.txt], tokenizer: gpt2, vocab: "+path+"}")...)
		},
		func() ended { return o.within(path, "config.json", "plan", "--model", "within") },
		func() ended {
			return o.within(path, "config.json", append(o.train(o.job(tiny)), "--set", "model={from: within}")...)
		},
		func() ended {
			return o.within(path, "vocab.json", append(o.train(o.job(tiny)), "--set", "data={text: [text.txt], tokenizer: gpt2, vocab: within}")...)
		},
		func() ended {
			return o.within(path, "merges.txt", append(o.train(o.job(tiny)), "--set", "data={text: [text.txt], tokenizer: gpt2, vocab: within}")...)
		},
		func() ended { return o.within(path, "model.safetensors", "ckpt", "import", "within", "--to", "run") },
		func() ended { return o.within(path, "config.json", "sample", "--run", "within") },
		func() ended { return o.within(path, "job.yaml", "ckpt", "ls", "within") },
	})()
}

// within creates a link to path in a folder and runs a command on the folder.
func (o *odds) within(path, name string, args ...string) ended {
	o.mkdir(filepath.Join(o.dir, "within"))
	if !filepath.IsAbs(path) {
		path = filepath.Join("..", path)
	}
	o.must(os.Symlink(path, filepath.Join(o.dir, "within", name)))
	if name == "model.safetensors" {
		o.write(filepath.Join(o.dir, "within/config.json"), modelConfig)
	}
	if name == "merges.txt" {
		o.write(filepath.Join(o.dir, "within/vocab.json"), alphabet())
	}
	return o.zeroth([]int{1}, args...)
}

// flags returns odd flags for plan and fit.
func (o *odds) flags() []string {
	n := func() string {
		return pick(o.rng, []string{"-1", "0", "1", "3", "65536", "65537", "1048577", "9223372036854775807", "9223372036854775808", "1e3", "NaN", "", " ", "x", "\x1b[31m", "\u202e1", strings.Repeat("9", 5000)})
	}
	bytes := func() string {
		return pick(o.rng, []string{"-1GiB", "0", "1B", "80GiB", "1EiB", "9999999999EiB", "1e400GiB", "NaNGiB", "infGiB", "", "GiB", "80", "80 GiB", "80gib", "\x1b[31mGiB"})
	}
	args := pick(o.rng, [][]string{{"plan", o.example()}, {"fit", o.example(), "--gpus", "8", "--gpu-memory", "80GiB"}, {"plan", o.job(tiny), "--machine", "h100"}})
	for range 1 + o.rng.IntN(3) {
		switch name := pick(o.rng, []string{"gpus", "gpu-memory", "world", "stage", "shard", "replicate", "micro-batch", "accumulate", "seq", "precision", "recompute", "prefetch", "loss-chunk", "optimizer",
			"flops", "link", "host-link", "host-rate", "disk-rate", "host-memory", "disk", "gpus-per-node", "largest", "machine", "torchtitan-estimate", "json", "nonsense", "model"}); name {
		case "json":
			args = append(args, "--json")
		case "gpu-memory", "link", "host-link", "host-rate", "disk-rate", "host-memory", "disk":
			args = append(args, "--"+name+"="+bytes())
		case "largest":
			args = append(args, "--largest="+pick(o.rng, []string{"model", "seq", "micro_batch", "", "x", "\x1b[31m"}))
		case "machine":
			args = append(args, "--machine="+pick(o.rng, []string{"h100", "h200", "", "x", "missing", "\x1b[31m"}))
		default:
			args = append(args, "--"+name+"="+n())
		}
	}
	return args
}

// folders returns odd folders for train, ckpt and sample.
func (o *odds) folders() []string {
	path := pick(o.rng, []string{"text.txt", "fifo", "folder", "dangling", "loop", "/dev/null", "/dev/full", "/proc/nothing/there", "text.txt/below", "", ".", strings.Repeat("a", 300), strings.Repeat("a/", 2100), "run\n\x1b[31mred", "run\u202e", "run名前", "new/deep/er"})
	which := pick(o.rng, []string{"latest", "", "-1", "0", "99999999999999999999", "latest ", "text.txt", "fifo", "folder", "loop", "\x1b[31m", "../outside", strings.Repeat("9", 300)})
	file := o.job(tiny)
	return pick(o.rng, [][]string{
		{"train", file, "--out", path},
		{"train", file, "--out", path, "--resume", which},
		{"train", file, "--out", "run", "--resume", which},
		{"train", file, "--out", "run", "--set", "checkpoint={every: 1, dir: " + strconv.Quote(path) + "}"},
		{"ckpt", "ls", path}, {"ckpt", "verify", path}, {"ckpt", "inspect", path}, {"ckpt", "diff", path, which},
		{"ckpt", "prune", path, "--keep", pick(o.rng, []string{"1", "0", "-1", "x", "{last: 1}", "{best: \"\\e[31m\"}", "[", "NaN"})},
		{"ckpt", "export", path, "--to", "run"}, {"ckpt", "import", path, "--to", "run"},
		{"sample", "--run", path}, {"sample", "--run", "folder", "--prompt", which, "--tokens", pick(o.rng, []string{"-1", "0", "1"}), "--temperature", pick(o.rng, []string{"NaN", "-1", "1e400", "x"})},
		{"bench", path}, {path}, {"ckpt", path}, {"help", path}, {"plan", file, "--html", path + "/x"},
	})
}
