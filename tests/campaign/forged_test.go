//go:build campaign && linux

package campaign

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// forgery is a kind of forged file: changed by somebody who knows the format, with all digests
// updated.
type forgery struct {
	name string
	run  func(f *forger) ended // returns the end of the last command
}

// forger is a trial of a forged file.
type forger struct {
	*trial
	run *fixture
}

var forgeries = []forgery{
	{"manifest", func(f *forger) ended { return f.checkpoint("MANIFEST.json", f.forgeFile) }},
	{"part file", func(f *forger) ended { return f.checkpoint("part-00000.json", f.forgeFile) }},
	{"megabytes in a file", func(f *forger) ended {
		return f.checkpoint(pick(f.rng, []string{"MANIFEST.json", "part-00000.json", "state.json"}), f.forgeLength)
	}},
	{"megabytes in a model's file", func(f *forger) ended {
		return f.model(pick(f.rng, []string{"config.json", "generation_config.json"}), f.forgeLength)
	}},
	{"many tensors in a header", func(f *forger) ended { return f.model("model.safetensors", f.forgeTensors) }},
	{"extents of a part file", func(f *forger) ended { return f.checkpoint("part-00001.json", f.forgeExtents) }},
	{"state.json", func(f *forger) ended { return f.checkpoint("state.json", f.forgeFile) }},
	{"positions in state.json", func(f *forger) ended { return f.positions() }},
	{"COMMIT", func(f *forger) ended { return f.commit() }},
	{"header of a data file", func(f *forger) ended { return f.checkpoint("data-00000-000.safetensors", f.forgeHeader) }},
	{"blocks of a data file", func(f *forger) ended { return f.checkpoint("data-00001-000.safetensors", f.forgeBlocks) }},
	{"header of model.safetensors", func(f *forger) ended { return f.model("model.safetensors", f.forgeHeader) }},
	{"config.json", func(f *forger) ended { return f.model("config.json", f.forgeFile) }},
	{"generation_config.json", func(f *forger) ended { return f.model("generation_config.json", f.forgeFile) }},
	{"model.safetensors.index.json", func(f *forger) ended { return f.index() }},
	{"vocab.json", func(f *forger) ended { return f.vocabulary("vocab.json") }},
	{"merges.txt", func(f *forger) ended { return f.vocabulary("merges.txt") }},
	{"token file", func(f *forger) ended { return f.tokens() }},
	{"machine", func(f *forger) ended { return f.machine() }},
	{"metrics.jsonl", func(f *forger) ended { return f.metrics() }},
	{"job.yaml of a run", func(f *forger) ended { return f.jobOfRun() }},
	{"run folder of an earlier version", func(f *forger) ended { return f.upgraded() }},
}

// TestForged runs the program on files with valid digests that no writer would produce. They must
// be refused, or read at a cost in proportion to their size. Some must be refused: negative or
// impossible positions, empty documents, and contradictions to the manifest.
func TestForged(t *testing.T) {
	var kinds []string
	for _, k := range forgeries {
		kinds = append(kinds, k.name)
	}
	trials(t, count(*forged), kinds, func(x *trial) string {
		f := &forger{trial: x}
		if x.kind != "run folder of an earlier version" {
			f.run = x.given(x.number / len(kinds) % 2)
		}
		outside := look(x.outside())
		e := forgeries[x.number%len(forgeries)].run(f)
		x.same(outside, look(x.outside()), "the commands")
		if e.code == 0 {
			return "taken"
		}
		return "refused"
	})
}

// TestNothingForged checks the trial itself: unchanged files with recomputed digests are
// accepted.
func TestNothingForged(t *testing.T) {
	as := func(string) {}
	kinds := []string{"MANIFEST.json", "part-00000.json", "state.json", "data-00000-000.safetensors", "config.json"}
	trials(t, 2*len(kinds), kinds, func(x *trial) string {
		f := &forger{trial: x}
		f.run = x.given(x.number / len(kinds))
		e := ended{}
		if x.kind == "config.json" {
			e = f.model(x.kind, as)
		} else if e = f.checkpoint(x.kind, as); f.exported() != f.run.after {
			x.Errorf("went on to other parameters")
		}
		if e.code != 0 {
			x.Errorf("refused, and nothing is forged:\n%s", brief(e.said()))
		}
		return "taken"
	})
}

