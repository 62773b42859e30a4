//go:build campaign && linux

package campaign

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// damage is a checkpoint to damage and a description of the damage.
type damage struct {
	*trial
	*fixture
	root  string   // folder of checkpoints
	step  string   // step folder that is damaged
	file  string   // damaged file in it
	names []string // names of which an error must contain one; the file if empty
	gone  bool     // the newest checkpoint has disappeared, which cannot be detected
	twin  string   // a copy of the checkpoint
	ours  string   // a path outside that is the folder of checkpoints itself
	stays []string // foreign paths that must not be deleted
}

func (d *damage) at() string { return filepath.Join(d.root, d.step, d.file) }

// sibling returns the path of the same file in another checkpoint.
func (d *damage) sibling() string { return filepath.Join(d.root, d.another(), d.file) }

func (d *damage) another() string {
	others := slices.DeleteFunc(slices.Clone(d.steps), func(s string) bool { return s == d.step })
	return pick(d.rng, others)
}

// elsewhere returns a path outside.
func (d *damage) elsewhere(name string) string { return filepath.Join(d.outside(), name) }

// moved moves something outside before the sentinel is recorded, and replaces it by a link.
func (d *damage) moved(path string) string {
	to := d.elsewhere("moved-" + filepath.Base(path))
	d.must(os.Rename(path, to))
	d.must(os.Symlink(to, path))
	return to
}

// change rewrites the file.
func (d *damage) change(f func(b []byte) []byte) { d.write(d.at(), string(f(d.read(d.at())))) }

// mutation is a way to damage a checkpoint.
type mutation struct {
	name string
	do   func(d *damage)
}

