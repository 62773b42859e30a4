package repo

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zeroth/config"
	"zeroth/job/jobtest"
	"zeroth/tests/nightly"
)

// The commands that pages show. In a page a fenced block with the tag
//
//   - sh is run by TestReadmeBlocksRun, in order, in a fresh folder for each page;
//   - console shows a terminal. Its lines that begin with "$ " are commands that
//     need more than the test has: minutes, a GPU, other hosts, a folder of the
//     reader's. They must parse.
//
// A block without a tag must not begin with a command. BENCHMARKS.md consists of measurements:
// its commands must parse.

// block is a fenced block of a page.
type block struct {
	page string
	line int // first line of text in the page, counted from 1
	tag  string
	text string
}

func (b block) String() string {
	return fmt.Sprintf("%s:%d", strings.TrimPrefix(b.page, "../../"), b.line)
}

func blocks(page, text string) (out []block) {
	var b *block
	for i, line := range strings.SplitAfter(text, "\n") {
		tag, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && b == nil:
			b = &block{page: page, line: i + 2, tag: tag}
		case fence:
			out, b = append(out, *b), nil
		case b != nil:
			b.text += line
		}
	}
	return out
}

var continued = regexp.MustCompile(`(?m)^\$ ((?:.*\\\n)*.*\n)`)

// shell returns the shell text of a block, or "" if it has none.
func (b block) shell() (text string) {
	if b.tag == "sh" {
		return b.text
	}
	if b.tag == "console" {
		for _, m := range continued.FindAllStringSubmatch(b.text, -1) {
			text += m[1]
		}
	}
	return text
}

// pages returns README.md, the pages for contributors, BENCHMARKS.md and all of docs, in this order.
func pages(t *testing.T) (names []string, text map[string]string) {
	t.Helper()
	names = []string{"../../README.md", "../../CONTRIBUTING.md", "../../ARCHITECTURE.md", "../../BENCHMARKS.md"}
	for _, pattern := range []string{"../../docs/*.md", "../../docs/lab/*.md"} {
		docs, err := filepath.Glob(pattern)
		if err != nil || len(docs) < 5 {
			t.Fatal(docs, err)
		}
		names = append(names, docs...)
	}
	text = map[string]string{}
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text[name] = string(raw)
	}
	return names, text
}

// built is the folder of the program built by program.
var built string

// program builds the program once for all tests, with cgo as the tests were built, so that no package
// is compiled again.
var program = sync.OnceValues(func() (file string, err error) {
	if built, err = os.MkdirTemp("", "zeroth"); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", built, "../../cmd/zeroth")
	cmd.Env = append(os.Environ(), "GOROOT=") // tests may set another
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, msg)
	}
	return filepath.Join(built, "zeroth"), nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(built)
	os.Exit(code)
}

// verb is a command of the program, parsed from its help.
type verb struct {
	help  string
	below []string        // subcommands
	flags map[string]bool // whether each flag takes a value
}

var (
	helpCommand = regexp.MustCompile(`(?m)^  ([a-z]+) +\S`)
	// a command with others below it that takes arguments itself, as bench does
	takesArguments = regexp.MustCompile(`(?m)^  zeroth [a-z]+ \[[a-z]+\|`)
	helpFlag       = regexp.MustCompile(`(?m)^ +(?:-(\w), +)?--([\w-]+)(?: (\S+))?(?:  |$)`)
	verbs          = map[string]verb{}

	helpExampleBlock = regexp.MustCompile(`(?s)\nExamples:\n.*?(\n\n|$)`)
)

// help returns the parsed help of a command such as "ckpt ls".
func help(t *testing.T, path ...string) verb {
	t.Helper()
	name := strings.Join(path, " ")
	if v, ok := verbs[name]; ok {
		return v
	}
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	text, err := exec.Command(bin, append(slices.Clone(path), "--help")...).Output()
	if err != nil {
		t.Fatalf("zeroth %s --help: %v", name, err)
	}
	v := verb{help: string(text), flags: map[string]bool{}}
	_, usage, _ := strings.Cut(v.help, "\nUsage:\n")
	commands, flags, _ := strings.Cut(usage, "\nFlags:\n")
	for _, m := range helpCommand.FindAllStringSubmatch(helpExampleBlock.ReplaceAllString(commands, "\n"), -1) {
		if m[1] != "zeroth" { // not the usage line
			v.below = append(v.below, m[1])
		}
	}
	for _, m := range helpFlag.FindAllStringSubmatch(flags, -1) {
		v.flags["--"+m[2]] = m[3] != ""
		if m[1] != "" {
			v.flags["-"+m[1]] = m[3] != ""
		}
	}
	verbs[name] = v
	return v
}

