package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"zeroth/checkpoint"
	"zeroth/checkpoint/vfs"
	"zeroth/config"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/state"
)

// hooks inject faults in tests.
var hooks setup.Hooks

func (a *app) train() *cobra.Command {
	var sets []string
	var out, resume string
	var look probes
	var in member
	var shadow bool
	cmd := &cobra.Command{
		Use:        "train JOB.yaml",
		Short:      "Train a model from a job file",
		SuggestFor: []string{"run", "start", "resume", "pretrain", "finetune"},
		Long: `Train a model from a job file. The run folder receives

  job.yaml             the complete configuration
  metrics.jsonl        one line per step and evaluation
  loss.svg             a plot of the losses
  model/               the final parameters in Hugging Face format, with the
                       tokenizer
  ckpt/                checkpoints, if the job asks for them
  algorithms.json      on GPUs: the algorithms of matrix products
  flight/              the last operations of each rank, if a rank was lost or
                       diverged, or after SIGUSR1 (see 'zeroth flight')

While a run uses the folder, no other run, save or prune may. Ctrl-C, SIGTERM and
SIGHUP stop after the current step, or within a batch of an evaluation, and write the
results so far; a second Ctrl-C quits at once. 'zeroth help job' lists the keys of a
job file. A job file named - is read from standard input.`,
		Example: `  zeroth train examples/quickstart.yaml
  zeroth train job.yaml --set zero.stage=1 --set parallel.ranks=2 --out run1
  zeroth train job.yaml --set checkpoint.every=100 --out run1 --resume latest
  zeroth train - --quiet --log json <job.yaml 2>log.jsonl
  zeroth train job.yaml --set 'data.text=["docs/**/*.md"]' --set optimizer.lr=1e-3`,
		Args: oneJob,
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			if err := in.find(); err != nil {
				return err
			}
			if tasks := os.Getenv("SLURM_NTASKS"); in.World <= 1 && tasks != "" && tasks != "1" && os.Getenv("SLURM_STEP_ID") == "" {
				a.note(fmt.Sprintf("Slurm gave this job %s tasks, but only one process runs: to use all, start it with srun zeroth train", tasks))
			}
			if in.Rank > 0 && !in.logAll {
				a.quiet = true
			}
			if a.log != nil {
				a.log = a.log.With("rank", in.Rank)
			}
			progress := a.progress()
			defer progress.Close()
			a.trains = true
			w := &waiting{Progress: progress, saved: make(chan struct{}), lead: func() report.Progress {
				a.quiet = false
				return a.progress()
			}}
			defer func() { w.Close() }()
			ctx, release := a.untilSignal(cmd.Context(), func() {
				afterEcho(a.out)
				progress.Event(report.Note("stopping after this step; press Ctrl-C again to quit at once"))
			}, func(by signalled) { a.giveUp(w, by) })
			defer release()
			dumps, done := whenAsked()
			defer done()
			o := job.Options{Out: out, Resume: resume, Observer: w, Dump: dumps, Saved: func() { close(w.saved) }, Hooks: hooks, Shadow: shadow}
			c, leave, err := a.prepare(ctx, args[0], sets, &o, &in)
			defer leave()
			if err != nil {
				return err
			}
			if in.Rank > 0 {
				look = probes{} // process 0 writes them
			}
			stop, err := look.start(&o)
			if err == nil {
				err = job.Run(ctx, c, o)
			}
			return a.advised(exitError(cmp.Or(err, stop(err)), o.Out), cmd, &in, o.Out)
		}),
		ValidArgsFunction: completeJob,
	}
	setsFlag(cmd, &sets)
	cmd.Flags().StringVar(&out, "out", "", "run `folder`, new or empty (default runs/JOB-TIME)")
	cmd.Flags().StringVar(&resume, "resume", "", "continue from a `checkpoint`: latest, best, a step, or its folder, also s3://bucket/folder; with the same --out, append to the same files")
	cmd.Flags().BoolVar(&shadow, "shadow", false, "repeat each GPU operation on the CPU, and stop at the first that differs")
	look.addFlags(cmd.Flags())
	in.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&in.logAll, "log-all-ranks", false, "let every process print, not only process 0")
	must(cmd.MarkFlagDirname("out"))
	must(cmd.RegisterFlagCompletionFunc("resume", wordsOrFile("latest", "best")))
	return cmd
}