// step returns the folder of the newest checkpoint.
func (f *forger) step() string { return filepath.Join(f.dir, "run/ckpt", f.run.newest()) }

// forgeFile changes a JSON file.
func (f *forger) forgeFile(path string) {
	v := parseJSON(f.trial, f.read(path))
	forge(f.rng, v)
	f.put(path, v.String())
}

// forgeLength replaces one value by many small ones, up to 64 MB of them.
func (f *forger) forgeLength(path string) {
	v := parseJSON(f.trial, f.read(path))
	n, small := 1<<(16+f.rng.IntN(11)), pick(f.rng, []string{"{}", "[]", "0", `""`, "null", `{"name":"a"}`, strings.Repeat("[", 900) + strings.Repeat("]", 900)})
	list := "[" + strings.Repeat(small+",", n/(len(small)+1)) + small + "]"
	if f.rng.IntN(4) == 0 {
		list = `"` + strings.Repeat("x", n) + `"`
	}
	nodes := v.all()
	pick(f.rng, nodes[1:]).set(list)
	f.put(path, v.String())
}

// forgeTensors adds up to a quarter of a million empty tensors to a safetensors file, with a
// header of up to 20 MB.
func (f *forger) forgeTensors(path string) {
	b := f.read(path)
	n := 8 + binary.LittleEndian.Uint64(b)
	header := strings.TrimSuffix(strings.TrimSpace(string(b[8:n])), "}")
	var more strings.Builder
	kind := pick(f.rng, []string{`"F32"`, `"F8_E4M3"`, `"BOOL"`, `"X"`, `5`})
	for i := range 1 << (10 + f.rng.IntN(9)) {
		fmt.Fprintf(&more, `,"transformer.h.%d.attn.bias%s":{"dtype":%s,"shape":[0],"data_offsets":[0,0]}`, i, pick(f.rng, []string{"", ".x"}), kind)
	}
	header += more.String() + "}"
	f.put(path, string(binary.LittleEndian.AppendUint64(nil, uint64(len(header))))+header+string(b[n:]))
}

// put writes a forged file and logs it.
func (f *forger) put(path, content string) {
	was := string(f.read(path))
	f.write(path, content)
	at := 0
	for at < min(len(was), len(content)) && was[at] == content[at] {
		at++
	}
	f.ran = append(f.ran, fmt.Sprintf("  (%s: %d bytes for %d; near byte %d %q)", filepath.Base(path), len(content), len(was), at, shortened(content[max(0, at-60):], 160)))
}

// forgeExtents changes the extents of elements in a part file.
func (f *forger) forgeExtents(path string) {
	v := parseJSON(f.trial, f.read(path))
	var files []*value
	if list := v.at("files"); list != nil {
		files = list.items
	}
	file := pick(f.rng, files)
	e := pick(f.rng, file.at("extents").items)
	for range 1 + f.rng.IntN(3) {
		target := pick(f.rng, []*value{e.at("lo"), e.at("hi"), e.at("offset"), e.at("tensor"), e.at("codec"), e.at("crc32c"), file.at("header"), file.at("bytes")})
		if stored := e.at("stored"); stored != nil && f.rng.IntN(3) == 0 {
			target = stored
		}
		if f.rng.IntN(2) == 0 {
			target.set(number(f.rng, target.raw))
		} else {
			target.set(pick(f.rng, absurdJSON))
		}
	}
	f.put(path, v.String())
}

// forgeHeader changes the JSON or the length of a safetensors header, or both.
func (f *forger) forgeHeader(path string) {
	b := f.read(path)
	n := binary.LittleEndian.Uint64(b)
	header, rest := b[8:8+n], b[8+n:]
	v := parseJSON(f.trial, header)
	text := string(header)
	if f.rng.IntN(4) > 0 {
		forge(f.rng, v)
		text = v.String()
	}
	claimed := uint64(len(text))
	if f.rng.IntN(3) == 0 {
		claimed = pick(f.rng, []uint64{0, 1, claimed - 1, claimed + 1, uint64(len(b)), 1 << 20, 100_000_000, 100_000_001, 1 << 40, 1<<63 - 1, 1 << 63, 1<<64 - 1, 1<<64 - 8})
	} else if len(text) < int(n) { // the data stays at its offset
		text += strings.Repeat(" ", int(n)-len(text))
		claimed = n
	}
	f.put(path, string(binary.LittleEndian.AppendUint64(nil, claimed))+text+string(rest))
}

