package data

import (
	"context"
	"errors"
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zeroth/internal/parallel"
	"zeroth/tests/nightly"
)

// all returns the tokens of a set's corpus.
func all(s *Set) []int32 {
	ids := make([]int32, s.Tokens)
	s.Train.corpus.Read(ids, 0)
	return ids
}

func open(t *testing.T, s Source) *Set {
	t.Helper()
	set, err := Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	})
	return set
}

func tree(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

func TestTextIsTheSortedFiles(t *testing.T) {
	dir := tree(t, map[string]string{
		"b.txt": "second\xff\n", "a.txt": "first\n", "deep/er/c.txt": "third\n", "deep/empty.txt": "", "other.md": "never",
		"deep/d[1].txt": "fourth\n",
	})
	if err := os.Symlink(filepath.Join(dir, "deep"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	want := "first\nsecond\xff\nfourth\nthird\n"
	t.Setenv("CORPUS", dir)
	for _, c := range []Source{
		{Text: []string{dir + "/**/*.txt"}},
		{Text: []string{"**/*.txt"}, Dir: dir},
		{Text: []string{"deep/**", "a.txt", "{a,b}.txt", "./a.txt", "deep/../?.txt"}, Dir: dir},
		{Text: []string{"${CORPUS}/**/*.txt"}},
	} {
		c.Tokenizer, c.Context = "bytes", 3
		set := open(t, c)
		if got := string(set.Tokenizer.Decode(all(set))); got != want {
			t.Errorf("%q: %q, want %q", c.Text, got, want)
		}
		if set.Files != 4 || set.Vocab != 256 || set.Validation != nil || set.Train.Windows() != 8 {
			t.Errorf("%q: %d files, vocabulary %d, %d windows", c.Text, set.Files, set.Vocab, set.Train.Windows())
		}
	}
}

func TestFoldersMayHavePatternCharacters(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b]{c,d}*")
	write(t, filepath.Join(dir, "x.txt"), "some text")
	t.Setenv("CORPUS", dir)
	for _, s := range []Source{{Text: []string{"${CORPUS}/*.txt"}}, {Text: []string{"*.txt"}, Dir: dir}} {
		s.Tokenizer, s.Context = "bytes", 2
		if set := open(t, s); set.Tokens != 9 {
			t.Errorf("%d tokens", set.Tokens)
		}
	}
	// A file's own name is used if, as a pattern, it matches nothing or is invalid.
	for _, name := range []string{"y[1].txt", "z{a,b}.txt", "bad[.txt"} {
		write(t, filepath.Join(dir, name), "other text")
		if set := open(t, Source{Text: []string{name}, Dir: dir, Tokenizer: "bytes", Context: 2}); set.Tokens != 10 {
			t.Errorf("%s: %d tokens", name, set.Tokens)
		}
	}
	write(t, filepath.Join(dir, "y1.txt"), "text")
	if set := open(t, Source{Text: []string{"y[1].txt"}, Dir: dir, Tokenizer: "bytes", Context: 2}); set.Tokens != 4 {
		t.Errorf("a pattern that matches a file: %d tokens", set.Tokens)
	}
}

func TestBPESeparatesFiles(t *testing.T) {
	dir := tree(t, map[string]string{"a": "Hello world", "b": "hello world", "c": ""})
	set := open(t, Source{Text: []string{"*"}, Dir: dir, Tokenizer: "gpt2", Context: 2})
	if want := []int32{15496, 995, 50256, 31373, 995, 50256}; !slices.Equal(all(set), want) {
		t.Errorf("%v, want %v", all(set), want)
	}
	vocab, merges := small("b c\na bc\n")
	writeFolder(t, filepath.Join(dir, "voc"), vocab, merges)
	set = open(t, Source{Text: []string{"[ab]"}, Dir: dir, Tokenizer: "voc", Context: 2})
	if got := string(set.Tokenizer.Decode(all(set))); got != "Hello worldhello world" || set.Tokens != 22 {
		t.Errorf("without a separator: %q", got)
	}
}

// TestLargeFilesKeepTheirOrder encodes files of several chunks on all cores.
func TestLargeFilesKeepTheirOrder(t *testing.T) {
	nightly.Long(t)
	var a, b strings.Builder
	for i := 0; a.Len() < 2*chunkBytes+chunkBytes/2; i++ {
		fmt.Fprintf(&a, "line %d of a\n", i)
	}
	for i := 0; b.Len() < chunkBytes+10; i++ {
		fmt.Fprintf(&b, "%x ", i)
	}
	dir := tree(t, map[string]string{"a": a.String(), "b": b.String(), "c": "end"})
	var last, total int64
	set := open(t, Source{Text: []string{"*"}, Dir: dir, Tokenizer: "gpt2", Context: 8, Progress: func(d, of int64) {
		if d <= last || d > of {
			t.Errorf("progress %d after %d, of %d", d, last, of)
		}
		last, total = d, of
	}})
	if want := a.String() + EndOfText + b.String() + EndOfText + "end" + EndOfText; string(set.Tokenizer.Decode(all(set))) != want {
		t.Error("the text differs after decoding")
	}
	if want := int64(a.Len() + b.Len() + 3); last != want || total != want {
		t.Errorf("progress ended at %d of %d, want %d", last, total, want)
	}
}

// problems returns the keys of all problems in an error.
func problems(err error) (keys []string) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			keys = append(keys, problems(e)...)
		}
		return keys
	}
	var p *Problem
	if errors.As(err, &p) {
		keys = append(keys, p.Key)
	}
	return keys
}