// waiting is the progress of a run that records whether training has begun, and whether it has ended
// and all of its state is saved.
type waiting struct {
	report.Progress
	begun atomic.Bool
	saved chan struct{}          // closed then
	lead  func() report.Progress // of a process that reports for the run from now on
}

func (w *waiting) Event(e report.Event) {
	switch e.(type) {
	case report.Header:
		w.begun.Store(true)
	case report.Lead:
		w.Progress = w.lead()
	}
	w.Progress.Event(e)
}

// giveUp ends the process if a run does not react to a signal, unless it is training or saving: a
// step may take long, but everything before the first one can be repeated, and so can the export after
// the last save. Ctrl-C does not cut that short, because a second one does.
func (a *app) giveUp(w *waiting, by signalled) {
	when := "before step 1"
	if w.begun.Load() {
		<-w.saved
		if by.Signal == os.Interrupt {
			return
		}
		time.Sleep(patientWork)
		when = "after the last save; continue with --resume latest"
	}
	code := exitFailure
	if by.Signal == os.Interrupt {
		code = exitStopped
	} else if dir := a.saves.Load(); dir != nil {
		if _, err := checkpoint.Resolve(*dir, "latest"); err == nil {
			code = exitAgain
		}
	}
	a.complain(code, fmt.Sprintf("zeroth: %v %s", by, when))
	quit(code)
}

// completeJob completes the argument of a command that takes a job file.
func completeJob(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

func oneJob(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	if advice := misplaced(cmd, args); advice != "" {
		return errors.New(advice)
	}
	return fmt.Errorf("want one job file, such as: zeroth train examples/quickstart.yaml (%s given); 'zeroth init' writes one", count(len(args), "argument"))
}

// oneOf completes a flag whose value is one of names.
func oneOf(names ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)
}

// wordsOrFile completes a flag whose value is one of names or a file.
func wordsOrFile(names ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(names, cobra.ShellCompDirectiveDefault)
}

// setsFlag declares --set.
func setsFlag(cmd *cobra.Command, p *[]string) {
	cmd.Flags().StringArrayVar(p, "set", nil, "set a `key=value` of the job file, the value in YAML (repeatable)")
	must(cmd.RegisterFlagCompletionFunc("set", completeKey))
}