// commandReference returns the help of every command.
func commandReference(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	var write func(path []string)
	write = func(path []string) {
		v := help(t, path...)
		text := v.help
		if len(path) > 0 {
			text, _, _ = strings.Cut(text, "\nGlobal Flags:\n") // keep only the first command's
		}
		fmt.Fprintf(&b, "\n### %s\n\n```text\n%s\n```\n", strings.Join(append([]string{"zeroth"}, path...), " "), strings.TrimSpace(text))
		for _, name := range v.below {
			if name != "help" && name != "completion" {
				write(append(slices.Clone(path), name))
			}
		}
	}
	write(nil)
	return b.String()
}

// wrongZeroth returns the errors in a zeroth command line.
func wrongZeroth(t *testing.T, args []string) (wrong []string) {
	var path []string
	v := help(t)
	for len(args) > 0 && slices.Contains(v.below, args[0]) && args[0] != "help" {
		path, args = append(path, args[0]), args[1:]
		v = help(t, path...)
	}
	if len(v.below) > 0 && !takesArguments.MatchString(v.help) && len(args) > 0 && args[0] != "help" && !strings.HasPrefix(args[0], "-") {
		return []string{"there is no command " + args[0]}
	}
	for i := 0; i < len(args); i++ {
		if args[i] == "--" { // the command that launch starts
			return append(wrong, wrongZeroth(t, args[i+1:])...)
		}
		name, value, joined := strings.Cut(args[i], "=")
		if !strings.HasPrefix(name, "-") || name == "-" {
			wrong = append(wrong, wrongFile(args[i])...)
			continue
		}
		takes, ok := v.flags[name]
		if !ok {
			wrong = append(wrong, fmt.Sprintf("zeroth %s has no flag %s", strings.Join(path, " "), name))
		}
		if takes && !joined {
			if i++; i == len(args) {
				return append(wrong, name+" has no value")
			}
			value = args[i]
		}
		if name == "--set" {
			wrong = append(wrong, wrongKey(value)...)
		}
	}
	return wrong
}

// wrongFile returns an error if name is a path in this repository that does not exist.
func wrongFile(name string) []string {
	if strings.HasPrefix(name, "examples/") || strings.HasPrefix(name, "docs/") {
		if _, err := os.Stat("../../" + name); err != nil {
			return []string{err.Error()}
		}
	}
	return nil
}

func wrongKey(set string) []string {
	key, _, ok := strings.Cut(set, "=")
	known := slices.ContainsFunc(config.Keys(), func(k string) bool { return k == key || strings.HasPrefix(k, key+".") })
	if !ok || !known {
		return []string{"--set " + set + " is no key of a job file"}
	}
	return nil
}

// wrongGo returns the errors in a go command: packages, tests and benchmarks that do not exist.
func wrongGo(t *testing.T, args []string, functions map[string]bool) (wrong []string) {
	dir := filepath.Join("..", "..")
	for i, arg := range args {
		if i > 0 && args[i-1] == "-C" {
			dir = filepath.Join(dir, arg)
		}
		if at, _ := strings.CutSuffix(arg, "/..."); strings.HasPrefix(at, "./") {
			if _, err := os.Stat(filepath.Join(dir, at)); err != nil {
				wrong = append(wrong, err.Error())
			}
		}
		if i > 0 && (args[i-1] == "-run" || args[i-1] == "-bench") && arg != "^$" {
			wrong = append(wrong, wrongPattern(arg, functions)...)
		}
	}
	if len(args) > 1 && args[0] == "run" && args[1] == "./cmd/zeroth" {
		wrong = append(wrong, wrongZeroth(t, args[2:])...)
	}
	return wrong
}

// wrongPattern returns the alternatives of a -run or -bench pattern that match no function.
func wrongPattern(arg string, functions map[string]bool) (wrong []string) {
	pattern, _, _ := strings.Cut(arg, "/") // empty if it names subtests alone
	before, rest, _ := strings.Cut(pattern, "(")
	choices, after, _ := strings.Cut(rest, ")")
	for choice := range strings.SplitSeq(choices, "|") {
		re, err := regexp.Compile(before + choice + after)
		if err != nil || !slices.ContainsFunc(slices.Collect(maps.Keys(functions)), re.MatchString) {
			wrong = append(wrong, fmt.Sprintf("%s: no test is named %s (%v)", arg, before+choice+after, err))
		}
	}
	return wrong
}

