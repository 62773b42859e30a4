//go:build unix

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/safetensors/safetensorstest"
	"zeroth/checkpoint/vfs"
	"zeroth/job/report"
	"zeroth/job/state"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// trained creates run folder r with checkpoints of steps 2, 4 and 6, written by three ranks.
func trained(t *testing.T, sets ...string) {
	t.Helper()
	inFolder(t)
	args := []string{"train", "tiny.yaml", "--out", "r"}
	for _, s := range append([]string{"train.steps=6", "checkpoint.every=2", "parallel.ranks=3", "train.eval_every=2", "data.validation=0.1", "train.eval_batches=1"}, sets...) {
		args = append(args, "--set", s)
	}
	zeroth(t, 0, args...)
}

const (
	second = "r/ckpt/step-00000002"
	last   = "r/ckpt/step-00000006"
)

// flip inverts one bit of a file.
func flip(t *testing.T, file string, at int64) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= 4
	if err := os.WriteFile(file, b, 0o666); err != nil {
		t.Fatal(err)
	}
}

// matches checks that each pattern occurs in out. A space in a pattern matches any number of
// spaces.
func matches(t *testing.T, out string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(strings.ReplaceAll(p, " ", " +")).MatchString(out) {
			t.Errorf("no match of %q in\n%s", p, out)
		}
	}
}

// decoded parses the JSON output of a command.
func decoded[T any](t *testing.T, out string) (v T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	return v
}