var mutated = []mutation{
	{"nothing", func(*damage) {}},
	{"a bit flipped", func(d *damage) { d.change(d.flip) }},
	{"a bit flipped in COMMIT", func(d *damage) { d.file = "COMMIT"; d.change(d.flip) }},
	{"a digit changed", func(d *damage) {
		d.file = pick(d.rng, []string{"COMMIT", "MANIFEST.json", "state.json", "part-00000.json"})
		d.change(d.digit)
	}},
	{"bytes overwritten", func(d *damage) {
		d.change(func(b []byte) []byte {
			at, n := d.rng.IntN(len(b)), 1+d.rng.IntN(64)
			for i := at; i < min(len(b), at+n); i++ {
				b[i] = byte(d.rng.Uint32())
			}
			return b
		})
	}},
	{"a page of zeros", func(d *damage) {
		d.change(func(b []byte) []byte {
			lo := d.rng.IntN(1+len(b)/4096) * 4096
			lo = min(lo, len(b)-1)
			clear(b[lo:min(len(b), lo+4096)])
			return b
		})
	}},
	{"pages swapped", func(d *damage) {
		d.file = "data-00001-000.safetensors"
		d.change(func(b []byte) []byte {
			i, j := d.rng.IntN(len(b)/512)*512, d.rng.IntN(len(b)/512)*512
			was := slices.Clone(b[i : i+512])
			copy(b[i:i+512], b[j:j+512])
			copy(b[j:j+512], was)
			return b
		})
	}},
	{"truncated", func(d *damage) { d.change(func(b []byte) []byte { return b[:d.rng.IntN(len(b))] }) }},
	{"extended", func(d *damage) {
		more := pick(d.rng, []string{"\n", " ", "\x00", "}", "garbage", strings.Repeat("\x00", 4096)})
		d.change(func(b []byte) []byte { return append(b, more...) })
	}},
	{"file missing", func(d *damage) { d.must(os.Remove(d.at())) }},
	{"files swapped", func(d *damage) {
		other := filepath.Join(d.root, d.step, pick(d.rng, d.files()))
		a, b := d.read(d.at()), d.read(other)
		d.write(d.at(), string(b))
		d.write(other, string(a))
		d.names = []string{d.file, filepath.Base(other)}
	}},
	{"another checkpoint's file", func(d *damage) { d.write(d.at(), string(d.read(d.sibling()))) }},
	{"another checkpoint's COMMIT", func(d *damage) { d.file = "COMMIT"; d.write(d.at(), string(d.read(d.sibling()))) }},
	{"another checkpoint's COMMIT and manifest", func(d *damage) {
		other := d.another()
		for _, d.file = range []string{"MANIFEST.json", "COMMIT"} {
			d.write(d.at(), string(d.read(filepath.Join(d.root, other, d.file))))
		}
		d.names = d.files()
	}},
	{"file moved, a link left", func(d *damage) { d.moved(d.at()) }},
	{"file moved and damaged, a link left", func(d *damage) { d.moved(d.at()); d.change(d.flip) }},
	{"link to nowhere, itself or a folder", func(d *damage) {
		d.must(os.Remove(d.at()))
		d.must(os.Symlink(pick(d.rng, []string{"nowhere", d.file, d.outside(), ".", "/dev/null", "/dev/zero"}), d.at()))
	}},
	{"a FIFO for a file", func(d *damage) { d.must(os.Remove(d.at())); d.must(syscall.Mkfifo(d.at(), 0o666)) }},
	{"a folder for a file", func(d *damage) {
		d.must(os.Remove(d.at()))
		d.mkdir(d.at())
		if d.rng.IntN(2) == 0 {
			d.must(os.Symlink(d.outside(), filepath.Join(d.at(), "link")))
		}
	}},
	{"foreign file in the folder", func(d *damage) { d.foreign("notes.txt", func(p string) { d.write(p, "mine\n") }) }},
	{"foreign folder in the folder", func(d *damage) {
		d.foreign("notes/a.txt", func(p string) { d.mkdir(filepath.Dir(p)); d.write(p, "mine\n") })
	}},
	{"link in the folder", func(d *damage) {
		to := pick(d.rng, []string{d.outside(), d.elsewhere("thesis.txt"), d.elsewhere("deep")})
		d.foreign("link", func(p string) { d.must(os.Symlink(to, p)) })
	}},
	{"folders swapped", func(d *damage) {
		a, b := filepath.Join(d.root, d.step), filepath.Join(d.root, d.another())
		d.must(os.Rename(a, a+"-x"))
		d.must(os.Rename(b, a))
		d.must(os.Rename(a+"-x", b))
		d.names = []string{filepath.Base(a), filepath.Base(b)}
	}},
	{"folder named as another step", func(d *damage) {
		name := pick(d.rng, []string{"step-00000005", "step-00000009", "step-00000100", "step-100000000"})
		d.must(os.Rename(filepath.Join(d.root, d.step), filepath.Join(d.root, name)))
		d.names = []string{name, d.step}
	}},
	{"folder twice", func(d *damage) {
		name := pick(d.rng, []string{d.step[:13] + ".7", "step-00000005", "step-00000009", "step-00000100"})
		d.copyTree(filepath.Join(d.root, d.step), filepath.Join(d.root, name))
		d.names, d.twin = []string{name, d.step}, name
	}},
	{"folder removed", func(d *damage) {
		d.must(os.RemoveAll(filepath.Join(d.root, d.step)))
		d.names = []string{d.step}
		d.gone = d.step == d.newest()
	}},
	{"folder moved, a link left", func(d *damage) { d.moved(filepath.Join(d.root, d.step)) }},
	{"folder moved and damaged, a link left", func(d *damage) { d.moved(filepath.Join(d.root, d.step)); d.change(d.flip) }},
	{"something else for the folder", func(d *damage) {
		path := filepath.Join(d.root, d.step)
		d.must(os.RemoveAll(path))
		d.names = []string{d.step}
		switch d.rng.IntN(6) {
		case 0:
			d.write(path, "a file\n")
		case 1:
			d.must(syscall.Mkfifo(path, 0o666))
		case 2:
			d.must(os.Symlink("nowhere", path))
		case 3:
			d.must(os.Symlink(d.step, path))
		case 4:
			d.must(os.Symlink(d.outside(), path))
		case 5:
			d.mkdir(path)
		}
	}},
	{"folder of checkpoints moved, a link left", func(d *damage) { d.ours = d.moved(d.root) }},
	{"links in what a save left", func(d *damage) {
		dir := filepath.Join(d.root, pick(d.rng, []string{".tmp-step-00000010-0123456789abcdef", ".trash-step-00000002-0123456789abcdef", ".trash-mine"}))
		d.mkdir(filepath.Join(dir, "deeper"))
		d.must(os.Symlink(d.outside(), filepath.Join(dir, "deeper/link")))
		d.must(os.Symlink(d.outside(), filepath.Join(dir, "data-00000-000.safetensors")))
		d.must(os.Symlink(d.elsewhere("thesis.txt"), filepath.Join(dir, "COMMIT")))
	}},
	{"a link for what a save left", func(d *damage) {
		name := pick(d.rng, []string{".tmp-step-00000010-0123456789abcdef", ".trash-step-00000002-0123456789abcdef", ".trash-mine"})
		d.must(os.Symlink(d.outside(), filepath.Join(d.root, name)))
	}},
	{"a link for an output", func(d *damage) {
		d.instead(pick(d.rng, outputs), func(path string) {
			d.must(os.Symlink(pick(d.rng, []string{d.elsewhere("thesis.txt"), d.outside(), d.elsewhere("new"), "."}), path))
		})
	}},
	{"a FIFO, socket or device for an output", func(d *damage) {
		d.instead(pick(d.rng, outputs), func(path string) { d.mknod(path, pick(d.rng, specials)) })
	}},
	{"links under temporary names", func(d *damage) {
		name := pick(d.rng, []string{"job.yaml.tmp", "metrics.jsonl.new", "metrics.jsonl.tmp", "loss.svg.tmp", "model/config.json.tmp", "model/model.safetensors.tmp", "model/vocab.json.tmp", ".zeroth-probe", "ckpt/.zeroth-probe",
			".zeroth-tmp-ABCDEFGHIJKLMNOPQRSTUVWXYZ", "ckpt/.zeroth-tmp-ABCDEFGHIJKLMNOPQRSTUVWXYZ", "ckpt/.probe", "ckpt/.tmp-step-00000010", "ckpt/step-00000010"})
		d.instead(name, func(path string) {
			d.must(os.Symlink(pick(d.rng, []string{d.elsewhere("thesis.txt"), d.outside(), d.elsewhere("new")}), path))
		})
	}},
	{"pruned, rules of the job protect", func(d *damage) { d.protect() }},
	{"lock missing", func(d *damage) { d.must(os.Remove(filepath.Join(d.root, ".lock"))) }},
	{"something else for the lock", func(d *damage) {
		d.file, d.step = ".lock", "."
		d.names = []string{".lock"}
		d.must(os.RemoveAll(d.at()))
		switch d.rng.IntN(4) {
		case 0:
			d.mkdir(d.at())
		case 1:
			d.must(syscall.Mkfifo(d.at(), 0o666))
		case 2:
			d.must(os.Symlink(d.elsewhere("thesis.txt"), d.at()))
		case 3:
			d.must(os.Symlink("/dev/zero", d.at()))
		}
	}},
	{"metrics damaged", func(d *damage) {
		d.root, d.step, d.file = filepath.Join(d.dir, "run"), ".", "metrics.jsonl"
		d.change(pick(d.rng, []func([]byte) []byte{d.flip, func(b []byte) []byte { return append(b[:len(b)/2], b[len(b)/2+9:]...) },
			func(b []byte) []byte { return append([]byte("\x00\x1b[2J"), b...) }, func([]byte) []byte { return nil }}))
		d.root = filepath.Join(d.dir, "run/ckpt")
	}},
}