// TestChecksRunTests checks that every pattern of tests in .ci matches one, in each of its alternatives: a
// step that runs none passes.
func TestChecksRunTests(t *testing.T) {
	functions, count := declared(t), 0
	for _, file := range []string{"steps", "run", "nightly"} {
		text, err := os.ReadFile(filepath.Join("..", "..", ".ci", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:-run |RUN=)'?([^'\s;]+)`).FindAllStringSubmatch(string(text), -1) {
			count++
			for _, w := range wrongPattern(m[1], functions) {
				t.Errorf(".ci/%s: %s", file, w)
			}
		}
	}
	if count < 10 {
		t.Errorf("only %d patterns were read", count)
	}
	if len(wrongPattern("^Test(ChecksRun|Nowhere)", functions)) != 1 {
		t.Error("a name that no test has is not found")
	}
}

// wrongCommands returns the errors in the commands of a shell text.
func wrongCommands(t *testing.T, text string, functions map[string]bool) (wrong []string) {
	for _, words := range shellCommands(text) {
		switch words[0] {
		case "zeroth", "./zeroth":
			wrong = append(wrong, wrongZeroth(t, words[1:])...)
		case "go":
			wrong = append(wrong, wrongGo(t, words[1:], functions)...)
		}
	}
	return wrong
}

var (
	beginsCommand = regexp.MustCompile(`^\s*(\$ |# |([A-Z_]+=\S* )*(\./)?(zeroth|go|bash|time|for|chrt|python3|git|wc|kill) )`)
	inline        = regexp.MustCompile("`((?:\\./)?(?:zeroth|go (?:run|test|build)) [^`]+)`")
	helpExamples  = regexp.MustCompile(`(?m)^Examples:\n((?:  .*\n)+)`)
	exampleShows  = regexp.MustCompile(`(?m)^#   (\S.*(?:\\\n#.*)*)$`)
)

// TestReadmeCommandsParse checks that every command in README.md, BENCHMARKS.md, docs and the
// examples parses, and that its flags, keys, files, packages and tests exist.
func TestReadmeCommandsParse(t *testing.T) {
	nightly.Long(t)
	functions, count := declared(t), 0
	check := func(at any, text string) {
		for _, w := range wrongCommands(t, text, functions) {
			t.Errorf("%v: %s\n\t%s", at, w, strings.TrimSpace(text))
		}
		count++
	}
	names, text := pages(t)
	for _, page := range names {
		for _, b := range blocks(page, text[page]) {
			if b.tag == "" && beginsCommand.MatchString(b.text) {
				t.Errorf("%v: a block that begins with a command has the tag sh, and is run, or console", b)
			}
			check(b, b.shell())
		}
		for _, m := range inline.FindAllStringSubmatch(text[page], -1) {
			check(page, strings.ReplaceAll(m[1], `\|`, "|")) // as escaped in a table cell
		}
	}
	examples, err := filepath.Glob("../../examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range examples {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range exampleShows.FindAllStringSubmatch(string(raw), -1) {
			check(file, strings.ReplaceAll(m[1], "\\\n#", ""))
		}
	}
	for _, m := range helpExamples.FindAllStringSubmatch(commandReference(t), -1) {
		check("a help text", m[1])
	}
	if count < 50 {
		t.Errorf("only %d texts were read", count)
	}
	for _, bad := range []string{"zeroth trian a.yaml", "./zeroth train --sett a=b", "zeroth plan --set zero.stge=1", "zeroth train examples/none.yaml", "zeroth plan --gpus",
		"go test ./nowhere", "go test ./tests -run TestNowhere", "go run ./cmd/zeroth ckpt lss a"} {
		if len(wrongCommands(t, bad, functions)) == 0 {
			t.Errorf("%s passes", bad)
		}
	}
}

// shortened replaces the pages' ./zeroth while a test runs them. It runs the program, but
// training, also in several processes, ends after one step, an evaluation of one batch and a
// sample of ten tokens, and a resumed run does one more step. The search for the largest job is over
// whole examples: it takes five times as long over narrow ones, of which more fits.
const shortened = `#!/bin/bash
case " $* " in " fit "*) exec %[1]q "${@/#examples/whole}" ;; esac
case " $1 $* " in " train "* | " launch "*" train "*) ;; *) exec %[1]q "$@" ;; esac
resumed=$(cat .resumed 2>/dev/null || echo 0)
case " $* " in *" --resume "*) echo $((++resumed)) >.resumed; steps=$resumed ;; *) steps=1 ;; esac
exec %[1]q "$@" --set train.steps=$steps --set train.eval_batches=1 --set sample.tokens=10
`

