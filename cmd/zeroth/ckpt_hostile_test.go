//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zeroth/checkpoint"
	"zeroth/checkpoint/checkpointtest"
	"zeroth/checkpoint/vfs"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// TestFullOutput checks that every command exits with code 1 if it cannot write its output.
func TestFullOutput(t *testing.T) {
	nightly.Long(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	trained(t)
	for args, want := range map[string]int{
		"ckpt ls r": 1, "ckpt ls r --json": 1, "ckpt inspect r": 1, "ckpt inspect r --json": 1, "ckpt verify r": 1, "ckpt verify r --json": 1,
		"ckpt diff r r": 1, "ckpt diff r " + second: 1, "ckpt export r --to m": 1, "ckpt import r/model --to c": 1,
		"ckpt prune r --keep 3 --dry-run": 1, "ckpt prune r --keep 3 --json": 1, "ckpt": 1, "version": 1, "doctor": 1, "help": 1, "help job": 1, "--help": 1,
		"plan tiny.yaml": 1, "plan tiny.yaml --json": 1, "sample --run r --prompt to --tokens 2": 1, "train tiny.yaml --out s": 1,
		"ckpt ls none": 2, // prints nothing
	} {
		var errs bytes.Buffer
		if code := run(strings.Fields(args), full, &errs); code != want || want == 1 && !strings.Contains(errs.String(), "no space left on device") {
			t.Errorf("zeroth %s: exit code %d, want %d\n%s", args, code, want, &errs)
		}
	}
}

// TestDamagedCommitIsReported checks that every command given a run folder reports a damaged COMMIT
// of the newest checkpoint, instead of using an older checkpoint.
func TestDamagedCommitIsReported(t *testing.T) {
	nightly.Long(t)
	trained(t)
	b, err := os.ReadFile(last + "/COMMIT")
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"seq 1 ", "seq 2 ", "seq 4 "} {
		if err := os.WriteFile(last+"/COMMIT", bytes.Replace(b, []byte("seq 3 "), []byte(to), 1), 0o666); err != nil {
			t.Fatal(err)
		}
		out, _ := zeroth(t, 1, "ckpt", "verify", "r")
		matches(t, out, `^COMMIT: belongs to save .* but the manifest to .* `, last+": damaged in 1 place")
		out, _ = zeroth(t, 1, "ckpt", "verify", "r", "--json")
		if v := decoded[verification](t, out); v.Whole || v.Path != last || len(v.Damage) != 1 || v.Damage[0].File != "COMMIT" {
			t.Errorf("%+v", v)
		}
		for _, args := range []string{"inspect r", "export r --to new", "diff r " + second} {
			_, errs := zeroth(t, 1, append([]string{"ckpt"}, strings.Fields(args)...)...)
			matches(t, errs, `^zeroth: `+last+` is damaged and may be the newest: COMMIT: belongs to save .* give its path: the newest intact one is r/ckpt/step-00000004`)
		}
		zeroth(t, 2, "ckpt", "import", "r/model", "--to", "r/ckpt")
		zeroth(t, 0, "ckpt", "verify", "r/ckpt/step-00000004")
		out, _ = zeroth(t, 0, "ckpt", "ls", "r")
		if matches(t, out, `damaged: COMMIT: belongs to save`); strings.Contains(out, "latest") {
			t.Errorf("there is a latest in\n%s", out)
		}
	}
	if err := os.WriteFile(last+"/COMMIT", b, 0o666); err != nil {
		t.Fatal(err)
	}
	// Also checks two swapped folders, a copy and a pipe.
	swap := func() {
		for _, r := range [][2]string{{second, "x"}, {last, second}, {"x", last}} {
			if err := os.Rename(r[0], r[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	swap()
	for _, path := range []string{"r", second, last} {
		out, _ := zeroth(t, 1, "ckpt", "verify", path)
		matches(t, out, `^MANIFEST.json: is of step \d, but the folder is named for step \d`)
	}
	swap()
	if err := os.CopyFS(last+".1", os.DirFS(last)); err != nil {
		t.Fatal(err)
	}
	out, _ := zeroth(t, 1, "ckpt", "verify", "r")
	matches(t, out, `^step-00000006: has the same commit number as step-00000006.1: `, ": damaged in 1 place")
	if err := os.RemoveAll(last + ".1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(last + "/COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(last+"/COMMIT", 0o666); err != nil {
		t.Fatal(err)
	}
	out, _ = zeroth(t, 1, "ckpt", "verify", "r")
	matches(t, out, `COMMIT: it is a pipe, not a regular file`)
	// A step folder that is a dangling link is also damage.
	if err := os.RemoveAll(last); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", last); err != nil {
		t.Fatal(err)
	}
	out, _ = zeroth(t, 1, "ckpt", "verify", "r")
	matches(t, out, `^step-00000006: it is a dangling symbolic link\n`)
}

// TestPruneLeaves checks that prune deletes only files that zeroth wrote, and reports the others
// with an exit code of its own.
func TestPruneLeaves(t *testing.T) {
	trained(t)
	if err := os.WriteFile(second+"/my\x1b[31mnotes", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []string{"--dry-run", "--json"} {
		out, errs := zeroth(t, 1, "ckpt", "prune", "r", "--keep", "1", dry)
		if errs != "" || strings.Contains(out, "\x1b") {
			t.Errorf("%q %q", out, errs)
		}
		if dry == "--dry-run" {
			matches(t, out, `^would delete step-00000004\nstep-00000002 stays: it contains "my\\x1b\[31mnotes" \(a file\), which is not a file of a checkpoint: .*\nr/ckpt: would delete 1 \(.*\), would keep 2\n$`)
			continue
		}
		p := decoded[pruned](t, out)
		if strings.Join(p.Deleted, " ") != "step-00000004" || strings.Join(p.Kept, " ") != "step-00000002 step-00000006" || len(p.Left) != 1 || p.Left[0].Name != "step-00000002" {
			t.Errorf("%+v", p)
		}
	}
	zeroth(t, 0, "ckpt", "verify", second)
}

// TestPruneNamesDamage checks that prune keeps a damaged checkpoint whatever the rules say, and
// reports the damage.
func TestPruneNamesDamage(t *testing.T) {
	trained(t)
	if err := os.Remove(second + "/state.json"); err != nil {
		t.Fatal(err)
	}
	out, _ := zeroth(t, 0, "ckpt", "prune", "r", "--keep", "1", "--json")
	if p := decoded[pruned](t, out); len(p.Damaged) != 1 || p.Damaged[0].Name != "step-00000002" || len(p.Left) > 0 {
		t.Errorf("%+v", p)
	}
	out, _ = zeroth(t, 0, "ckpt", "prune", "r", "--keep", "1")
	matches(t, out, `^step-00000002 stays: it is damaged \(.*state\.json.*\); delete it yourself if you do not need it\nr/ckpt: deleted 0 \(0 B\), kept 2\n$`)
}

// unreadable is a file system in which the files of one folder cannot be read.
type unreadable struct {
	vfs.FS
	folder string
}

func (u unreadable) Open(name string) (vfs.File, error) {
	if filepath.Dir(name) == u.folder {
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EIO}
	}
	return u.FS.Open(name)
}

// TestPruneReportsKept checks that prune reports a checkpoint it listed for deletion
// but kept, because the newest one turned out to be unreadable.
func TestPruneReportsKept(t *testing.T) {
	trained(t)
	h, err := checkpoint.HoldFolder(unreadable{vfs.OS{}, last}, "r/ckpt")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var out bytes.Buffer
	err = (&app{out: &out}).pruneBy(h, "r/ckpt", []checkpoint.Keep{{Last: 1}}, "", false)
	if err != errFound {
		t.Errorf("the error is %v", err)
	}
	matches(t, out.String(), `^deleting step-00000002\ndeleting step-00000004\nstep-00000006 stays: it is damaged \(.*input/output error\).*\nstep-00000004 was not deleted\nr/ckpt: deleted 1 \([^\n]*\), kept 2\n$`)
}

// forged writes a copy of a checkpoint with another state.json.
func forged(t *testing.T, from, root, state string) string {
	t.Helper()
	ck, err := checkpoint.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	ck.State = []byte(state)
	return checkpointtest.Copy(t, ck, root)
}

// TestExportOfAnotherModel checks that export refuses a state.json that does not match the
// parameters, and creates no folder.
func TestExportOfAnotherModel(t *testing.T) {
	nightly.Long(t)
	trained(t)
	for i, model := range []string{`5`, `null`, `[]`, `"gpt2"`, `{}`, `{"model_type": 5}`, `{"model_type": "bert"}`, `{"model_type": "gpt2"}`, `{"model_type": "llama"}`,
		`{"model_type": "gpt2", "n_layer": 1000000000, "n_head": 1, "n_embd": 8, "n_positions": 8, "vocab_size": 256}`,
		`{"model_type": "gpt2", "n_layer": -1, "n_head": 0, "n_embd": 8}`,
		`{"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 16, "n_positions": 8, "vocab_size": 256}`,
		`{"model_type": "gpt2", "n_layer": 0, "n_head": 1, "n_embd": 8, "n_positions": 8, "vocab_size": 256}`} {
		path := forged(t, last, filepath.Join("f", string(rune('a'+i))), `{"step": 6, "data": "x", "model": `+model+`}`)
		_, errs := zeroth(t, 2, "ckpt", "export", path, "--to", "new")
		matches(t, errs, `state.json`)
		if _, err := os.Stat("new"); err == nil {
			t.Fatalf("%s: a folder was made", model)
		}
	}
}

// TestInspectOfHugeState checks that a large or deeply nested state.json is refused.
func TestInspectOfHugeState(t *testing.T) {
	trained(t)
	const deep = 9000
	path := forged(t, last, "f", `{"a": [`+strings.Repeat(strings.Repeat("[", deep)+strings.Repeat("]", deep)+",", 100)+`1]}`)
	_, errs := zeroth(t, 1, "ckpt", "inspect", path, "--json")
	matches(t, errs, `state.json is nested more than 16 levels deep`)
	path = forged(t, last, "h", `{"a": [`+strings.Repeat("0,", 1<<22)+`0]}`)
	_, errs = zeroth(t, 1, "ckpt", "inspect", path, "--json")
	matches(t, errs, `state.json has \d+ bytes, more than the limit of 4194304`)
	path = forged(t, last, "g", `{"a": `+strings.Repeat("[", 15)+strings.Repeat("]", 15)+`}`)
	out, _ := zeroth(t, 0, "ckpt", "inspect", path, "--json")
	if !json.Valid([]byte(out)) {
		t.Errorf("no JSON:\n%s", out)
	}
}

// TestOutputIsEscaped checks that control characters in a checkpoint are escaped in all output.
func TestOutputIsEscaped(t *testing.T) {
	inFolder(t)
	const evil = "w\x1b[2J\n\u009b31m\u202e\U000e0001\x7f"
	s, err := checkpoint.Begin("c", 1, checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := s.Writer(0)
	if err := w.Put(checkpoint.Tensor{Name: evil, Kind: "master", DType: checkpoint.F32, Shape: []int{1}}, shard.Range{Hi: 1}, make([]byte, 4), nil); err != nil {
		t.Fatal(err)
	}
	p, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	state, err := json.Marshal(map[string]any{"version": evil, "data": evil, "model": map[string]string{"model_type": evil}})
	if err != nil {
		t.Fatal(err)
	}
	path, err := s.Commit(checkpoint.Commit{Parts: []checkpoint.PartFile{p}, State: state, Metrics: map[string]float64{evil: 1}})
	if err != nil {
		t.Fatal(err)
	}
	forged(t, path, "d", `{`+evil)
	flip(t, path+"/data-00000-000.safetensors", 65536)
	for args, code := range map[string]int{"ls c": 0, "ls c --json": 0, "inspect c": 0, "inspect c --json": 0, "verify c": 1, "verify c --json": 1,
		"diff c d": 1, "diff d c --json": 1, "export c --to n": 2, "export d --to n": 1, "inspect d": 1} {
		out, errs := zeroth(t, code, append([]string{"ckpt"}, strings.Fields(args)...)...)
		if s := out + errs; strings.ContainsAny(s, "\x1b\u009b\u202e\U000e0001\x7f") || !strings.Contains(args, "ls") && !strings.Contains(args, " d") && !strings.Contains(s, "1b[2J") {
			t.Errorf("%s: %q", args, s)
		}
		if strings.Contains(args, "--json") && errs == "" && !json.Valid([]byte(out)) {
			t.Errorf("%s: no JSON:\n%s", args, out)
		}
	}
	var v verification
	out, _ := zeroth(t, 1, "ckpt", "verify", "c", "--json")
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Damage[0].Name != evil {
		t.Errorf("%q, %v", v.Damage[0].Name, err)
	}
	_, errs := zeroth(t, 2, "ckpt", "ls", "no\x1b[31m")
	if strings.Contains(errs, "\x1b") {
		t.Errorf("%q", errs)
	}
}

// TestTimelineKeepsOtherFiles checks that --timeline neither truncates nor removes a file given by
// mistake.
func TestTimelineKeepsOtherFiles(t *testing.T) {
	inFolder(t)
	before, err := os.ReadFile("a.txt")
	if err != nil {
		t.Fatal(err)
	}
	zeroth(t, 2, "train", "tiny.yaml", "--timeline", "a.txt")
	if after, err := os.ReadFile("a.txt"); err != nil || !bytes.Equal(before, after) {
		t.Errorf("a.txt has %d bytes, %v", len(after), err)
	}
}