// forgeBlocks changes the contents of blocks, which a decoder must survive, and updates the
// checksums of single blocks.
func (f *forger) forgeBlocks(path string) {
	b := f.read(path)
	n := 8 + int(binary.LittleEndian.Uint64(b))
	for range 1 + f.rng.IntN(8) {
		b[n+f.rng.IntN(len(b)-n)] = pick(f.rng, []byte{0, 1, 2, 3, 4, 0x7f, 0x80, 0xff})
	}
	f.put(path, string(b))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crc(b []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(b, castagnoli)) }

// vouch updates all digests of a checkpoint, from the blocks of data files to COMMIT, as far as
// the files that contain them can still be parsed.
func (f *forger) vouch(forged string) {
	if strings.HasPrefix(forged, "data-") {
		f.vouchData(forged)
	}
	if forged != "MANIFEST.json" {
		path := filepath.Join(f.step(), "MANIFEST.json")
		m := parseJSON(f.trial, f.read(path))
		for _, e := range m.at("files").items {
			name, _ := strconv.Unquote(e.at("name").raw)
			b := f.read(filepath.Join(f.step(), name))
			e.at("bytes").set(strconv.Itoa(len(b)))
			if sum := e.at("sha256"); sum != nil {
				sum.set(fmt.Sprintf(`"%x"`, sha256.Sum256(b)))
			} else {
				e.at("crc32c").set(`"` + crc(b) + `"`)
			}
		}
		f.write(path, m.String())
	}
	f.sign(func(fields []string) {})
}

// vouchData updates the digests of a data file in its part file.
func (f *forger) vouchData(name string) {
	b := f.read(filepath.Join(f.step(), name))
	path := filepath.Join(f.step(), "part-"+name[len("data-"):][:5]+".json")
	p := parseJSON(f.trial, f.read(path))
	for _, d := range p.at("files").items {
		if d.at("name").raw != quoted(name) {
			continue
		}
		n, err := strconv.Atoi(d.at("header").raw)
		f.must(err)
		d.at("bytes").set(strconv.Itoa(len(b)))
		d.at("header_crc32c").set(`"` + crc(b[:min(n, len(b))]) + `"`)
		d.at("crc32c").set(`"` + crc(b) + `"`)
		for _, e := range d.at("extents").items {
			f.vouchExtent(e, b, p.at("tensors"))
		}
	}
	f.write(path, p.String())
}

// vouchExtent updates the checksum of an extent of one block.
func (f *forger) vouchExtent(e *value, b []byte, tensors *value) {
	number := func(key string) int {
		n, err := strconv.Atoi(e.at(key).raw)
		f.must(err)
		return n
	}
	offset, n := number("offset"), number("hi")-number("lo")
	if tensors.items[number("tensor")].at("dtype").raw == `"F32"` {
		n *= 4
	}
	if stored := e.at("stored"); stored != nil && len(stored.items) == 1 {
		n, _ = strconv.Atoi(stored.items[0].raw)
	}
	if n <= 1<<18 && offset+n <= len(b) {
		e.at("crc32c").set(`"` + crc(b[offset:offset+n]) + `"`)
	}
}

// sign writes a COMMIT for the current manifest, with its fields changed.
func (f *forger) sign(change func(fields []string)) {
	path := filepath.Join(f.step(), "COMMIT")
	fields := strings.Fields(string(f.read(path)))
	fields[len(fields)-1] = fmt.Sprintf("%x", sha256.Sum256(f.read(filepath.Join(f.step(), "MANIFEST.json"))))
	change(fields)
	f.write(path, strings.Join(fields, " ")+"\n")
}

// checkpoint forges a file of the newest checkpoint and runs all commands that read it.
func (f *forger) checkpoint(name string, how func(path string)) ended {
	how(filepath.Join(f.step(), name))
	f.vouch(name)
	return f.everyReader()
}

// everyReader runs all commands that read the newest checkpoint.
func (f *forger) everyReader() ended {
	step := filepath.Join("run/ckpt", f.run.newest())
	one := []int{1}
	f.zeroth(one, "ckpt", "ls", "run")
	f.zeroth(one, "ckpt", "verify", step)
	f.zeroth(one, "ckpt", "inspect", step)
	f.zeroth(one, "ckpt", "inspect", step, "--json")
	f.zeroth(one, "ckpt", "diff", step, filepath.Join("run/ckpt", f.run.steps[0]))
	f.zeroth(one, "ckpt", "export", step, "--to", "exported")
	return f.resume(f.run)
}