// outputs are the files that a run writes to its folder.
var outputs = []string{"job.yaml", "loss.svg", "metrics.jsonl", "model", "model/config.json", "model/model.safetensors", "model/vocab.json", "model/merges.txt", "flight", "adapter"}

// instead replaces a file of the run folder by something else.
func (d *damage) instead(name string, put func(path string)) {
	path := filepath.Join(d.dir, "run", name)
	d.must(os.RemoveAll(path))
	d.mkdir(filepath.Dir(path))
	put(path)
	d.names = []string{filepath.Base(name)}
}

// protect prunes a run with a rule in its job. Protected checkpoints stay unless the rule is
// ignored, and the trial continues with the rest.
func (d *damage) protect() {
	path := filepath.Join(d.dir, "run/job.yaml")
	rule := pick(d.rng, []string{"{last: 1, every_steps: 4}", "{last: 1, every_steps: 6}", "{last: 1, every_steps: 3}"})
	d.write(path, regexp.MustCompile(`(?m)^  keep: .*$`).ReplaceAllString(string(d.read(path)), "  keep: "+rule))
	args := []string{"ckpt", "prune", "run", "--keep", "1"}
	ignored := d.rng.IntN(3) == 0
	if ignored {
		args = append(args, "--ignore-job-rules")
	}
	e := d.zeroth(nil, args...)
	f := *d.fixture
	f.steps = nil
	for _, s := range d.steps {
		_, err := os.Stat(filepath.Join(d.root, s))
		step, _ := strconv.Atoi(strings.Split(s[len("step-"):], ".")[0])
		every, _ := strconv.Atoi(rule[len(rule)-2 : len(rule)-1])
		if stays := s == d.newest() || !ignored && step%every == 0; stays != (err == nil) {
			d.Errorf("keep %s, ignored: %v: %s is there: %v, want %v\n%s", rule, ignored, s, err == nil, stays, e.said())
		}
		if err == nil {
			f.steps = append(f.steps, s)
		}
	}
	d.fixture, d.step = &f, f.newest()
}