// completeKey completes key=value: keys, and values that are one of a few words.
func completeKey(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if key, part, ok := strings.Cut(prefix, "="); ok {
		k, _ := config.Explain(key)
		var values []string
		for _, c := range k.Choices {
			if strings.HasPrefix(c, part) {
				values = append(values, key+"="+c)
			}
		}
		return values, cobra.ShellCompDirectiveNoFileComp
	}
	var keys []string
	for _, k := range config.Keys() {
		if strings.HasPrefix(k, prefix) {
			keys = append(keys, k+"=")
		}
	}
	return keys, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// must panics on an error that only a bug in this program can cause.
func must(err error) {
	if err != nil {
		panic("zeroth: " + err.Error())
	}
}

// progress returns the observer that reports a run's progress.
func (a *app) progress() report.Progress {
	switch {
	case a.quiet:
		return report.NewProgress(io.Discard)
	case a.log != nil:
		return report.NewRecords(a.log)
	}
	return report.NewProgress(a.out)
}

// prepare reads the job before it touches any file, names the run folder and joins the
// other processes. The caller must call leave after the run, or after an error.
func (a *app) prepare(ctx context.Context, file string, sets []string, o *job.Options, in *member) (c *spec.Job, leave func(), err error) {
	undo := func() {}
	leave = func() { undo() }
	if f := os.Stdin; file == "-" && term.IsTerminal(int(f.Fd())) {
		a.note("reading the job from the terminal; end it with Ctrl-D")
	}
	machine := a.machine(ctx, in.World, in.Ranks)
	machine.Resumes = o.Resume != ""
	if c, err = machine.Load(file, sets); err != nil {
		return nil, leave, err
	}
	if (o.Resume == "latest" || o.Resume == "best") && o.Out == "" && c.Checkpoint.Dir == "" {
		return nil, leave, input.BadInput(errors.New("--resume " + o.Resume + " needs a folder of checkpoints; name the run folder with --out, or set checkpoint.dir in the job file"))
	}
	if o.Out == "" && in.Rank == 0 { // the other processes get the folder from this one
		o.Out, undo = ownFolder(defaultFolder(file, time.Now()))
	}
	a.open = 64 + 2*c.Parallel.Ranks + 4*in.World // files of saves and offloading; to each process, connections and memory
	saves := cmp.Or(c.Checkpoint.Dir, filepath.Join(cmp.Or(o.Out, defaultFolder(file, time.Now())), state.CheckpointFolder))
	a.saves.Store(&saves)
	exit, err := in.enter(ctx, c, o, a.note)
	if err != nil {
		return nil, leave, err
	}
	return c, func() { exit(); undo() }, nil
}

// exitError maps the error of a run to the one that decides exit code and message.
func exitError(err error, out string) error {
	var stopped *job.Stopped
	var lost *job.Lost
	var by signalled
	switch {
	case err == nil || input.IsInput(err) || errors.Is(err, vfs.ErrLocked) || errors.As(err, new(job.Slow)):
		return err
	case errors.As(err, &lost) && (lost.Checkpoint != "" || !lost.Begun), errors.Is(err, job.ErrElsewhere) && errors.As(err, &stopped) && stopped.Checkpoint != "":
		return resumable{err}
	case errors.As(err, &stopped) && stopped.Late:
		return err
	case !errors.As(err, &stopped) || errors.Is(err, job.ErrElsewhere):
		return fmt.Errorf("%w\n%s", err, saved(out))
	case errors.As(err, &by) && by.Signal != os.Interrupt && stopped.Checkpoint != "":
		return resumable{err}
	case errors.As(err, &by) && by.Signal != os.Interrupt:
		return fmt.Errorf("%w\n%s", err, saved(out))
	}
	return interrupted{stopped}
}

// advised adds to the error of a run that Ctrl-C stopped how to continue it. Process 0 prints it.
func (a *app) advised(err error, cmd *cobra.Command, in *member, out string) error {
	var by interrupted
	var stopped *job.Stopped
	switch {
	case !errors.As(err, &by):
		return err
	case in.Rank > 0:
		return errStopped
	case !errors.As(err, &stopped) || stopped.Checkpoint == "":
		return err
	case in.World > 1:
		return interrupted{fmt.Errorf("%w\ncontinue with the same command and --out %s --resume latest", err, quoted(out))}
	}
	words := []string{quoted(os.Args[0])}
	for _, w := range a.args {
		if w == "-" {
			w = filepath.Join(out, "job.yaml")
		}
		words = append(words, quoted(w))
	}
	if !cmd.Flags().Changed("out") {
		words = append(words, "--out", quoted(out))
	}
	if cmd.Flag("resume").Value.String() != "latest" {
		words = append(words, "--resume latest") // the last one counts
	}
	return interrupted{fmt.Errorf("%w\ncontinue with: %s", err, strings.Join(words, " "))}
}

// saved describes what a failed run has written to its folder. Subfolders count only if
// they contain something complete.
func saved(out string) string {
	files, err := os.ReadDir(out)
	if err != nil {
		return "nothing was written"
	}
	var names []string
	for _, f := range files {
		name := f.Name()
		if strings.HasPrefix(name, ".") { // the lock of a process that still uses the folder
			continue
		}
		if f.IsDir() {
			name = state.Holds(filepath.Join(out, name))
		}
		if name != "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "nothing was written"
	}
	return fmt.Sprintf("saved to %s: %s", out, strings.Join(names, ", "))
}

// ownFolder creates a folder that no other run has: name, or name with a number appended,
// because several runs may start in the same second. undo removes it if it is still empty.
// If no folder can be created, the run will report it.
func ownFolder(name string) (own string, undo func()) {
	made := job.Missing(filepath.Dir(name))
	err := os.MkdirAll(filepath.Dir(name), 0o777)
	own = name
	for n := 2; err == nil; n++ {
		if err = os.Mkdir(own, 0o777); err == nil {
			made = append([]string{own}, made...)
			break
		}
		if errors.Is(err, os.ErrExist) {
			own, err = fmt.Sprintf("%s-%d", name, n), nil
		}
	}
	return own, func() {
		for _, folder := range made {
			_ = os.Remove(folder) // fails if it is not empty
		}
	}
}

// defaultFolder returns the default run folder, such as
// runs/quickstart-20261121-093812 for quickstart.yaml.
func defaultFolder(file string, now time.Time) string {
	name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	if file == "-" {
		name = "stdin"
	}
	return filepath.Join("runs", name+now.Format("-20060102-150405"))
}
