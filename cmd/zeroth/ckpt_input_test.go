//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"zeroth/checkpoint/vfs"
	"zeroth/tests/nightly"
)

func TestCkptBadInput(t *testing.T) {
	nightly.Long(t)
	trained(t)
	if err := os.Mkdir("r/ckpt/.tmp-step-00000007-0123456789abcdef", 0o777); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"loop": "loop", "nowhere": "gone"} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	const keeps = `; want a number of checkpoints, or {last: 3, every_steps: 1000, best: val_loss}` + "\n"
	for args, want := range map[string]string{
		"ls":             "zeroth: 0 folders given; usage: zeroth ckpt ls DIR\nSee 'zeroth ckpt ls --help'.\n",
		"ls a b":         "zeroth: 2 folders given; usage: zeroth ckpt ls DIR",
		"lss r":          "zeroth: unknown command \"lss\" for \"zeroth ckpt\"\n\nDid you mean this?\n\tls\n",
		"ls gone":        "gone cannot be read: no such file or directory\n",
		"ls a.txt":       "a.txt is a file; want a folder of checkpoints or a run folder\n",
		"verify r/model": "r/model has no checkpoints; want a checkpoint's folder, a folder of checkpoints, or a run folder with some (checkpoint.every)\n",
		"inspect r/ckpt/.tmp-step-00000007-0123456789abcdef": "r/ckpt/.tmp-step-00000007-0123456789abcdef: a save in progress or interrupted: it was never committed\n",
		"diff r":                "zeroth: 1 folder given; usage: zeroth ckpt diff A B",
		"diff r gone":           "gone cannot be read",
		"export r":              "zeroth: 'zeroth ckpt export' needs --to FOLDER, such as: zeroth ckpt export run1 --to model\n",
		"export r --to r":       "--to r: the folder is not empty (ckpt, job.yaml, loss.svg, ...); name a new folder\n",
		"export r --to a.txt":   "--to a.txt is a file; name a new folder\n",
		"export r --to loop":    "--to: stat loop: too many levels of symbolic links; name a folder that can be created\n",
		"export r --to nowhere": "--to: mkdir nowhere: file exists; name a folder that can be created\n",
		"export r --to a.txt/n": "--to: stat a.txt/n: not a directory; name a folder that can be created\n",
		"export r --to n --dtype f8 --shard-size lots": "--dtype f8; want fp32, bf16 or fp16\n--shard-size: \"lots\" is not a size; want a number with its unit, such as 80GiB (2^30 bytes) or 80GB (10^9)\n",
		"prune r":                             "zeroth: 'zeroth ckpt prune' needs --keep RULES, such as: zeroth ckpt prune run1 --keep 3 --dry-run\n",
		"prune r --keep none":                 "--keep: none is not a whole number" + keeps,
		"prune r --keep 0":                    "--keep: 0 is less than 1" + keeps,
		"prune r --keep {lst:1}":              `--keep: there is no rule "lst"` + keeps,
		"prune r/ckpt/step-00000002 --keep 1": "r/ckpt/step-00000002 is a single checkpoint; want a folder of checkpoints or a run folder\n",
	} {
		out, errs := zeroth(t, 2, append([]string{"ckpt"}, strings.Fields(args)...)...)
		if out != "" || !strings.HasPrefix(errs, want) {
			t.Errorf("zeroth ckpt %s:\n%s%swant %s", args, out, errs, want)
		}
	}
	write(t, "cut/model.safetensors.tmp", "half")
	_, errs := zeroth(t, 2, "ckpt", "export", "r", "--to", "cut")
	if want := "--to cut: the folder contains model.safetensors.tmp of an export that was killed or is still writing; remove the folder or name a new one\n"; errs != want {
		t.Errorf("got %swant %s", errs, want)
	}
	write(t, "taken/.lock", "")
	lock, err := vfs.OS{}.Lock("taken/.lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, errs = zeroth(t, 1, "ckpt", "export", "r", "--to", "taken"); !strings.HasPrefix(errs, "zeroth: --to taken is in use by process ") {
		t.Errorf("beside another export: %s", errs)
	}
	_, errs = zeroth(t, 2, "ckpt", "prune", "r", "--keep", "{last: 1, lst: 1}")
	if want := `--keep: there is no rule "lst"` + keeps; errs != want {
		t.Errorf("got %swant %s", errs, want)
	}
}

// TestLongStops checks that a cancelled operation ends with its own exit code and prints nothing
// else.
func TestLongStops(t *testing.T) {
	a := &app{started: true}
	cmd := &cobra.Command{}
	ctx, stop := context.WithCancel(context.Background())
	cmd.SetContext(ctx)
	_, err := a.long(cmd, "verify", 10, func(ctx context.Context, done func(int64)) error {
		stop()
		<-ctx.Done()
		return fmt.Errorf("verify: %w", ctx.Err())
	})
	if code, message := a.verdict(err); code != exitStopped || message != "" {
		t.Errorf("%v: %d %q", err, code, message)
	}
}

func TestCkptHelpAndCompletion(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, wants := range map[string][]string{
		"ckpt":             {"Exit codes: 0 done; 1 failed", "verify      Read every byte", "zeroth ckpt [command] --help"},
		"ckpt export -h":   {"Usage:\n  zeroth ckpt export DIR --to FOLDER\n", "--shard-size bytes", "(default \"5GB\")", "--dtype type"},
		"ckpt prune -h":    {"Usage:\n  zeroth ckpt prune DIR --keep RULES\n", "best: val_loss", "--dry-run"},
		"help ckpt verify": {"The exit code is 1 if", "--json"},
	} {
		out, _ := zeroth(t, 0, strings.Fields(args)...)
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("zeroth %s: no %q in\n%s", args, want, out)
			}
		}
	}
	for args, want := range map[string]string{
		"ckpt e":                  "export\tWrite the parameters as a Hugging Face folder\n:4\n",
		"ckpt verify ":            ":16\n", // completes folders
		"ckpt verify a ":          ":4\n",  // completes nothing
		"ckpt diff a ":            ":16\n",
		"ckpt export r --dtype b": "fp32\nbf16\nfp16\n:4\n",
		"ckpt export r --to ":     ":16\n",
	} {
		out, _ := zeroth(t, 0, append([]string{"__complete"}, strings.Split(args, " ")...)...)
		if out != want {
			t.Errorf("complete %q: %q, want %q", args, out, want)
		}
	}
}
