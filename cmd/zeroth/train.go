package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"zeroth/job"
)

func (a *app) train() *cobra.Command {
	var sets []string
	var out, resume string
	var look probes
	cmd := &cobra.Command{
		Use:   "train JOB.yaml",
		Short: "Train a model as a job file says",
		Long: `Train a model as a job file says. The run folder receives

  job.yaml             the effective configuration, complete
  metrics.jsonl        a line for every step and evaluation
  loss.svg             the losses, drawn
  model/               the final parameters, as Hugging Face stores them:
                       config.json and model.safetensors, and the tokenizer
  ckpt/                checkpoints, if the job file asks for them

Ctrl-C stops at the end of the running step and keeps what is there; once more
quits at once. 'zeroth help job' lists the keys of a job file.`,
		Example: `  zeroth train examples/quickstart.yaml
  zeroth train job.yaml --set zero.stage=1 --set parallel.ranks=2 --out run1
  zeroth train job.yaml --set checkpoint.every=100 --out run1 --resume latest
  zeroth train job.yaml --set 'data.text=["docs/**/*.md"]' --set optimizer.lr=1e-3`,
		Args: oneJob,
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			ctx, stop, err := look.start(cmd.Context())
			if err == nil {
				err = a.runTraining(ctx, args[0], sets, out, resume)
			}
			return cmp.Or(err, stop())
		}),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	cmd.Flags().StringArrayVar(&sets, "set", nil, "replace a `key=value` of the job file, the value in YAML (repeatable)")
	cmd.Flags().StringVar(&out, "out", "", "run `folder`, new or empty (default runs/JOB-TIME)")
	cmd.Flags().StringVar(&resume, "resume", "", "go on from a `checkpoint`: latest, a step, or its folder; with the --out of the run before, its files go on")
	look.flags(cmd.Flags())
	must(cmd.MarkFlagDirname("out"))
	must(cmd.RegisterFlagCompletionFunc("set", completeKey))
	return cmd
}

func oneJob(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return fmt.Errorf("train takes one job file, like: zeroth train examples/quickstart.yaml (there are %d)", len(args))
}

func completeKey(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var keys []string
	for _, k := range job.Keys() {
		if strings.HasPrefix(k, prefix) {
			keys = append(keys, k+"=")
		}
	}
	return keys, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// must is for what can only fail if this program is wrong.
func must(err error) {
	if err != nil {
		panic("zeroth: " + err.Error())
	}
}

func (a *app) runTraining(ctx context.Context, file string, sets []string, out, resume string) error {
	c, err := job.Load(file, sets)
	if err != nil {
		return err
	}
	if resume == "latest" && out == "" && c.Checkpoint.Dir == "" {
		return job.BadInput(errors.New("--resume latest: where are the checkpoints? Give --out with the run folder, or checkpoint.dir in the job file"))
	}
	if out == "" {
		out = defaultFolder(file, time.Now())
	}
	undo, err := makeFolder(out, resume != "")
	if err != nil {
		return err
	}
	defer undo()
	progress := job.NewProgress(a.out)
	defer progress.Close()
	ctx, release := untilSignal(ctx, func() {
		progress.Note("stopping at the end of this step; once more quits at once")
	})
	defer release()
	err = job.Resume(ctx, c, out, resume, progress)
	var by signalled
	switch {
	case err == nil || job.IsInput(err):
		return err
	case !errors.Is(err, context.Canceled) || ctx.Err() == nil:
		return fmt.Errorf("%w\n%s", err, left(out))
	case errors.As(context.Cause(ctx), &by) && by.Signal == syscall.SIGTERM && c.Checkpoint.SaveOnExit:
		return errSaved
	}
	return errStopped
}

// left says what a run that failed has left in its folder: of folders only
// those with something whole in them.
func left(out string) string {
	files, err := os.ReadDir(out)
	if err != nil {
		return "nothing was written"
	}
	var names []string
	for _, f := range files {
		name := f.Name()
		if f.IsDir() {
			name = job.Holds(filepath.Join(out, name))
		}
		if name != "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "nothing was written"
	}
	return fmt.Sprintf("kept in %s: %s", out, strings.Join(names, ", "))
}

// defaultFolder is runs/quickstart-20261121-093812 for quickstart.yaml.
func defaultFolder(file string, now time.Time) string {
	name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	return filepath.Join("runs", name+now.Format("-20060102-150405"))
}

// makeFolder makes the run folder; undo takes it away again if nothing came to
// be in it. A folder with something in it is refused: a run is never written
// over another, only resumed. So is one that cannot be written to, before work
// is put in.
func makeFolder(path string, resumed bool) (undo func(), err error) {
	made := missing(path)
	undo = func() {
		for _, folder := range made {
			os.Remove(folder) // fails if it is not empty
		}
	}
	if err := os.MkdirAll(path, 0o777); err != nil {
		undo()
		return nil, job.BadInput(fmt.Errorf("--out: %w; name a folder that can be made", err))
	}
	files, err := os.ReadDir(path)
	if err != nil {
		return nil, job.BadInput(fmt.Errorf("--out: %w", err))
	}
	if len(files) > 0 && !resumed {
		return nil, job.BadInput(fmt.Errorf("--out %s: the folder is not empty (%s); a run is never written over another: name a new folder, remove this one, or go on from its checkpoints with --resume latest",
			path, some(files, 3)))
	}
	probe, err := os.CreateTemp(path, ".probe")
	if err != nil {
		undo()
		return nil, job.BadInput(fmt.Errorf("--out %s: nothing can be written there: %w", path, err))
	}
	return undo, errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// missing are the folders of a path that are not there, the deepest first.
func missing(path string) (folders []string) {
	for {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return folders
		}
		folders = append(folders, path)
		path = filepath.Dir(path)
	}
}

// some are the first n names.
func some(files []os.DirEntry, n int) string {
	var names []string
	for _, f := range files[:min(n, len(files))] {
		names = append(names, f.Name())
	}
	if len(files) > n {
		names = append(names, "...")
	}
	return strings.Join(names, ", ")
}