func TestCkptLs(t *testing.T) {
	trained(t)
	if err := os.Mkdir("r/ckpt/.tmp-step-00000007-0123456789abcdef", 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove("r/ckpt/step-00000004/state.json"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"r", "r/ckpt"} {
		out, _ := zeroth(t, 0, "ckpt", "ls", dir)
		matches(t, out, `step size age ranks metrics status folder`,
			`2 \d+.\d kB \d+.\ds 3 loss \d.\d{4}, val_loss \d.\d{4} complete step-00000002\n`,
			`4 .* damaged: state.json: is missing step-00000004\n`,
			`6 .* complete, latest, best step-00000006\n`,
			`7 - - - partial: a save in progress or interrupted: it was never committed .tmp-step-00000007-0123456789abcdef\n$`)
	}
	out, _ := zeroth(t, 0, "ckpt", "ls", "r", "--json")
	var list []struct {
		Path, Status, Why string
		Step, Bytes       int64
		Metrics           map[string]float64
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 4 || strings.Contains(out, "0001-01-01") {
		t.Fatalf("%v\n%s", err, out)
	}
	if e := list[2]; e.Path != last || e.Status != "complete" || e.Step != 6 || e.Bytes < 5000 || e.Metrics["val_loss"] == 0 {
		t.Errorf("%+v", e)
	}
	if out, _ := zeroth(t, 0, "ckpt", "ls", second); strings.Count(out, "\n") != 2 {
		t.Errorf("of one checkpoint:\n%s", out)
	}
	if err := os.MkdirAll("new/ckpt", 0o777); err != nil {
		t.Fatal(err)
	}
	if out, _ := zeroth(t, 0, "ckpt", "ls", "new"); out != "no checkpoints yet\n" {
		t.Errorf("of a run without any: %s", out)
	}
	if out, _ := zeroth(t, 0, "ckpt", "ls", "new", "--json"); out != "[]\n" {
		t.Errorf("of a run without any: %s", out)
	}
}

// TestCkptOfAnotherFolder checks that commands given a run folder find its checkpoints in
// checkpoint.dir.
func TestCkptOfAnotherFolder(t *testing.T) {
	trained(t, "checkpoint.dir=far/away")
	if out, _ := zeroth(t, 0, "ckpt", "verify", "r"); !strings.HasPrefix(out, "far/away/step-00000006: verified, no damage (") {
		t.Errorf("got %s", out)
	}
}

func TestCkptInspect(t *testing.T) {
	trained(t)
	out, errs := zeroth(t, 0, "ckpt", "inspect", "r")
	matches(t, out, `folder r/ckpt/step-00000006\n`, `step 6, saved 20`, `size .* kB in 48 tensors and 3 files, written by 3 ranks\n`,
		`trained 6 steps, 144 tokens, 0 skipped\n`, `data fingerprint [0-9a-f]{12}, seed 1, 18 samples read\n`, `written by zeroth .*go1`,
		`tensor kind type shape elements by rank\n`, `transformer.wte.weight exp_avg_sq F32 \[256 8\] 0: \[0, \d+\) 1: \[\d+, \d+\) 2: \[\d+, 2048\)\n`)
	if errs != "" {
		t.Errorf("stderr: %s", errs)
	}
	out, _ = zeroth(t, 0, "ckpt", "inspect", second, "--json")
	v := decoded[inspection](t, out)
	var state struct{ Step, Tokens int }
	if err := json.Unmarshal(v.State, &state); err != nil || state.Step != 2 || state.Tokens != 48 {
		t.Errorf("state: %v %+v", err, state)
	}
	if v.Step != 2 || v.Seq != 1 || v.Writers != 3 || len(v.Tensors) != 51 || v.Metrics["loss"] == 0 {
		t.Errorf("%+v", v)
	}
	for _, x := range v.Tensors {
		at := 0
		for _, p := range x.Pieces {
			if p.Lo != at || p.File != fmt.Sprintf("data-%05d-000.safetensors", p.Writer) || p.Bytes != int64(x.DType.Size()*(p.Hi-p.Lo)) || p.Codec != "raw" || p.Offset < 65536 {
				t.Errorf("%s: piece %+v after element %d", x.Name, p, at)
			}
			at = p.Hi
		}
		if at != x.Numel() {
			t.Errorf("%s: pieces of %d elements", x.Name, at)
		}
	}
}

func TestByRank(t *testing.T) {
	ps := make([]checkpoint.Piece, 7)
	for i := range ps {
		ps[i].Writer, ps[i].Range.Lo, ps[i].Range.Hi = i/2*i/2, 10*i, 10*i+10 // 0 0 1 1 4 5 9
	}
	if got, want := byRank(ps), "0: [0, 20)  1: [20, 40)  4: [40, 50)  5: [50, 60)  and 1 more"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := byRank(ps[:3]), "0: [0, 20)  1: [20, 30)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestCkptVerify checks that a flipped bit is reported by file, tensor and elements, with exit
// code 1.
func TestCkptVerify(t *testing.T) {
	trained(t)
	out, errs := zeroth(t, 0, "ckpt", "verify", "r")
	matches(t, out, `^r/ckpt/step-00000006: verified, no damage \(\d+.\d kB in \d+m?s, \d.\d\d GB/s\)\n$`)
	if errs != "" {
		t.Errorf("stderr of short work: %s", errs)
	}
	ck, err := checkpoint.Open(last)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	p := ck.Pieces("transformer.wte.weight", "exp_avg")[1]
	flip(t, filepath.Join(last, p.File), p.Offset+5)
	flip(t, filepath.Join(last, "data-00000-000.safetensors"), 20)
	out, _ = zeroth(t, 1, "ckpt", "verify", "r")
	where := fmt.Sprintf(`%s: offset %d: transformer.wte.weight \(exp_avg\), elements \[%d, %d\): CRC32C of \d+ bytes is `, p.File, p.Offset, p.Range.Lo, p.Range.Hi)
	matches(t, out, `^data-00000-000.safetensors: header: CRC32C of 65536 bytes is `, "\n"+where, `r/ckpt/step-00000006: damaged in 2 places`)
	out, _ = zeroth(t, 1, "ckpt", "verify", last, "--json")
	v := decoded[verification](t, out)
	if d := v.Damage; v.Whole || len(d) != 2 || d[1].File != p.File || d[1].Offset != p.Offset || d[1].Name != "transformer.wte.weight" || d[1].Kind != "exp_avg" || d[1].Lo != p.Range.Lo || d[1].Hi != p.Range.Hi {
		t.Errorf("%+v", v)
	}
	out, _ = zeroth(t, 0, "ckpt", "verify", second, "--json")
	if v := decoded[verification](t, out); !v.Whole || v.Path != second || v.Damage == nil {
		t.Errorf("%+v", v)
	}
	flip(t, second+"/MANIFEST.json", 100)
	out, _ = zeroth(t, 1, "ckpt", "verify", second)
	matches(t, out, `^MANIFEST.json: SHA-256 is `, `: damaged in 1 place `)
	// A damaged checkpoint is not converted, and the attempt leaves no files.
	_, errs = zeroth(t, 1, "ckpt", "export", second, "--to", "new/m")
	matches(t, errs, `^zeroth: checkpoint r/ckpt/step-00000002: MANIFEST.json: SHA-256`)
	flip(t, filepath.Join(last, "data-00000-000.safetensors"), ck.Pieces("transformer.wte.weight", "master")[0].Offset)
	for _, c := range []string{"export " + last + " --to new/m"} {
		_, errs = zeroth(t, 1, append([]string{"ckpt"}, strings.Fields(c)...)...)
		matches(t, errs, `transformer.wte.weight \((master|exp_avg)\), elements .* CRC32C`)
		if _, err := os.Stat("new"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s left something: %v", c, err)
		}
	}
}

func TestCkptDiff(t *testing.T) {
	nightly.Long(t)
	trained(t)
	out, _ := zeroth(t, 0, "ckpt", "diff", last, "r")
	matches(t, out, `^A: r/ckpt/step-00000006, step 6\nB: r/ckpt/step-00000006, step 6\n51 tensors: 51 equal, 0 differ \(`)
	if out, _ := zeroth(t, 0, "ckpt", "diff", last, "r", "--all"); strings.Count(out, " equal\n") != 51 {
		t.Errorf("--all:\n%s", out)
	}
	out, _ = zeroth(t, 1, "ckpt", "diff", second, last)
	matches(t, out, `tensor kind elements max \|a-b\| max relative\n`, `transformer.wte.weight master differs \d+ \d\S+ \d\S*\n`, `51 tensors: \d+ equal, \d\d differ`)
	out, _ = zeroth(t, 1, "ckpt", "diff", second, last, "--json")
	if ds := decoded[[]checkpoint.Difference](t, out); len(ds) != 51 || ds[49].Name != "transformer.wte.weight" || ds[49].MaxAbs == 0 || ds[49].MaxRel == 0 {
		t.Errorf("%s", out)
	}
	// An imported checkpoint has no optimizer state; a wider one differs in every shape.
	zeroth(t, 0, "ckpt", "import", "r/model", "--to", "imported")
	out, _ = zeroth(t, 1, "ckpt", "diff", last, "imported")
	matches(t, out, `transformer.wte.weight exp_avg only in A\n`, `51 tensors: 19 equal, 32 differ`)
	zeroth(t, 0, "train", "tiny.yaml", "--out", "wide", "--set", "model.width=16", "--set", "checkpoint.save_on_exit=true")
	out, _ = zeroth(t, 1, "ckpt", "diff", "imported", "wide")
	matches(t, out, `transformer.wte.weight exp_avg only in B\n`, `transformer.wte.weight master F32\[256 8\] in A, F32\[256 16\] in B\n`)
}

// same checks that two files have equal bytes.
func same(t *testing.T, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(x, y) {
		t.Errorf("%s and %s differ", a, b)
	}
}

// TestCkptExportImport checks that export is bit-identical to what training wrote, and still is
// after an import.
func TestCkptExportImport(t *testing.T) {
	nightly.Long(t)
	trained(t)
	out, _ := zeroth(t, 0, "ckpt", "export", "r", "--to", "new/m")
	matches(t, out, `^exported r/ckpt/step-00000006 to new/m \(`)
	zeroth(t, 0, "ckpt", "import", "new/m", "--to", "start")
	zeroth(t, 0, "ckpt", "export", "start", "--to", "again")
	for _, folder := range []string{"new/m", "again"} {
		same(t, "r/model/model.safetensors", folder+"/model.safetensors")
		same(t, "r/model/config.json", folder+"/config.json")
		if files, err := os.ReadDir(folder); err != nil || len(files) != 5 {
			t.Errorf("%s: %v %v", folder, files, err)
		}
	}
	out, _ = zeroth(t, 0, "ckpt", "inspect", "start")
	matches(t, out, `trained none: an imported model\n`)
	if out, _ := zeroth(t, 0, "sample", "--run", "new/m", "--prompt", "to be", "--tokens", "5"); !strings.HasPrefix(out, "to be") {
		t.Errorf("sample: %q", out)
	}
	// In bf16 parts each element is rounded, and config.json gives the type.
	zeroth(t, 0, "ckpt", "export", second, "--to", "small", "--dtype", "bf16", "--shard-size", "3kB")
	whole, err := safetensors.Open("small")
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	ck, err := checkpoint.Open(second)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	for _, x := range whole.Tensors() {
		n := x.Numel()
		raw, f, want, got := make([]byte, 4*n), make([]float32, n), make([]byte, 2*n), make([]byte, 2*n)
		if err := errors.Join(ck.Read(x.Name, checkpoint.Master, shard.Range{Hi: n}, raw), whole.ReadRaw(x.Name, 0, n, got)); err != nil {
			t.Fatal(err)
		}
		safetensors.Decode(f, raw, safetensors.F32)
		safetensors.Encode(want, f, safetensors.BF16)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not the rounded master", x.Name)
		}
	}
	config, err := os.ReadFile("small/config.json")
	if err != nil || !strings.Contains(string(config), `"torch_dtype": "bfloat16"`) || !strings.Contains(string(config), `"n_embd": 8`) {
		t.Errorf("config.json: %v\n%s", err, config)
	}
	parts, err := filepath.Glob("small/model-0*-of-0*.safetensors")
	if err != nil || len(parts) != 2 || len(whole.Tensors()) != 16 {
		t.Errorf("%d tensors in %v, %v", len(whole.Tensors()), parts, err)
	}
	zeroth(t, 0, "ckpt", "import", "small", "--to", "of-parts")
}

// TestTrainFromImport checks that training from an imported checkpoint begins with fresh
// optimizer state, as with model.from.
func TestTrainFromImport(t *testing.T) {
	trained(t)
	config, err := os.ReadFile("r/model/config.json")
	if err != nil {
		t.Fatal(err)
	}
	config = bytes.Replace(config, []byte(`"bos_token_id": null`), []byte(`"bos_token_id": 3`), 1)
	config = bytes.Replace(config, []byte(`"eos_token_id": null`), []byte(`"eos_token_id": [5, 6]`), 1)
	if err := os.WriteFile("r/model/config.json", config, 0o666); err != nil {
		t.Fatal(err)
	}
	zeroth(t, 0, "ckpt", "import", "r/model", "--to", "start")
	common := []string{"--set", "train.steps=3", "--set", "data.validation=0"}
	zeroth(t, 0, append([]string{"train", "tiny.yaml", "--out", "a", "--resume", "start/step-00000000"}, common...)...)
	args := append([]string{"train", "tiny.yaml", "--out", "b", "--set", "model=null", "--set", "model.from=r/model"}, common...)
	zeroth(t, 0, args...)
	same(t, "a/model/model.safetensors", "b/model/model.safetensors")
	for _, run := range []string{"a", "b"} { // config.json still has the special tokens
		raw, err := os.ReadFile(run + "/model/config.json")
		if err != nil || !bytes.Contains(raw, []byte(`"bos_token_id": 3`)) || !regexp.MustCompile(`"eos_token_id": \[\s*5,\s*6\s*\]`).Match(raw) {
			t.Errorf("%s: %s %v", run, raw, err)
		}
	}
}

// TestCkptJSON checks the JSON of the conversions and of prune, and that standard output contains
// nothing else.
func TestCkptJSON(t *testing.T) {
	trained(t)
	size := func(pattern string) (n int64) {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			info, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			n += info.Size()
		}
		return n
	}
	out, _ := zeroth(t, 0, "ckpt", "export", second, "--to", "m", "--dtype", "bf16", "--json")
	e := decoded[exported](t, out)
	if e.Checkpoint != second || e.Step != 2 || e.Folder != "m" || e.DType != "BF16" || e.Bytes != size("m/*") || e.Seconds <= 0 ||
		strings.Join(e.Files, " ") != "config.json merges.txt model.safetensors tokenizer_config.json vocab.json" {
		t.Errorf("export: %+v", e)
	}
	out, _ = zeroth(t, 0, "ckpt", "import", "m", "--to", "start", "--json")
	i := decoded[imported](t, out)
	if i.Folder != "m" || i.Checkpoint != "start/step-00000000" || i.Step != 0 || i.LeftOut == nil || len(i.LeftOut) > 0 ||
		i.Bytes != size("start/step-00000000/*") || i.Seconds <= 0 {
		t.Errorf("import: %+v", i)
	}
	list, err := checkpoint.List("r/ckpt")
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	freed := int64(0)
	for _, e := range list {
		if e.Step < 6 {
			freed += e.Bytes
		}
	}
	for _, dry := range []bool{true, false} {
		args := []string{"ckpt", "prune", "r", "--keep", "1", "--json"}
		if dry {
			args = append(args, "--dry-run")
		}
		out, _ = zeroth(t, 0, args...)
		p := decoded[pruned](t, out)
		if p.Folder != "r/ckpt" || p.DryRun != dry || strings.Join(p.Deleted, " ") != "step-00000002 step-00000004" ||
			strings.Join(p.Kept, " ") != "step-00000006" || p.Freed != freed {
			t.Errorf("prune, dry %v: %+v", dry, p)
		}
	}
	out, _ = zeroth(t, 0, "ckpt", "prune", "r", "--keep", "1", "--json")
	if p := decoded[pruned](t, out); p.Deleted == nil || len(p.Deleted) > 0 || p.Freed != 0 {
		t.Errorf("prune again: %+v", p)
	}
}

func TestCkptImportNames(t *testing.T) {
	trained(t)
	// Hugging Face's own GPT-2 folders omit the "transformer." prefix, contain masks that are not
	// parameters, and store the output layer twice.
	src, err := safetensors.Open("r/model")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	bare := func(name string) string { return strings.TrimPrefix(name, "transformer.") }
	write := func(folder string, change func(*safetensors.Spec)) {
		specs := []safetensors.Spec{{Name: "h.0.attn.bias", DType: "BOOL", Shape: []int{2}}, {Name: "lm_head.weight", DType: "F32", Shape: []int{256, 8}}}
		for _, x := range src.Tensors() {
			x.Spec.Name = bare(x.Name)
			change(&x.Spec)
			specs = append(specs, x.Spec)
		}
		safetensorstest.Write(t, filepath.Join(folder, "model.safetensors"), specs, func(s safetensors.Spec) []byte {
			b := make([]byte, s.Numel()*s.DType.Size())
			if x, ok := src.Tensor("transformer." + strings.Replace(s.Name, "lm_head", "wte", 1)); ok && len(b) == 4*x.Numel() {
				if err := src.ReadRaw(x.Name, 0, x.Numel(), b); err != nil {
					t.Fatal(err)
				}
			}
			return b
		})
		config, err := os.ReadFile("r/model/config.json")
		if err := errors.Join(err, os.WriteFile(folder+"/config.json", config, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	write("bare", func(*safetensors.Spec) {})
	out, _ := zeroth(t, 0, "ckpt", "import", "bare", "--to", "start")
	matches(t, out, `^skipped, because the model does not have them: h.0.attn.bias, lm_head.weight\nimported bare as start/step-00000000 \(`)
	zeroth(t, 0, "ckpt", "export", "start", "--to", "again")
	same(t, "r/model/model.safetensors", "again/model.safetensors")

	write("quantised", func(s *safetensors.Spec) {
		if s.Name == "wpe.weight" {
			s.DType = "I8"
		}
	})
	write("cut", func(s *safetensors.Spec) {
		if s.Name == "wpe.weight" {
			s.Shape = []int{4, 8}
		}
	})
	if err := os.Remove("bare/config.json"); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"quantised --to new": "^quantised does not contain the model described by its config.json: transformer.wpe.weight is I8; want F32, BF16 or F16: use the unquantized model",
		"cut --to new":       `^cut does not contain the model described by its config.json: transformer.wpe.weight has shape \[4 8\]`,
		"bare --to new":      "^bare/config.json cannot be read: no such file",
		"r/model --to start": "^--to start: it has a checkpoint of step 0, and the import would become the latest at step 0; name another folder\n",
		"r/model --to a.txt": "^--to: .*a.txt: not a directory; name a folder that can be created\n",
	} {
		_, errs := zeroth(t, 2, append([]string{"ckpt", "import"}, strings.Fields(args)...)...)
		matches(t, errs, want)
		if _, err := os.Stat("new"); err == nil {
			t.Errorf("%s: a folder was made", args)
		}
	}
}

func TestCkptPrune(t *testing.T) {
	steps := func() string {
		folders, _ := filepath.Glob("r/ckpt/step-*")
		return strings.Join(folders, " ")
	}
	trained(t, "checkpoint.every=1", "checkpoint.keep=10")
	partial := "r/ckpt/.tmp-step-00000009-0123456789abcdef"
	if err := os.Mkdir(partial, 0o777); err != nil {
		t.Fatal(err)
	}
	before := steps()
	out, _ := zeroth(t, 0, "ckpt", "prune", "r", "--keep", "{last: 2, every_steps: 3}", "--dry-run")
	want := `^would delete step-00000001\nwould delete step-00000002\nwould delete step-00000004\nwould delete .tmp-step-00000009-0123456789abcdef\nr/ckpt: would delete 4 \(\d+.\d kB\), would keep 3\n$`
	matches(t, out, want)
	if _, err := os.Stat(partial); err != nil || steps() != before {
		t.Errorf("--dry-run: %v, left %s", err, steps())
	}
	// A save in progress holds the lock.
	s, err := checkpoint.Begin("other/ckpt", 1, checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, errs := zeroth(t, 1, "ckpt", "prune", "other", "--keep", "1")
	matches(t, errs, "^zeroth: prune other/ckpt: .*lock")
	s.Abort()
	out, _ = zeroth(t, 0, "ckpt", "prune", "r", "--keep", "{last: 2, every_steps: 3}")
	matches(t, out, strings.NewReplacer("r/ckpt: would delete", "r/ckpt: deleted", "would delete", "deleting", "would keep", "kept").Replace(want))
	if _, err := os.Stat(partial); err == nil || steps() != "r/ckpt/step-00000003 r/ckpt/step-00000005 r/ckpt/step-00000006" {
		t.Errorf("left %s, %v", steps(), err)
	}
	zeroth(t, 0, "ckpt", "prune", "r/ckpt", "--keep", "1")
	if steps() != "r/ckpt/step-00000006" {
		t.Errorf("left %s", steps())
	}
}

// TestCkptPruneKeepsProtected checks that prune keeps the checkpoints that the run's job
// protects, wherever they are, unless --ignore-job-rules is given.
func TestCkptPruneKeepsProtected(t *testing.T) {
	nightly.Long(t)
	keep := "checkpoint.keep={last: 9, every_steps: 4, best: loss}"
	for _, c := range []struct {
		in, dir string
		sets    []string
	}{
		{".", "r", nil}, {".", "r/ckpt", nil}, {"r/ckpt", ".", nil}, {"r", ".", nil},
		{".", "r", []string{"checkpoint.dir=elsewhere"}},
	} {
		trained(t, append(c.sets, "checkpoint.every=1", keep)...)
		best := bestStep(t)
		t.Chdir(c.in)
		out, _ := zeroth(t, 0, "ckpt", "prune", c.dir, "--keep", "1", "--json", "--dry-run")
		kept := map[string]bool{"step-00000004": true, best: true, "step-00000006": true}
		p := decoded[pruned](t, out)
		if len(p.Kept) != len(kept) || slices.ContainsFunc(p.Kept, func(name string) bool { return !kept[name] }) {
			t.Errorf("%+v: kept %v, want %v", c, p.Kept, kept)
		}
		if len(p.Protected) != len(kept)-1 {
			t.Errorf("%+v: protected %v", c, p.Protected)
		}
		out, _ = zeroth(t, 0, "ckpt", "prune", c.dir, "--keep", "1")
		matches(t, out, `(?m)^step-00000004 stays: every_steps: 4 protects it`, fmt.Sprintf(`(?m): deleted %d .*, kept %d$`, 6-len(kept), len(kept)))
		out, _ = zeroth(t, 0, "ckpt", "prune", c.dir, "--keep", "1", "--ignore-job-rules", "--json")
		if p := decoded[pruned](t, out); fmt.Sprint(p.Kept) != "[step-00000006]" || len(p.Protected) > 0 {
			t.Errorf("%+v: --ignore-job-rules kept %v, protected %v", c, p.Kept, p.Protected)
		}
	}
}

// bestStep returns the name of the checkpoint of r with the lowest loss.
func bestStep(t *testing.T) string {
	t.Helper()
	steps, _, err := report.ReadMetrics("r/metrics.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	best := slices.MinFunc(steps, func(a, b report.Step) int { return cmp.Compare(a.Loss, b.Loss) })
	return fmt.Sprintf("step-%08d", best.Step)
}

// TestCkptPruneByAnyJob checks that prune applies --keep alone to a folder without a job of its
// own, and deletes nothing if the job cannot be read.
func TestCkptPruneByAnyJob(t *testing.T) {
	trained(t, "checkpoint.every=1", "checkpoint.keep={last: 9, every_steps: 2}")
	job, err := os.ReadFile("r/job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"no YAML": "{", "no rule": strings.Replace(string(job), "every_steps", "every", 1)} {
		if err := os.WriteFile("r/job.yaml", []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
		_, errs := zeroth(t, 2, "ckpt", "prune", "r", "--keep", "1")
		matches(t, errs, "r/job.yaml:", "--ignore-job-rules")
		if all, _ := filepath.Glob("r/ckpt/step-*"); len(all) != 6 {
			t.Errorf("%s: left %v", name, all)
		}
	}
	other := strings.Replace(string(job), "\ncheckpoint:\n", "\ncheckpoint:\n  dir: other\n", 1)
	if err := os.WriteFile("r/job.yaml", []byte(other), 0o666); err != nil {
		t.Fatal(err)
	}
	out, _ := zeroth(t, 0, "ckpt", "prune", "r/ckpt", "--keep", "4", "--json")
	if p := decoded[pruned](t, out); len(p.Kept) != 4 {
		t.Errorf("beside another job kept %v", p.Kept)
	}
	if err := os.Remove("r/job.yaml"); err != nil {
		t.Fatal(err)
	}
	list := &firstWrite{}
	if code := run([]string{"ckpt", "prune", "r", "--keep", "1"}, list, list); code != 0 || len(list.there) != 4 {
		t.Errorf("code %d; %v was there when the list was printed\n%s", code, list.there, list)
	}
	if all, _ := filepath.Glob("r/ckpt/step-*"); len(all) != 1 {
		t.Errorf("without a job left %v", all)
	}
}

// firstWrite is an output that records which checkpoints exist at its first write.
type firstWrite struct {
	bytes.Buffer
	there []string
}

func (l *firstWrite) Write(b []byte) (int, error) {
	if l.Len() == 0 {
		l.there, _ = filepath.Glob("r/ckpt/step-*")
	}
	return l.Buffer.Write(b)
}

// TestNewCheckpointAlone checks that only one process at a time can create the first checkpoint
// of a folder, and that another is refused afterwards.
func TestNewCheckpointAlone(t *testing.T) {
	trained(t)
	model, err := state.OpenModelFolder("r/model")
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	hold, undo, err := newCheckpoint("new/one", 0)
	if err != nil {
		t.Fatal(err)
	}
	locked := (*vfs.Locked)(nil)
	if _, _, err := newCheckpoint("new/one", 0); !errors.As(err, &locked) {
		t.Errorf("while one begins: %v", err)
	}
	if _, err := model.Import(t.Context(), "new/one", checkpoint.Options{Hold: hold}, nil); err != nil {
		t.Error(err)
	}
	undo()
	if _, _, err := newCheckpoint("new/one", 0); err == nil || !strings.Contains(err.Error(), "has a checkpoint of step 0") {
		t.Errorf("after one: %v", err)
	}
	if _, undo, err = newCheckpoint("new/two", 0); err != nil {
		t.Fatal(err)
	}
	undo()
	if _, err := os.Stat("new/two"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder without a checkpoint is left: %v", err)
	}
}
