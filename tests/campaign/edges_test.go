//go:build campaign && linux

package campaign

import (
	"compress/gzip"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// edges are the kinds of TestJobs that vary the surroundings of a command: the names and types of
// its files, its environment, and concurrent processes.
var edges = []oddity{
	{"special output", (*odds).output},
	{"names that do not print", func(o *odds) (ended, bool) { return o.named(), false }},
	{"empty argument", func(o *odds) (ended, bool) { return o.empty(), true }},
	{"patterns of files", func(o *odds) (ended, bool) { return o.patterns(), false }},
	{"long lines", func(o *odds) (ended, bool) { return o.long(), false }},
	{"variables of launchers", (*odds).launched},
	{"a world and another user", (*odds).intruded},
	{"several at once", func(o *odds) (ended, bool) { return o.together(), false }},
}

// made copies a run to a path and returns the path of its model.
func (o *odds) made(to string) (model string) {
	f, err := fixtures[0].make()
	o.must(err)
	o.copyTree(filepath.Join(f.home, "run"), filepath.Join(o.dir, to))
	return filepath.Join(to, "model")
}

// output gives a command an output path that is not a regular file. A refusal must not change it.
func (o *odds) output() (e ended, refuse bool) {
	model := o.made("made")
	path, kind := filepath.Join(o.dir, "out.svg"), pick(o.rng, append([]string{"folder", "link to a FIFO", "link to nothing", "link to itself", "link to a file"}, specials...))
	switch to, link := strings.CutPrefix(kind, "link to "); {
	case link:
		o.must(os.Symlink(map[string]string{"a FIFO": "fifo", "nothing": "nowhere", "itself": "out.svg", "a file": "binary"}[to], path))
	case kind == "folder":
		o.mkdir(filepath.Join(path, "deeper"))
	default:
		o.mknod(path, kind)
		refuse = true
	}
	job := o.job(tiny)
	args := pick(o.rng, [][]string{
		{"plot", "made", "--out", "out.svg"}, {"plan", job, "--timeline", "out.svg"}, {"plan", job, "--stages", "out.svg"}, {"plan", job, "--machine", "h100", "--trace", "out.svg"},
		{"tokenize", "text.txt", "--tokenizer", "bytes", "--out", "out.svg"}, {"init", "quickstart", "out.svg"}, {"man", "out.svg"},
		{"ckpt", "export", "made", "--to", "out.svg"}, {"ckpt", "import", model, "--to", "out.svg"}, {"sample", "--run", "made", "--tokens", "0", "--cpuprofile", "out.svg"},
		{"train", job, "--out", "out.svg"}, {"train", job, "--out", "run", "--trace", "out.svg"}, {"train", job, "--out", "run", "--timeline", "out.svg"}, {"train", job, "--out", "run", "--cpuprofile", "out.svg"},
	})
	before := look(o.dir)
	if e = o.zeroth([]int{1}, args...); e.code != 0 {
		o.same(before, look(o.dir), "a refusal")
	}
	o.ran = append(o.ran, "  (out.svg is a "+kind+")")
	return e, refuse
}

// named gives folders names with characters that a terminal would act on or not show.
func (o *odds) named() ended {
	in := "evil" + strings.Join([]string{pick(o.rng, invisible), pick(o.rng, []string{"\x1b[31m", "\x1b]0;x\a", "\r", "\b", "\x9b31m", "\xc2\x9b31m"}), pick(o.rng, invisible)}, "x")
	job, run, first := in+"/job.yaml", in+"/r", in+"/r/ckpt/step-00000004"
	model := o.made(run)
	o.write(filepath.Join(o.dir, job), tiny)
	o.write(filepath.Join(o.dir, in, "text.txt"), prose(2000))
	args := pick(o.rng, [][]string{
		{"ckpt", "ls", run}, {"ckpt", "ls", run, "--json"}, {"ckpt", "inspect", run}, {"ckpt", "inspect", first, "--json"}, {"ckpt", "verify", run}, {"ckpt", "verify", first, "--json"}, {"ckpt", "diff", run, first},
		{"ckpt", "export", first, "--to", in + "/m"}, {"ckpt", "import", model, "--to", in + "/c"}, {"ckpt", "import", model, "--to", run + "/ckpt"}, {"ckpt", "prune", run, "--keep", "1"}, {"ckpt", "prune", first, "--keep", "1"},
		{"plan", job}, {"plan", job, "--json"}, {"fit", job, "--gpus", "2", "--gpu-memory", "1GiB"}, {"plan", "--model", model}, {"plan", in}, {"plot", run, "--out", in + "/x.svg"}, {"plot", in, "--out", in + "/x.svg"},
		{"model", model}, {"doctor", in}, {"eval", job, "--run", run}, {"init", "quickstart", in + "/j.yaml"}, {"init", in}, {"tokenize", job, "--tokenizer", "bytes", "--out", in + "/t.bin"}, {"tokenize", in + "/*", "--tokenizer", in, "--out", "x"},
		{"train", job, "--out", in + "/again"}, {"train", job, "--out", run}, {"train", job, "--out", run, "--resume", "latest"}, {"train", job, "--out", in + "/b", "--resume", first}, {"flight", run}, {"sample", "--run", in}, {in}, {"ckpt", in}, {"help", in}, {"--" + in},
		{"launch", "-n", "1", "--", "train", job, "--out", in + "/l"}, {"train", job, "--set", "data.text=[" + in + "]"}, {"train", job, "--set", in + "=1"}, {"ckpt", "ls", in, "--log", "json"},
	})
	return o.zeroth([]int{1}, args...)
}

// empty leaves an argument empty, as a script with an unset variable does.
func (o *odds) empty() ended {
	model, job := o.made("made"), o.job(tiny)
	args := pick(o.rng, [][]string{
		{"plan", job}, {"fit", job, "--gpus", "2", "--gpu-memory", "1GiB"}, {"train", job, "--out", "run"}, {"train", job, "--out", "run", "--resume", "latest"}, {"train", job, "--out", "run", "--set", "train.steps=1"},
		{"ckpt", "ls", "made"}, {"ckpt", "verify", "made"}, {"ckpt", "inspect", "made"}, {"ckpt", "diff", "made", "made"}, {"ckpt", "prune", "made", "--keep", "1"}, {"ckpt", "export", "made", "--to", "e"}, {"ckpt", "import", model, "--to", "run"},
		{"sample", "--run", "made"}, {"eval", job, "--run", "made"}, {"plot", "made", "--out", "x.svg"}, {"model", model}, {"doctor", "folder"}, {"flight", "made"}, {"bench", "gemm"}, {"help", "job"}, {"man", "folder"},
		{"tokenize", "text.txt", "--tokenizer", "bytes", "--out", "t.bin"}, {"init", "quickstart", "new.yaml"}, {"launch", "-n", "2", "--", "train", job},
	})
	at := 1 + o.rng.IntN(len(args)-1)
	for strings.HasPrefix(args[at], "-") || args[0] == "ckpt" && at == 1 || args[0] == "launch" && at == 4 {
		at = 1 + o.rng.IntN(len(args)-1)
	}
	args = slices.Clone(args)
	args[at] = ""
	return o.zeroth([]int{1}, args...)
}

// patterns searches deep folders with patterns that can match each file in thousands of ways.
func (o *odds) patterns() ended {
	o.write(filepath.Join(o.dir, "deep.txt"), "x")
	for _, name := range []string{"d", "e"} {
		dir := filepath.Join(o.dir, strings.Repeat(name+"/", 40))
		o.mkdir(dir)
		o.write(filepath.Join(dir, "leaf.txt"), prose(2000))
	}
	o.must(os.Symlink("..", filepath.Join(o.dir, "d/d/up")))
	root := pick(o.rng, []string{"", "", "d/", "./", "d/d/", "./d/", "/proc/", "**/../"})
	pattern := root
	for range 1 + o.rng.IntN(9) {
		pattern += pick(o.rng, []string{"**/", "**/", "**/", "*/", "**/**/", "**/d/", "**/*/", "{d,e,**}/", "**d/", "[d-e]/"})
	}
	pattern += pick(o.rng, []string{"*.zzz", "*.zzz", "leaf.*"})
	return pick(o.rng, []func() ended{
		func() ended {
			return o.zeroth([]int{1}, o.train(o.job(strings.Replace(tiny, "text.txt", fmt.Sprintf("%q", pattern), 1)))...)
		},
		func() ended {
			return o.zeroth([]int{1}, "tokenize", pattern, "--tokenizer", "bytes", "--out", "out.bin")
		},
	})()
}

// long gives commands input with lines of many megabytes, or with many empty lines.
func (o *odds) long() ended {
	n := pick(o.rng, []int{1, 4, 16, 64}) << 20
	body := pick(o.rng, []string{"\n", "a", " ", "[", "{\"text\":", "\\u0061", "\x00", "\u2028", "{}\n", "é", "\r", "9"})
	if body == "{}\n" { // at 1 µs each, 64 MiB would take 20 s
		n = min(n, 4<<20)
	}
	text := pick(o.rng, []string{"", `{"text": "`, `{"step": 1, "loss": "`, `{"step": 1, "loss": `}) + strings.Repeat(body, n/len(body)) + pick(o.rng, []string{"", "\n", `"}` + "\n", "}\n" + `{"step": 2, "loss": 1}` + "\n"})
	o.ran = append(o.ran, fmt.Sprintf("  (%d bytes: %q)", len(text), shortened(text, 60)))
	return pick(o.rng, []func() ended{
		func() ended {
			o.made("made")
			o.write(filepath.Join(o.dir, "made/metrics.jsonl"), text)
			return o.zeroth([]int{1}, "plot", "made", "--out", "out.svg")
		},
		func() ended {
			o.squeeze("long.jsonl.gz", text)
			return o.zeroth([]int{1}, "tokenize", "long.jsonl.gz", "--format", "text", "--tokenizer", "bytes", "--out", "out.bin")
		},
		func() ended {
			o.squeeze("long.jsonl.gz", text)
			return o.zeroth([]int{1}, append(o.train(o.job(tiny)), "--set", "data={documents: [long.jsonl.gz]}")...)
		},
		func() ended {
			o.write(filepath.Join(o.dir, "long.jsonl"), text)
			return o.zeroth([]int{1}, append(o.train(o.job(tiny)), "--set", "data={documents: [long.jsonl]}")...)
		},
		func() ended { return o.zeroth([]int{1}, o.train(o.job(text))...) },
	})()
}

// squeeze writes a file as gzip.
func (o *odds) squeeze(name, text string) {
	f, err := os.Create(filepath.Join(o.dir, name))
	o.must(err)
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	o.must(err)
	_, err = z.Write([]byte(text))
	o.must(err)
	o.must(z.Close())
	o.must(f.Close())
}

// places lists the variables with which launchers number processes. One without its partner must
// be refused, unless it is also set for other purposes.
var places = []struct {
	rank, world string
	loose       bool
}{
	{"ZEROTH_RANK", "ZEROTH_WORLD_SIZE", false}, {"RANK", "WORLD_SIZE", true}, {"PET_NODE_RANK", "PET_NNODES", false}, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", false},
	{"PMI_RANK", "PMI_SIZE", false}, {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", true}, {"JOB_COMPLETION_INDEX", "ZEROTH_WORLD_SIZE", false},
	{"SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", false}, {"LWS_WORKER_INDEX", "LWS_GROUP_SIZE", false},
}

// launched sets half of a launcher's variables, or odd values.
func (o *odds) launched() (e ended, refuse bool) {
	p := pick(o.rng, places)
	odd := func() string {
		return pick(o.rng, []string{"0", "1", "2", "3", "65537", "-1", "", " ", "x", "1e3", "\x1b[31m", "\u202e1", "99999999999999999999", "1:3"})
	}
	set := func(name, value string) { o.env = append(o.env, name+"="+value) }
	switch o.rng.IntN(4) {
	case 0:
		set(p.rank, pick(o.rng, []string{"0", "1", "7"}))
		refuse = !p.loose
	case 1:
		set(p.world, pick(o.rng, []string{"2", "8"}))
		refuse = !p.loose
	default:
		set(p.rank, odd())
		set(p.world, odd())
		for _, name := range []string{"ZEROTH_ADDR", "MASTER_ADDR", "MASTER_PORT", "ZEROTH_LOCAL_RANK", "SLURM_STEP_NODELIST", "PMI_FD", "ZEROTH_TOKEN", "ZEROTH_RESTART_COUNT"} {
			if o.rng.IntN(3) == 0 {
				set(name, pick(o.rng, []string{odd(), "127.0.0.1:1", "nowhere.invalid:29400", "[::1]:x", "node[001-"}))
			}
		}
	}
	o.ran = append(o.ran, fmt.Sprintf("  (%q)", o.env))
	return o.zeroth([]int{1, 75}, append(o.train(o.job(tiny)), "--set", "parallel.join=500ms")...), refuse
}

// intruded runs a world of two processes, one of them started by another user, who may also have
// occupied the path of the token. They train only if both were given the same token.
func (o *odds) intruded() (e ended, refuse bool) {
	if os.Getuid() != 0 {
		o.Skip("only root starts processes of other users")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	o.must(err)
	o.must(l.Close())
	nobody := 65534
	o.must(os.Chmod(o.dir, 0o1777)) // like /tmp
	refuse = o.rng.IntN(4) > 0
	if !refuse {
		o.env = append(o.env, "ZEROTH_TOKEN=of both, and of no others")
	} else if o.rng.IntN(2) == 0 {
		o.squat(filepath.Join(o.dir, "zeroth-user-0"), nobody)
	}
	args := func(rank string) []string {
		return append(o.train("job.yaml"), "--set", "parallel.join=3s", "--world", "2", "--rank", rank, "--addr", l.Addr().String())
	}
	o.job(tiny)
	other := &odds{trial: &trial{T: o.T, rng: o.rng, dir: o.dir, kind: o.kind, counts: o.counts, env: o.env, user: &syscall.Credential{Uid: uint32(nobody), Gid: uint32(nobody)}}}
	p, q := o.start(0, args("0")...), other.start(0, args("1")...)
	e, f := p.wait(), q.wait()
	codes := []int{1, 2, 75}
	if !refuse {
		codes = []int{0}
	}
	o.check(e, args("0"), codes...)
	o.check(f, args("1"), codes...)
	return e, refuse
}

// squat creates something that belongs to another user at a path.
func (o *odds) squat(path string, user int) {
	switch o.rng.IntN(4) {
	case 0:
		o.mkdir(path)
		o.write(filepath.Join(path, "token"), strings.Repeat("0", 64))
		o.must(os.Chown(filepath.Join(path, "token"), user, user))
	case 1:
		o.must(os.Symlink(o.outside(), path))
	case 2:
		o.write(path, strings.Repeat("0", 64))
	case 3:
		o.mknod(path, "FIFO")
	}
	o.must(os.Lchown(path, user, user))
	o.ran = append(o.ran, "  ("+path+" is another user's)")
}

// together runs the same command two to four times concurrently. Each process replaces a picture
// as a whole; of files that are never overwritten, exactly one process creates it.
func (o *odds) together() ended {
	model, job := o.made("made"), o.job(tiny)
	args, all := []string(nil), o.rng.IntN(2) == 0
	if all {
		args = pick(o.rng, [][]string{{"plot", "made", "--out", "one"}, {"plan", job, "--timeline", "one"}, {"plan", job, "--stages", "one"}, {"plan", job, "--machine", "h100", "--trace", "one"}})
		args[len(args)-1] += ".svg"
	} else {
		args = pick(o.rng, [][]string{{"tokenize", "text.txt", "--tokenizer", "bytes", "--out", "one"}, {"init", "quickstart", "one"}, {"ckpt", "export", "made", "--to", "one"}, {"ckpt", "import", model, "--to", "one"}, {"train", job, "--out", "one"}})
	}
	var running []*process
	for range 2 + o.rng.IntN(3) {
		running = append(running, o.start(0, args...))
	}
	done, e := 0, ended{}
	for _, p := range running {
		e = p.wait()
		o.check(e, args, 0, 1, 2)
		if e.code == 0 {
			done++
		}
	}
	if done == 0 || all != (done == len(running)) {
		o.Errorf("%d of %d are done", done, len(running))
	}
	if made := look(filepath.Join(o.dir, args[len(args)-1])); all {
		one := args[len(args)-1]
		args[len(args)-1] = "alone.svg"
		o.zeroth(nil, args...)
		o.same(look(filepath.Join(o.dir, "alone.svg")), made, "several at once, "+one)
	}
	o.swept()
	e.code = 0
	return e
}

// swept checks that no temporary files are left.
func (x *trial) swept() {
	x.Helper()
	for name := range look(x.dir) {
		if strings.HasPrefix(filepath.Base(name), ".zeroth-tmp-") {
			x.Errorf("left behind: %s", name)
		}
	}
}