func TestProblems(t *testing.T) {
	dir := tree(t, map[string]string{"a.txt": strings.Repeat("text", 100), "empty.txt": "", "sub/empty2.txt": "", "f.bin": strings.Repeat("\xab\x12", 500)})
	nan := 0.0
	nan /= nan
	for _, c := range []struct {
		s    Source
		keys []string
		want []string
	}{
		{Source{Context: 4}, []string{"text", "tokenizer"}[:1], []string{"no data"}},
		{Source{Context: 4, Tokenizer: "bytes", Text: []string{"a.txt"}, Tokens: []string{"f.bin"}}, []string{"tokens"}, []string{"both"}},
		{Source{Context: 4, Tokenizer: "bytes", Text: []string{"no/**/*.txt", "a.txt", "", "${NO_SUCH_NAME}/x", "empty.txt", "**/empty*", "[", "sub"}},
			[]string{"text[0]", "text[2]", "text[3]", "text[4]", "text[5]", "text[6]", "text[7]"},
			[]string{"no file matches", "an empty pattern", "NO_SUCH_NAME is not set", "empty.txt is empty", "each of the 2 files", "syntax error in pattern", "sub is a folder; its files are"}},
		{Source{Context: 0, Tokenizer: "nope", Validation: 0.6, Text: []string{"a.txt", "b.txt"}}, []string{"context", "validation", "tokenizer", "text[1]"}, []string{"0.6 is not", `"nope" is neither`}},
		{Source{Context: 4, Tokenizer: "bytes", Validation: nan, Text: []string{"a.txt"}}, []string{"validation"}, []string{"NaN"}},
		{Source{Context: 4, Text: []string{"a.txt"}}, []string{"tokenizer"}, []string{"use bytes, gpt2"}},
		{Source{Context: 4, Tokenizer: "gpt2", Vocab: 256, Text: []string{"a.txt"}}, []string{"tokenizer"}, []string{"50257 tokens, but the model's vocabulary is 256"}},
		{Source{Context: 400, Tokenizer: "bytes", Text: []string{"a.txt"}}, []string{"text"}, []string{"400 tokens give 0 training windows of 401"}},
		{Source{Context: 399, Batch: 2, Tokenizer: "bytes", Text: []string{"a.txt"}}, []string{"text"}, []string{"fewer than the 2", "about 801"}},
		{Source{Context: 50, Batch: 8, Tokenizer: "bytes", Validation: 0.01, Text: []string{"a.txt"}}, []string{"text", "validation"}, []string{"7 training windows", "0.01 of 400 tokens is not enough for a window of 51", "about 5200 tokens"}},
		{Source{Context: 100, Batch: 11, Tokens: []string{"f.bin"}}, []string{"tokens"}, []string{"500 tokens give 4"}},
		{Source{Context: 100, Tokenizer: "bytes", Tokens: []string{"f.bin"}}, []string{"tokens"}, []string{"token 0, at byte 0, has id 4779"}},
	} {
		c.s.Dir = dir
		_, err := Open(t.Context(), c.s)
		read := strings.Contains(fmt.Sprint(err), " windows of") || strings.Contains(fmt.Sprint(err), "has id") // only reading shows it
		if _, check := c.s.Check(); (check == nil) != read || !read && check.Error() != err.Error() {
			t.Errorf("%+v: Check says %v, Open %v", c.s, check, err)
		}
		if diff := cmp.Diff(c.keys, problems(err)); diff != "" {
			t.Errorf("%+v: problems (-want +got)\n%s%v", c.s, diff, err)
		}
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %q", c.s, err, want)
			}
		}
	}
}