// files returns the files of the checkpoint.
func (d *damage) files() []string {
	return []string{"COMMIT", "MANIFEST.json", "state.json", "part-00000.json", "part-00001.json", "data-00000-000.safetensors", "data-00001-000.safetensors"}
}

func (d *damage) flip(b []byte) []byte {
	b[d.rng.IntN(len(b))] ^= 1 << d.rng.IntN(8)
	return b
}

// digit changes a digit of a text.
func (d *damage) digit(b []byte) []byte {
	var at []int
	for i, c := range b {
		if '0' <= c && c <= '9' {
			at = append(at, i)
		}
	}
	i := pick(d.rng, at)
	b[i] = '0' + (b[i]-'0'+byte(1+d.rng.IntN(9)))%10
	return b
}

// foreign adds something to the checkpoint's folder that zeroth did not write.
func (d *damage) foreign(name string, put func(path string)) {
	path := filepath.Join(d.root, d.step, name)
	put(path)
	d.stays = append(d.stays, path)
}

// TestMutations damages every kind of file in a run's checkpoints. verify must find and name the
// damage. The run must resume from its newest state, to the bit, or fail with the reason; only if
// the newest checkpoint has disappeared without a trace does it resume from the previous one and
// name it. Commands that read change nothing, commands that delete remove only files of the
// format, and intact checkpoints stay intact.
func TestMutations(t *testing.T) {
	var kinds []string
	for _, m := range mutated {
		kinds = append(kinds, m.name)
	}
	trials(t, count(*mutations), kinds, func(x *trial) string {
		d := &damage{trial: x, fixture: x.given(x.number / len(kinds)), root: filepath.Join(x.dir, "run/ckpt")}
		d.step, d.file = d.newest(), pick(x.rng, d.files())
		if x.rng.IntN(4) == 0 {
			d.step = d.another()
		}
		whole := map[string]tree{}
		for _, s := range d.steps {
			whole[s] = look(filepath.Join(d.root, s))
		}
		mutated[x.number%len(mutated)].do(d)
		x.ran = append(x.ran, fmt.Sprintf("  (%s: %s/%s of %s)", x.kind, d.step, d.file, fixtures[x.number/len(kinds)%len(fixtures)].name))
		return d.tried(whole)
	})
}

// harmless reports whether all files of a checkpoint have their original bytes.
func (d *damage) harmless(step string, was tree) bool {
	for name, w := range was {
		path := filepath.Join(d.dir, "run/ckpt", step, name)
		st, err := os.Stat(path)
		if name == "" {
			if err != nil || !st.IsDir() {
				return false
			}
			continue
		}
		if err != nil || !st.Mode().IsRegular() || what(path, 0) != w {
			return false
		}
	}
	return true
}