// positions sets a number in state.json to an impossible value.
func (f *forger) positions() ended {
	path := filepath.Join(f.step(), "state.json")
	v := parseJSON(f.trial, f.read(path))
	key := pick(f.rng, []string{"step", "updates", "skipped", "samples", "tokens", "context", ""})
	what := pick(f.rng, []string{"-1", "-9223372036854775808", "9223372036854775808", "1e300", "1.5", `"8"`, "[8]", "{}", "true"})
	switch {
	case key == "":
		v.set(pick(f.rng, []string{"null", "[]", "{}", "5", `"x"`, "", " ", "[[]]", "{}{}"}))
	case f.rng.IntN(6) == 0:
		key, what = "step", number(f.rng, v.at("step").raw)
		if x, err := strconv.ParseFloat(what, 64); err == nil && x == 8 {
			what = "9"
		}
		v.at(key).set(what)
	default:
		v.at(key).set(what)
	}
	f.put(path, v.String())
	f.vouch("state.json")
	e := f.everyReader()
	if e.code == 0 {
		f.Errorf("went on from a state.json that cannot be:\n%s", brief(e.said()))
	}
	return e
}

// commit forges COMMIT but not the manifest. Contradictions between them must be refused.
func (f *forger) commit() ended {
	f.sign(func(fields []string) {
		i := pick(f.rng, []int{0, 1, 3, 5, 7, 9})
		was := fields[i]
		if f.rng.IntN(2) == 0 && i != 0 && i < 6 {
			fields[i] = number(f.rng, fields[i])
		} else {
			fields[i] = pick(f.rng, []string{"", "0", "-1", "2", "9223372036854775807", "9223372036854775808", strings.Repeat("9", 900), "\x1b[2J", "\u202e", "x", "0123456789abcdef", fields[9], "%d", strings.Repeat("a", 100_000)})
		}
		if fields[i] == was {
			fields[i] += "0"
		}
		f.ran = append(f.ran, fmt.Sprintf("  (COMMIT: %q)", shortened(strings.Join(fields, " "), 300)))
	})
	e := f.everyReader()
	if e.code == 0 {
		f.Errorf("went on although COMMIT does not fit:\n%s", brief(e.said()))
	}
	return e
}

// model forges a file of a Hugging Face folder and runs all commands that read it.
func (f *forger) model(name string, how func(path string)) ended {
	f.copyTree(filepath.Join(f.dir, "run/model"), filepath.Join(f.dir, "model"))
	path := filepath.Join(f.dir, "model", name)
	if name == "generation_config.json" {
		f.write(path, `{"bos_token_id": 50256, "eos_token_id": [50256, 1], "temperature": 0.7, "do_sample": true}`)
	}
	how(path)
	return f.everyUse()
}

// everyUse runs all commands that read the folder model.
func (f *forger) everyUse() ended {
	one := []int{1}
	f.zeroth(one, "plan", "--model", "model")
	f.zeroth(one, "fit", "--model", "model", "--gpus", "2", "--gpu-memory", "8GiB")
	f.zeroth(one, "ckpt", "import", "model", "--to", "imported")
	e := f.start(0, "sample", "--run", "model", "--tokens", "3").wait()
	e.out = "" // sampled text is not a message
	f.check(e, []string{"sample", "--run", "model", "--tokens", "3"}, 0, 1, 2)
	return f.zeroth(one, "train", "job.yaml", "--set", "model={from: model, context: 4}", "--set", "train={steps: 1, micro_batch: 1}", "--set", "parallel={ranks: 2, memory: 256MiB}", "--out", "trained")
}

// index forges the index of a model stored in two files.
func (f *forger) index() ended {
	f.zeroth(nil, "ckpt", "export", filepath.Join("run/ckpt", f.run.newest()), "--to", "model", "--shard-size", "8kB")
	path := filepath.Join(f.dir, "model/model.safetensors.index.json")
	if _, err := os.Stat(path); err != nil {
		f.Fatal("the export is in one file: ", err)
	}
	f.forgeFile(path)
	return f.everyUse()
}