// TestTextMustFitMemory checks that memory is allocated only for text that fits.
func TestTextMustFitMemory(t *testing.T) {
	dir := tree(t, map[string]string{"a.txt": strings.Repeat("text", 100), "b.bin": strings.Repeat("\xab\x12", 500)})
	for _, tok := range []string{"bytes", "gpt2"} {
		s := Source{Text: []string{"a.txt"}, Dir: dir, Tokenizer: tok, Context: 4, Memory: 399}
		if _, err := Open(t.Context(), s); !slices.Equal(problems(err), []string{"text"}) || !strings.Contains(err.Error(), "the text needs 400 bytes of memory, but only 399 are free") {
			t.Errorf("%s: %v", tok, err)
		}
		s.Memory = 400
		open(t, s)
	}
	open(t, Source{Tokens: []string{"b.bin"}, Dir: dir, Context: 4, Memory: 1}) // mapped
}

// TestProblemsKeepTheirCause checks that errors.Is works through a Problem.
func TestProblemsKeepTheirCause(t *testing.T) {
	_, err := Open(t.Context(), Source{Text: []string{"*"}, Dir: tree(t, map[string]string{"a": "text"}), Tokenizer: "no/such/folder", Context: 1})
	if !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestSearchReadsFoldersOnce checks that consecutive ** count as one: a search reads each folder
// once.
func TestSearchReadsFoldersOnce(t *testing.T) {
	dir := tree(t, map[string]string{strings.Repeat("a/", 40) + "x.txt": "text"})
	for _, stars := range []int{1, 2, 6, 50} {
		for _, end := range []string{"*.txt", "*.none", "**"} {
			budget := 1000
			paths, err := walk(t.Context(), dir+"/"+strings.Repeat("**/", stars)+end, &budget)
			if want := end != "*.none"; err != nil || (len(paths) == 1) != want || 1000-budget > 5*41 {
				t.Errorf("%d of **, then %s: %d files, %v, %d names read", stars, end, len(paths), err, 1000-budget)
			}
		}
	}
}

// Reading the same folder repeatedly costs more than its names, otherwise a search could take
// minutes before it is refused.
func TestReadingAgainCostsMore(t *testing.T) {
	dir := tree(t, map[string]string{strings.Repeat("a/", 40) + "x.txt": "text"})
	reads, budget := 0, 100_000
	s := &bounded{FS: os.DirFS(dir), ctx: t.Context(), budget: &budget, read: map[string]int{}}
	for ; reads < 100_000; reads++ {
		if _, err := s.ReadDir("a"); err != nil {
			break
		}
	}
	if want := fewTimes + 100_000/(rereading+1); reads > want {
		t.Errorf("one folder was read %d times, want %d", reads, want)
	}
}

// A search that would take too long is refused, with the alternative.
func TestSearchIsBounded(t *testing.T) {
	dir := tree(t, map[string]string{strings.Repeat("a/", 40) + "x.txt": "text"})
	defer func(n int) { mostEntries = n }(mostEntries)
	mostEntries = 5000
	for _, pattern := range []string{"**/a/**/a/**/a/**/a/**/*.none", "**/*/**/*/**/*/**/*/**/*.none", strings.Repeat("{**,**}/", 20) + "*.none"} {
		_, err := Source{Text: []string{pattern, "**/*.txt"}, Dir: dir, Tokenizer: "bytes", Context: 2}.Check()
		if err == nil || !strings.Contains(err.Error(), "data.text[0]: ") || !strings.Contains(err.Error(), "5000 names") {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

// TestOpenIsStopped cancels at every progress report of reading, encoding and checking: Open
// returns the reason, and no set.
func TestOpenIsStopped(t *testing.T) {
	big := strings.Repeat("word ", 1<<20) // several blocks
	dir := tree(t, map[string]string{"a.txt": big, "b.txt": big, "c.txt": big, "d.bin": strings.Repeat("\xab\x12", len(big)/2)})
	reason := errors.New("enough")
	for _, s := range []Source{{Text: []string{"*.txt"}, Tokenizer: "bytes"}, {Text: []string{"*.txt"}, Tokenizer: "gpt2"}, {Tokens: []string{"*.bin"}}} {
		ctx, stop := context.WithCancelCause(t.Context())
		calls := 0
		s.Dir, s.Context, s.Progress = dir, 4, func(done, total int64) {
			calls++
			stop(reason)
		}
		if set, err := Open(ctx, s); set != nil || err != reason {
			t.Errorf("%v%v %s: %v", s.Text, s.Tokens, s.Tokenizer, err)
		}
		if most := runtime.GOMAXPROCS(0) + 2; calls < 1 || calls > most {
			t.Errorf("%v%v %s: %d progress reports after stopping at the first, want at most %d", s.Text, s.Tokens, s.Tokenizer, calls, most)
		}
	}
}

// A search ends when its context does.
func TestSearchIsStopped(t *testing.T) {
	dir := tree(t, map[string]string{"a/b.txt": "some text"})
	reason := errors.New("enough")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(reason)
	if _, err := Open(ctx, Source{Text: []string{"**/*.txt"}, Dir: dir, Tokenizer: "bytes", Context: 2}); err != reason {
		t.Errorf("Open: %v", err)
	}
	if _, err := (Encoding{Text: []string{dir + "/**"}, Tokenizer: "bytes", Out: dir + "/out"}).Encode(ctx); err != reason {
		t.Errorf("Encode: %v", err)
	}
	budget := 10
	if _, err := walk(ctx, dir+"/**", &budget); !errors.Is(err, reason) || budget < 9 {
		t.Errorf("walk: %v, with %d names left", err, budget)
	}
}

// The result of Check serves one Open of the same files, which then does not search; other
// calls do.
func TestOpenUsesResultOfCheck(t *testing.T) {
	dir := tree(t, map[string]string{"a.txt": "some text", "b.md": "other text"})
	s := Source{Text: []string{"*.txt"}, Dir: dir, Tokenizer: "bytes", Context: 2}
	found, err := s.Check()
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/later.txt", "more of it")
	other := s
	other.Text, other.Found = []string{"*"}, found
	s.Found = found
	for i, want := range []struct {
		Source
		files int
	}{{other, 3}, {s, 1}, {s, 2}} {
		if set := open(t, want.Source); set.Files != want.files {
			t.Errorf("%d: %d files, want %d", i, set.Files, want.files)
		}
	}
}

// TestTokensNeeded follows the advice of the errors above, adding a tenth because they say
// "about".
func TestTokensNeeded(t *testing.T) {
	for _, f := range []float64{0, 0.01, 0.03, 0.1, 0.25, 0.5} {
		for _, T := range []int64{1, 10, 256} {
			l := layOut(tokensNeeded(8, int(T), 1-f)*11/10, T, f)
			if l.train.windows < 8 {
				t.Errorf("f=%v T=%d: %d training windows", f, T, l.train.windows)
			}
			if f > 0 && layOut(tokensNeeded(1, int(T), f)*11/10, T, f).held.windows < 1 {
				t.Errorf("f=%v T=%d: no validation window", f, T)
			}
		}
	}
}

func TestChangedAndRemovedFiles(t *testing.T) {
	dir := tree(t, map[string]string{"a": "12345", "b": "123"})
	for _, size := range []int64{4, 6} {
		bad := []file{{path: filepath.Join(dir, "a"), size: size}, {path: filepath.Join(dir, "b"), size: 3}, {path: filepath.Join(dir, "gone"), size: 9}}
		_, bytesErr := readFiles(t.Context(), bad, func(int64, int64) {})
		_, bpeErr := encodeFiles(t.Context(), gpt2(), bad, func(int64, int64) {}, func(segment) error { return nil })
		_, release, mapErr := mapTokens(bad, idFormat{})
		for _, f := range release {
			if err := f(); err != nil {
				t.Error(err)
			}
		}
		for _, err := range []error{bytesErr, bpeErr, mapErr} {
			if err == nil || !strings.Contains(err.Error(), "a: "+fmt.Sprint(size)+" bytes when it was found") || !errors.Is(err, os.ErrNotExist) {
				t.Errorf("size %d: %v", size, err)
			}
		}
	}
	var many []error
	for i := range 20 {
		many = append(many, fmt.Errorf("problem %d", i))
	}
	if got := joinSome(many).Error(); !strings.Contains(got, "problem 7\nand 12 more files") {
		t.Errorf("%s", got)
	}
}

func TestGoroot(t *testing.T) {
	want := root(t)
	t.Setenv("GOROOT", "")
	set := open(t, Source{Text: []string{"${GOROOT}/src/fmt/*.go"}, Tokenizer: "bytes", Context: 64})
	if set.Tokens < 100000 || set.Files < 5 {
		t.Errorf("%d tokens in %d files", set.Tokens, set.Files)
	}
	t.Setenv("GOROOT", filepath.Join(want, "src"))
	if got, err := expand("${GOROOT}/x"); err != nil || got != filepath.Join(want, "src")+"/x" {
		t.Errorf("the environment's GOROOT: %q, %v", got, err)
	}
}

// TestGorootWithoutGo simulates a machine without the go command.
func TestGorootWithoutGo(t *testing.T) {
	root(t)
	t.Setenv("GOROOT", "")
	t.Setenv("PATH", "")
	was := build.Default.GOROOT
	t.Cleanup(func() { build.Default.GOROOT = was })
	build.Default.GOROOT = tree(t, map[string]string{"src/x.go": "package x"})
	if set := open(t, Source{Text: []string{"${GOROOT}/src/*.go"}, Tokenizer: "bytes", Context: 2}); set.Tokens != 9 {
		t.Errorf("%d tokens", set.Tokens)
	}
	for _, gone := range []string{"", t.TempDir()} {
		build.Default.GOROOT = gone
		_, err := Open(t.Context(), Source{Text: []string{"${GOROOT}/src/*.go"}, Tokenizer: "bytes", Context: 2})
		if err == nil || !strings.Contains(err.Error(), "data.text[0]: ${GOROOT}/src/*.go: GOROOT is unknown") || strings.Contains(err.Error(), "matches") {
			t.Errorf("root %q: %v", gone, err)
		}
	}
}

// TestCloseUnmaps asks the system which files are mapped.
func TestCloseUnmaps(t *testing.T) {
	const maps = "/proc/self/maps"
	if _, err := os.Stat(maps); err != nil {
		t.Skip(err)
	}
	dir := tree(t, map[string]string{"mapped.bin": "\x01\x00\x02\x00", "short.bin": "\x01"})
	mapped := func() bool {
		text, err := os.ReadFile(maps)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), dir)
	}
	set, err := Open(t.Context(), Source{Tokens: []string{"mapped.bin"}, Dir: dir, Context: 1})
	if err != nil || !mapped() {
		t.Fatalf("mapped: %v, error %v", mapped(), err)
	}
	if err := set.Close(); err != nil || mapped() {
		t.Errorf("still mapped: %v, error %v", mapped(), err)
	}
	if _, err := Open(t.Context(), Source{Tokens: []string{"*.bin"}, Dir: dir, Context: 1}); err == nil || mapped() {
		t.Errorf("after a failed Open mapped: %v, error %v", mapped(), err)
	}
}

func TestFingerprint(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", blockBytes/16+1)
	print := func(files map[string]string, tok string) string {
		return open(t, Source{Text: []string{"*"}, Dir: tree(t, files), Tokenizer: tok, Context: 1}).Fingerprint
	}
	base := print(map[string]string{"a": "one", "b": big}, "bytes")
	if again := print(map[string]string{"a": "one", "b": big}, "bytes"); again != base {
		t.Error("another folder changes the fingerprint")
	}
	if base != "c9d363ed0e60f39721c1f7947a3bae5acab6ffda0db1ec1417f5337a2c065b29" {
		t.Errorf("the fingerprint differs from earlier versions: %s", base)
	}
	for name, other := range map[string]string{
		"content":   print(map[string]string{"a": "onf", "b": big}, "bytes"),
		"end":       print(map[string]string{"a": "one", "b": big[:len(big)-1] + "g"}, "bytes"),
		"order":     print(map[string]string{"b": "one", "a": big}, "bytes"),
		"length":    print(map[string]string{"a": "one", "b": big + "0"}, "bytes"),
		"tokenizer": print(map[string]string{"a": "one", "b": big}, "gpt2"),
	} {
		if other == base {
			t.Errorf("%s does not change the fingerprint", name)
		}
	}
}

// TestSameSamplesEverywhere reads a set on several goroutines, as the ranks of one process do,
// and compares with opening the same files again.
func TestSameSamplesEverywhere(t *testing.T) {
	s := Source{Text: []string{filepath.Join(root(t), "src/strings/*.go")}, Tokenizer: "gpt2", Context: 32, Validation: 0.1, Seed: 7, Batch: 16}
	a, b := open(t, s), open(t, s)
	err := parallel.For(t.Context(), 64, 64, func(_ context.Context, i int) error {
		var x, y [2][2 * 32]int32
		sample := int64(i) * 1009
		a.Train.Batch(Tokens(x[0][:], x[1][:], nil), sample)
		b.Train.Batch(Tokens(y[0][:], y[1][:], nil), sample)
		if x != y {
			return fmt.Errorf("sample %d differs", sample)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if a.Fingerprint != b.Fingerprint {
		t.Error("fingerprints differ")
	}
	s.Seed = 8
	if c := open(t, s); c.Train.Window(0) == a.Train.Window(0) && c.Train.Window(1) == a.Train.Window(1) {
		t.Error("the seed does not change the order")
	} else if c.Validation.start(5) != a.Validation.start(5) {
		t.Error("the seed changes the validation set")
	}
}

// TestGoSource opens the quickstart's data.
func TestGoSource(t *testing.T) {
	if !nightly.All() {
		t.Skip("reads 90 MB")
	}
	root(t)
	start := time.Now()
	set := open(t, Source{Text: []string{"${GOROOT}/src/**/*.go"}, Tokenizer: "bytes", Context: 256, Validation: 0.01})
	train, held := set.Train.Windows(), set.Validation.Windows()
	t.Logf("%d files, %d bytes in %v; %d training windows, %d for validation", set.Files, set.Tokens, time.Since(start), train, held)
	if f := float64(held) / float64(train+held); f < 0.0097 || f > 0.0103 || set.Files < 1000 {
		t.Errorf("%.4f of the windows validate", f)
	}
}

// BenchmarkOpen opens all of the Go library: go test -bench Open -benchtime 1x
func BenchmarkOpen(b *testing.B) {
	for _, tok := range []string{"bytes", "gpt2"} {
		b.Run(tok, func(b *testing.B) {
			for b.Loop() {
				total := int64(0)
				set, err := Open(b.Context(), Source{Text: []string{"${GOROOT}/src/**/*.go"}, Tokenizer: tok, Context: 256, Progress: func(_, of int64) { total = of }})
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(total)
				b.ReportMetric(float64(set.Tokens), "tokens")
				if err := set.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