// goSource returns a small folder for GOROOT. Jobs of the examples train on its source, because
// reading all of Go's takes seconds.
func goSource(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, pkg := range []string{"net", "fmt"} {
		if err := os.CopyFS(filepath.Join(dir, "src", pkg), os.DirFS("../../config")); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var exampleWidth = regexp.MustCompile(`(?m)^(model: .*width: )(\d+)`)

// narrowExamples copies the examples to a folder, their models an eighth as wide.
func narrowExamples(t *testing.T, dir string) {
	t.Helper()
	if err := os.CopyFS(dir, os.DirFS("../../examples")); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := exampleWidth.ReplaceAllStringFunc(string(raw), func(s string) string {
			m := exampleWidth.FindStringSubmatch(s)
			width, _ := strconv.Atoi(m[2])
			return m[1] + strconv.Itoa(width/8)
		})
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// chatModel matches commands that need the chat model that examples name.
var chatModel = regexp.MustCompile(`chat\.yaml|lora\.yaml`)

// runPage runs the blocks of a page in a fresh folder that has the examples.
func runPage(t *testing.T, bin string, all []block) {
	dir := t.TempDir()
	for name, text := range map[string]string{"zeroth": fmt.Sprintf(shortened, bin), "go": "#!/bin/bash\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	narrowExamples(t, filepath.Join(dir, "examples"))
	if err := os.CopyFS(filepath.Join(dir, "whole"), os.DirFS("../../examples")); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(all, func(b block) bool { return chatModel.MatchString(b.text) }) {
		writeChatModel(t, bin, dir)
	}
	source := goSource(t)
	for _, b := range all {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", b.text)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "GOROOT="+source, "HF_HUB_CACHE="+filepath.Join(dir, "hub"), "HF_HUB_OFFLINE=1")
		begin := time.Now()
		said, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Fatalf("%v: %v\n%s\n%s", b, err, b.text, said)
		}
		t.Logf("%v: %.1f s", b, time.Since(begin).Seconds())
	}
}

// writeChatModel writes a tiny chat model to the cache of the Hub in a folder, as the one that
// examples name.
func writeChatModel(t *testing.T, bin, dir string) {
	t.Helper()
	job := `model: {family: llama, layers: 1, width: 32, heads: 2, kv_heads: 1, ffn: 64, context: 512, vocab: 424}
data: {text: [examples/*.yaml], tokenizer: bytes, validation: 0}
train: {steps: 1, micro_batch: 1}
parallel: {ranks: 1}
`
	cmd := exec.Command(bin, "train", "-", "--quiet", "--out", "made")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(job)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	cache, commit := filepath.Join(dir, "hub", "models--Qwen--Qwen3-0.6B"), strings.Repeat("0", 40)
	folder := filepath.Join(cache, "snapshots", commit)
	for _, in := range []string{"refs", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(cache, in), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(cache, "refs", "main"), []byte(commit), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "made", "model"), folder); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vocab.json", "merges.txt"} {
		if err := os.RemoveAll(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	jobtest.WriteTokenizer(t, folder, "qwen", `{"eos_token": "<|im_end|>", "chat_template": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"}`)
}

// tableCommands returns the commands in tables of README.md, except those that need the reader's
// own files or folders.
func tableCommands(text string) (all []block) {
	for i, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for _, m := range inline.FindAllStringSubmatch(line, -1) {
			if !strings.Contains(m[1], "FOLDER") && !strings.Contains(m[1], " job.yaml") {
				all = append(all, block{"../../README.md", i + 1, "sh", m[1]})
			}
		}
	}
	return all
}

// TestReadmeGoCompiles checks that the go blocks of library.md are whole files that compile in a module
// of the reader's, as that page sets it up, without a network and with the modules that building zeroth needs:
// a module file that lists less than this repository's makes Go look for the rest.
func TestReadmeGoCompiles(t *testing.T) {
	nightly.Long(t)
	_, text := pages(t)
	dir, page := t.TempDir(), "../../docs/library.md"
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, b := range blocks(page, text[page]) {
		switch {
		case b.tag == "go":
			files[fmt.Sprintf("line%d.go", b.line)] = b.text
		case strings.HasPrefix(b.text, "module "):
			files["go.mod"] = strings.Replace(b.text, "../zeroth", repo, 1)
		}
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("../../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	_, requires, _ := strings.Cut(string(mod), "\nrequire ")
	files["go.mod"] += "\nrequire " + requires // what go mod tidy adds
	files["go.sum"] = string(sums)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "vet", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=readonly", "GOPROXY=off", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil || len(files) < 4 {
		t.Errorf("%d files: %v\n%s", len(files), err, out)
	}
}

// TestReadmeBlocksRun runs every sh block of README.md and docs and the commands in tables of
// README.md. It skips go commands: the program is already built, and the tests are already
// running.
func TestReadmeBlocksRun(t *testing.T) {
	nightly.Long(t)
	nightly.Needs(t, "bash")
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	names, text := pages(t)
	for _, page := range names {
		if page == "../../BENCHMARKS.md" || strings.HasPrefix(page, "../../docs/lab/") {
			continue
		}
		all := slices.DeleteFunc(blocks(page, text[page]), func(b block) bool { return b.tag != "sh" })
		if page == "../../README.md" {
			if all = append(all, tableCommands(text[page])...); len(all) < 10 {
				t.Errorf("README.md shows only %d commands that run", len(all))
			}
		}
		if len(all) > 0 {
			t.Run(filepath.Base(page), func(t *testing.T) { runPage(t, bin, all) })
		}
	}
}