// tried runs the commands on the damaged checkpoint.
func (d *damage) tried(whole map[string]tree) (outcome string) {
	outside, before := d.sentinel(), look(d.dir)
	var bad []string
	for _, s := range d.steps {
		if !d.harmless(s, whole[s]) {
			bad = append(bad, s)
		}
	}
	d.looked(bad)
	d.same(before, look(d.dir), "commands that only look")
	d.same(outside, d.sentinel(), "commands that only look")

	if d.rng.IntN(2) == 0 {
		d.pruned(bad, whole)
		outcome = d.resumed(bad)
	} else if outcome = d.resumed(bad); outcome == refused {
		d.pruned(bad, whole)
	} else {
		d.zeroth([]int{1}, "ckpt", "prune", "run", "--keep", "1")
	}
	d.same(outside, d.sentinel(), "prune and resume")
	for _, path := range d.stays {
		if _, err := os.Lstat(path); err != nil {
			d.Errorf("a foreign entry was deleted: %v", err)
		}
	}
	return outcome
}

// refused is the outcome of a resume that failed with the right reason.
const refused = "refused by name"

// sentinel returns the contents outside that must not change.
func (d *damage) sentinel() tree { return look(d.outside()).without(filepath.Base(d.ours)) }

// looked lists and verifies the checkpoints.
func (d *damage) looked(bad []string) {
	d.zeroth([]int{1}, "ckpt", "ls", "run")
	all := d.zeroth([]int{1}, "ckpt", "verify", "run")
	if all.code == 0 && slices.Contains(bad, d.newest()) && !d.gone {
		d.Errorf("verify of the run finds nothing:\n%s", all.said())
	}
	for _, s := range d.steps {
		if s != d.step && !slices.Contains(bad, s) {
			continue
		}
		e := d.zeroth([]int{1}, "ckpt", "verify", filepath.Join("run/ckpt", s))
		switch {
		case e.code == 0 && slices.Contains(bad, s):
			d.Errorf("verify of %s finds nothing:\n%s", s, e.said())
		case e.code != 0 && slices.Contains(bad, s) && !d.named(e):
			d.Errorf("verify names none of %q:\n%s", d.blamed(), e.said())
		}
	}
	d.zeroth([]int{1}, "ckpt", "inspect", filepath.Join("run/ckpt", d.step))
	if d.rng.IntN(3) == 0 {
		to := filepath.Join(d.outside(), "export")
		d.zeroth([]int{1}, "ckpt", "export", filepath.Join("run/ckpt", d.step), "--to", to)
		d.must(os.RemoveAll(to))
	}
}

// pruned prunes the checkpoints that no rule keeps.
func (d *damage) pruned(bad []string, whole map[string]tree) {
	d.zeroth([]int{1}, "ckpt", "prune", "run", "--keep", "1")
	if s := d.newest(); !slices.Contains(bad, s) && !d.harmless(s, whole[s]) && (d.twin == "" || !d.harmless(d.twin, whole[s])) {
		d.Errorf("prune deleted %s, the newest, which was whole", s)
	}
}

// resumed resumes the run.
func (d *damage) resumed(bad []string) (outcome string) {
	e := d.resume(d.fixture, "--set", "checkpoint.keep=2")
	newest := slices.Contains(bad, d.newest())
	switch {
	case e.code == 0 && d.gone && d.exported() == d.older && strings.Contains(e.said(), d.steps[len(d.steps)-2]):
		return "went on from the one before and named it"
	case e.code == 0 && d.exported() == d.after: // the damage is in bytes that are not read; verify has found it
		return "went on from the newest, to the bit"
	case e.code == 0 && newest:
		d.Errorf("the newest checkpoint is damaged, and it went on from another state:\n%s", e.said())
	case e.code == 0:
		d.Errorf("ended with other parameters than a run that nobody disturbed:\n%s", e.said())
	case len(bad) == 0 && len(d.names) == 0 && len(d.stays) == 0:
		d.Errorf("nothing is damaged, and it did not go on")
	case !d.named(e) && !strings.Contains(e.said(), d.step):
		d.Errorf("refused without naming %s or any of %q:\n%s", d.step, d.blamed(), e.said())
	}
	return refused
}

// blamed returns the names of which an error must contain one.
func (d *damage) blamed() []string {
	if len(d.names) == 0 {
		return []string{d.file}
	}
	return d.names
}

// named reports whether an output names the damage.
func (d *damage) named(e ended) bool {
	return slices.ContainsFunc(d.blamed(), func(n string) bool { return strings.Contains(e.said(), n) })
}