// vocabulary forges a file of a tokenizer and trains with it.
func (f *forger) vocabulary(name string) ended {
	f.mkdir(filepath.Join(f.dir, "vocab"))
	path := filepath.Join(f.dir, "vocab", name)
	ids := parseJSON(f.trial, []byte(alphabet()))
	for i, token := range []string{"th", "er", "the", "on"} {
		ids.keys, ids.items = append(ids.keys, quoted(token)), append(ids.items, &value{raw: strconv.Itoa(256 + i)})
	}
	f.write(filepath.Join(f.dir, "vocab/vocab.json"), ids.String())
	f.write(filepath.Join(f.dir, "vocab/merges.txt"), "#version: 0.2\nt h\ne r\nth e\no n\n")
	if name == "vocab.json" {
		f.forgeFile(path)
	} else {
		lines := []string{"#version: 0.2", "t h", "e r", "th e", "o n"}
		lines = slices.Insert(lines, f.rng.IntN(len(lines)+1), pick(f.rng, []string{"", " ", "  ", "t", "t h", "t h e", "\x1b[2J x", "\u202e x", "\x00 \x00", "x y", strings.Repeat("t", 1<<20), strings.Repeat("t ", 70_000), "\xff \xfe", "\r", "#version", "Ġ t", "t\th"}))
		f.put(path, strings.Join(lines, "\n"))
	}
	return f.zeroth([]int{1}, "train", "job.yaml", "--set", "data={text: [text.txt], tokenizer: gpt2, vocab: vocab}", "--set", "train={steps: 1, micro_batch: 1}", "--out", "trained")
}

// tokens forges a token file.
func (f *forger) tokens() ended {
	path := filepath.Join(f.dir, "tokens.bin")
	ids := make([]byte, 2*pick(f.rng, []int{0, 1, 20, 400}))
	for i := range ids {
		ids[i] = byte(f.rng.IntN(pick(f.rng, []int{1, 2, 256})))
	}
	header := make([]byte, 1024)
	for i, x := range []uint32{pick(f.rng, []uint32{20240520, 20240801, 20240802, 0, 1<<32 - 1}), pick(f.rng, []uint32{0, 1, 7, 8, 1<<32 - 1}),
		pick(f.rng, []uint32{0, 1, uint32(len(ids)) / 2, uint32(len(ids)) / 4, 1<<31 - 1, 1 << 31, 1<<32 - 1})} {
		binary.LittleEndian.PutUint32(header[4*i:], x)
	}
	b := append(header[:pick(f.rng, []int{0, 3, 4, 100, 1024, 1024, 1024})], ids...)
	b = append(b, make([]byte, pick(f.rng, []int{0, 0, 1}))...)
	f.write(path, string(b))
	f.ran = append(f.ran, fmt.Sprintf("  (tokens.bin: %d bytes, %x)", len(b), b[:min(16, len(b))]))
	return f.zeroth([]int{1}, "train", "job.yaml", "--set", "data={tokens: [tokens.bin]}", "--set", "train={steps: 1, micro_batch: 1}", "--set", "parallel={ranks: 1}", "--out", "trained")
}

// machine forges a machine file for a simulation.
func (f *forger) machine() ended {
	path := filepath.Join(f.dir, "machine.json")
	f.write(path, string(f.read("../../examples/machine.json")))
	f.forgeFile(path)
	f.zeroth([]int{1}, "fit", "job.yaml", "--gpus", "2", "--gpu-memory", "8GiB", "--machine", "machine.json")
	return f.zeroth([]int{1}, "plan", "job.yaml", "--machine", "machine.json")
}

// metrics forges a line of metrics.jsonl; the run must continue regardless.
func (f *forger) metrics() ended {
	path := filepath.Join(f.dir, "run/metrics.jsonl")
	lines := strings.SplitAfter(string(f.read(path)), "\n")
	i := f.rng.IntN(len(lines) - 1)
	v := parseJSON(f.trial, []byte(lines[i]))
	forge(f.rng, v)
	lines[i] = v.String() + "\n"
	f.put(path, strings.Join(lines, ""))
	e := f.resume(f.run)
	if e.code != 0 {
		f.Errorf("checkpoints are whole, and the run does not go on:\n%s", brief(e.said()))
	}
	return e
}

// jobOfRun damages the job.yaml of a run folder, which ckpt and sample read.
func (f *forger) jobOfRun() ended {
	o := &odds{trial: f.trial}
	path := filepath.Join(f.dir, "run/job.yaml")
	f.put(path, o.damaged(f.read(path)))
	f.zeroth([]int{1}, "ckpt", "ls", "run")
	e := f.start(0, "sample", "--run", "run", "--tokens", "3").wait()
	e.out = ""
	f.check(e, []string{"sample", "--run", "run", "--tokens", "3"}, 0, 1, 2)
	return f.resume(f.run)
}

// upgrades is the folder of run folders written by earlier versions, with the files they need.
const upgrades = "../../cmd/zeroth/testdata/upgrades"

// unpack unpacks a run folder and returns its name and the command that resumes it.
func (x *trial) unpack(archive string) (run string, args []string) {
	x.Helper()
	x.must(os.CopyFS(x.dir, os.DirFS(upgrades)))
	out, err := exec.Command("tar", "xzf", archive, "-C", x.dir).CombinedOutput()
	if err != nil {
		x.Fatalf("the trial itself: tar: %v: %s", err, out)
	}
	run, err = filepath.Rel(upgrades, strings.TrimSuffix(archive, ".tar.gz"))
	x.must(err)
	for _, made := range []string{"model", "adapter"} {
		x.must(os.RemoveAll(filepath.Join(x.dir, run, made)))
	}
	return run, []string{"train", run + "/job.yaml", "--out", run, "--resume", "latest"}
}

// trained returns the parameter files of a run folder.
func (x *trial) trained(run string) tree {
	all := tree{}
	for _, made := range []string{"model", "adapter"} {
		for name, what := range look(filepath.Join(x.dir, run, made)) {
			if strings.HasSuffix(name, ".safetensors") {
				all[made+"/"+name] = what
			}
		}
	}
	return all
}

var resumedOlder sync.Map // by archive: func() (tree, error), the parameters after resuming

// upgraded damages a file of an earlier version's checkpoint, or none. The resumed run must end
// with the same parameters as without damage, or fail.
func (f *forger) upgraded() ended {
	archives, err := filepath.Glob(upgrades + "/*/*.tar.gz")
	f.must(err)
	archive := pick(f.rng, archives)
	once, _ := resumedOlder.LoadOrStore(archive, sync.OnceValues(func() (tree, error) {
		x := &trial{T: &testing.T{}, dir: filepath.Join(scratch, "older-"+strings.ReplaceAll(strings.TrimPrefix(archive, upgrades+"/"), "/", "-")), counts: &tally{}}
		x.mkdir(x.dir)
		run, args := x.unpack(archive)
		err := inFolder(x.dir, args...)
		return x.trained(run), err
	}))
	want, err := once.(func() (tree, error))()
	f.must(err)
	run, args := f.unpack(archive)
	step := run + "/ckpt/step-00000004"
	d := &damage{trial: f.trial, root: f.dir, step: step, file: pick(f.rng, []string{"COMMIT", "MANIFEST.json", "state.json", "part-00000.json", "data-00000-000.safetensors", "../../metrics.jsonl"})}
	whole := f.rng.IntN(4) == 0
	if !whole {
		d.change(pick(f.rng, []func([]byte) []byte{d.flip, d.flip, func(b []byte) []byte { return b[:f.rng.IntN(len(b))] }, func(b []byte) []byte { return append(b, ' ') }}))
	}
	f.ran = append(f.ran, fmt.Sprintf("  (%s, damaged: %v)", d.at(), !whole))
	for _, look := range [][]string{{"ckpt", "verify", run}, {"ckpt", "inspect", run}, {"ckpt", "export", step, "--to", "exported"}, {"eval", run + "/job.yaml", "--run", "exported"}} {
		f.zeroth([]int{1}, look...)
	}
	e := f.zeroth([]int{1}, args...)
	switch {
	case e.code == 0:
		f.same(want, f.trained(run), "resuming")
	case whole:
		f.Errorf("nothing is damaged, and it does not go on")
	}
	return e
}

// modelConfig is the config.json of a model as small as those of the trials.
const modelConfig = `{"model_type": "gpt2", "vocab_size": 256, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}`

// alphabet returns a vocab.json with one token per byte.
func alphabet() string {
	ids := map[string]int{}
	more := rune(256)
	for b := range rune(256) {
		c := b
		if !('!' <= b && b <= '~' || '¡' <= b && b <= '¬' || '®' <= b) {
			c, more = more, more+1
		}
		ids[string(c)] = int(b)
	}
	raw, err := json.Marshal(ids)
	if err != nil {
		panic(err) // cannot fail for names and numbers
	}
	return string(raw)
}
