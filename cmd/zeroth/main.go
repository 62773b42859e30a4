// Command zeroth trains language models, sharded over ranks as ZeRO and FSDP do.
//
// This package contains flags, signals, exit codes and output for people, one file per command.
// Everything that a program without a terminal could need is in job and below. Begin with main.go
// and train.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zeroth/collective/mpi"
	"zeroth/collective/rendezvous"
	"zeroth/config"
	"zeroth/config/words"
	"zeroth/internal/input"
	"zeroth/internal/launch"
	"zeroth/internal/machine"
	"zeroth/internal/show"
	"zeroth/job"
	"zeroth/job/state"
)

// Exit codes, which the help of the command lists.
const (
	exitDone    = launch.ExitDone
	exitFailure = launch.ExitFailure
	exitInput   = launch.ExitInput
	exitAlone   = launch.ExitAlone
	exitLeft    = launch.ExitLeft
	exitAgain   = launch.ExitAgain // stopped by SIGTERM, SIGHUP or a lost process, with a checkpoint to resume from; or some process never joined
	exitStopped = 130              // 128 + SIGINT, as in shells
)

func main() {
	// A panic ends the process by SIGABRT and prints the stacks of all goroutines.
	// Go's exit code for a panic is 2, which here means a user's mistake.
	debug.SetTraceback("crash")
	ignoreFileSizeSignal()
	code := run(os.Args[1:], os.Stdout, os.Stderr)
	time.AfterFunc(time.Second, func() { os.Exit(code) }) // MPI may hang while it shuts down
	mpi.Exit(code)
	os.Exit(code)
}

// errStopped reports that a command stopped because it was asked to.
var errStopped = errors.New("stopped")

// resumable is the error of a run that was stopped by SIGTERM, SIGHUP or a lost process,
// and has a checkpoint to resume from.
type resumable struct{ error }

func (r resumable) Unwrap() error { return r.error }

// interrupted is the error of a run that Ctrl-C stopped, which says how to continue it.
type interrupted struct{ error }

func (i interrupted) Unwrap() error { return i.error }

// errFound reports that a check found a problem, which it has already printed.
var errFound = errors.New("found")

// app is one call of the command.
type app struct {
	out  io.Writer
	errs io.Writer
	args []string // of the command
	open int      // file descriptors that the command needs at most, about; 0: few
	stopping
	saves   atomic.Pointer[string] // folder of the run's checkpoints; nil until it is known
	trains  bool                   // results are files, so losing the output does not change the exit code
	started bool                   // arguments and flags were right; errors before that are the user's

	quiet  bool         // --quiet: print only results and errors
	format string       // of --log: "json", "text", or empty
	level  string       // --log-level
	log    *slog.Logger // records for --log; nil if people read the output
}

// run executes the command and returns its exit code.
func run(args []string, out, errs io.Writer) int {
	a := &app{args: args}
	defer a.begin()()
	var o *output
	a.out, o = a.outputTo(out)
	a.errs, _ = a.outputTo(errs)
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.errs)
	cmd, err := root.ExecuteContextC(context.Background())
	err = plainly(cmd, err)
	if err == nil && o.lost && !a.trains {
		err = errStopped
	}
	code, message := a.verdict(err)
	if o.err != nil && message == "" {
		code, message = max(code, exitFailure), fmt.Sprintf("zeroth: not all of the output could be written: %v", o.err)
	}
	if wrong := lacksTemp(err); wrong != "" {
		code, message = exitInput, message+"\n"+wrong
	}
	message += a.lacksFiles(message)
	if errors.Is(err, syscall.EFBIG) {
		message += "\na file is larger than the limit of this process (ulimit -f) or of its file system"
	}
	if message != "" {
		a.complain(code, message)
	}
	if code == exitInput && !a.started && a.log == nil {
		fmt.Fprintf(a.errs, "See '%s --help'.\n", cmd.CommandPath())
	}
	return code
}

// lacksFiles returns advice if a message, which may come from another process, says that there were no
// file descriptors, or "".
func (a *app) lacksFiles(message string) string {
	switch {
	case strings.Contains(message, syscall.ENFILE.Error()):
		return "\nall processes of the machine together have too many open files: see 'sysctl fs.file-max'"
	case !strings.Contains(message, syscall.EMFILE.Error()):
		return ""
	}
	here := "unknown"
	if n := machine.Ulimits().Files; n > 0 {
		here = fmt.Sprint(n)
	}
	return fmt.Sprintf("\na process is out of file descriptors: this command needs up to %d in each, and ulimit -n is %s here; raise it, as with 'ulimit -n 4096'", max(64, a.open), here)
}

// lacksTemp returns advice if a missing folder for temporary files caused err, or "".
func lacksTemp(err error) string {
	var at *fs.PathError
	temp := os.TempDir()
	if info, wrong := os.Stat(temp); wrong == nil && info.IsDir() || !errors.As(err, &at) || !strings.HasPrefix(at.Path, temp) {
		return ""
	}
	return fmt.Sprintf("the folder for temporary files, %s, does not exist; create it, or set TMPDIR to one that does", temp)
}

// complain prints why a command ends: as text, or as one record per line.
func (a *app) complain(code int, message string) {
	message = show.Bound(message)
	if a.log == nil {
		fmt.Fprintln(a.errs, show.Escape(message))
		return
	}
	for line := range strings.Lines(message) {
		a.log.Error(strings.TrimSpace(line), "exit_code", code)
	}
}

// note prints a notice on standard error, unless it is empty or --quiet was given.
func (a *app) note(line string) {
	line = show.Bound(line)
	switch {
	case a.quiet, line == "":
	case a.log != nil:
		a.log.Info(line)
	default:
		fmt.Fprintln(a.errs, show.Escape(line))
	}
}

// side returns the writer for progress that has no record form: standard error, or
// nowhere with --quiet or --log.
func (a *app) side() io.Writer {
	if a.quiet || a.log != nil {
		return io.Discard
	}
	return a.errs
}

// startLog opens the log that --log asks for.
func (a *app) startLog() error {
	levels := map[string]slog.Level{"info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	level, ok := levels[a.level]
	if !ok {
		return fmt.Errorf("--log-level %s; want info, warn or error", a.level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch a.format {
	case "":
		if a.level != "info" {
			return errors.New("--log-level selects records of --log; add --log json or --log text")
		}
	case "json":
		a.log = slog.New(slog.NewJSONHandler(escaped{a.errs}, options))
	case "text":
		a.log = slog.New(slog.NewTextHandler(escaped{a.errs}, options))
	default:
		return fmt.Errorf("--log %s; want json or text", a.format)
	}
	return nil
}

// escaped escapes unprintable characters in records. A record is one Write.
type escaped struct{ io.Writer }

func (e escaped) Write(b []byte) (int, error) {
	if _, err := io.WriteString(e.Writer, show.Escape(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// say prints lines for people; see show.Print.
func (a *app) say(format string, args ...any) {
	_ = show.Print(a.out, fmt.Sprintf(format, args...)) // a.out remembers its first error
}

// verdict returns the exit code for an error and the message to print. Problems of a
// job file look like a compiler's, each line beginning with its position.
func (a *app) verdict(err error) (code int, message string) {
	switch {
	case err == nil:
		return exitDone, ""
	case errors.Is(err, errFound):
		return exitFailure, ""
	case errors.Is(err, errStopped), errors.Is(err, launch.ErrInterrupted):
		return exitStopped, ""
	case errors.As(err, new(interrupted)):
		return exitStopped, "zeroth: " + err.Error()
	case errors.As(err, new(launch.Failed)):
		return int(err.(launch.Failed)), ""
	case errors.As(err, new(rendezvous.Gone)):
		return exitAlone, "zeroth: " + err.Error()
	case errors.As(err, new(job.Slow)):
		return exitLeft, "zeroth: " + err.Error()
	case errors.As(err, new(resumable)), errors.As(err, new(rendezvous.Missing)):
		return exitAgain, "zeroth: " + err.Error()
	case a.started && input.IsInput(err):
		return exitInput, err.Error()
	case !a.started:
		return exitInput, "zeroth: " + err.Error()
	}
	return exitFailure, "zeroth: " + err.Error()
}

const about = `zeroth trains and fine-tunes GPT-2, Llama, Mistral, Qwen, OLMo, Phi-3, SmolLM3, Granite and
Gemma models, sharded over ranks like ZeRO (stages 0 to 3) and FSDP. A job is one
YAML file; 'zeroth init' writes one.`

// exitCodes ends the help of the root command.
const exitCodes = `{{if not .HasParent}}
Exit codes:
  0    done
  1    failed, or a check found a problem, or a search found nothing
  2    a mistake in the job file, its data or the command line
  68   a process that comes back finds no run to join
  69   the others go on without this process, which is slow
  75   training stopped by SIGTERM, SIGHUP or a lost process; continue with
       --resume latest. Or some processes never joined
  130  stopped by Ctrl-C; other commands than training also by SIGTERM or SIGHUP
  134  a bug in zeroth (SIGABRT)
{{end}}`

// grouped puts commands into a group of the help.
func grouped(group string, commands ...*cobra.Command) []*cobra.Command {
	for _, c := range commands {
		c.GroupID = group
	}
	return commands
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:     "zeroth",
		Short:   "Train language models, sharded",
		Long:    about,
		Version: state.Version(),
		Example: `  zeroth init quickstart
  zeroth plan quickstart.yaml
  zeroth train examples/quickstart.yaml
  zeroth train examples/quickstart.yaml --set zero.stage=1 --set parallel.ranks=2 --out run1
  zeroth sample --run run1 --prompt "func main() {" --tokens 200`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddGroup(&cobra.Group{ID: "prepare", Title: "Prepare:"}, &cobra.Group{ID: "train", Title: "Train:"},
		&cobra.Group{ID: "use", Title: "Use models and checkpoints:"}, &cobra.Group{ID: "inspect", Title: "Inspect runs and machines:"})
	root.AddCommand(grouped("prepare", a.initJob(), a.plan(), a.fit(), a.model(), a.tokenize())...)
	root.AddCommand(grouped("train", a.train(), a.launch(), a.agent())...)
	root.AddCommand(grouped("use", a.sample(), a.eval(), a.ckpt())...)
	root.AddCommand(grouped("inspect", a.runs(), a.report(), a.compare(), a.plot(), a.flight(), a.doctor(), a.bench())...)
	root.AddCommand(a.schema(), a.man(root), a.version(), jobTopic())
	f := root.PersistentFlags()
	f.BoolVarP(&a.quiet, "quiet", "q", false, "print only results and errors")
	f.StringVar(&a.format, "log", "", "write progress and errors to standard error as records with time stamps: `json` or text")
	f.StringVar(&a.level, "log-level", "info", "write records of this `level` and above: info, warn or error")
	must(root.RegisterFlagCompletionFunc("log-level", oneOf("info", "warn", "error")))
	must(root.RegisterFlagCompletionFunc("log", oneOf("json", "text")))
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80") + exitCodes)
	root.SetFlagErrorFunc(a.wrongFlag)
	root.CompletionOptions.HiddenDefaultCmd = false
	root.SuggestionsMinimumDistance = 2
	root.Args = knownCommand
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.SetHelpCommand(a.help(root))
	return root
}

// help returns cobra's help command, except that unknown names are errors.
func (a *app) help(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command or key]",
		Short: "Help about any command, or a key of the job file",
		Example: `  zeroth help train
  zeroth help zero.stage
  zeroth help zero`,
		ValidArgsFunction: func(_ *cobra.Command, args []string, prefix string) (names []string, _ cobra.ShellCompDirective) {
			if of, _, err := root.Find(args); err == nil {
				for _, c := range of.Commands() {
					if strings.HasPrefix(c.Name(), prefix) && !c.Hidden {
						names = append(names, c.Name())
					}
				}
			}
			for _, k := range config.Keys() {
				if len(args) == 0 && prefix != "" && strings.HasPrefix(k, prefix) {
					names = append(names, k)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: a.do(func(_ *cobra.Command, args []string) error {
			of, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return a.helpKey(strings.Join(args, " "))
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		}),
	}
}

// helpKey explains a key of the job file, or a section.
func (a *app) helpKey(name string) error {
	if k, ok := config.Explain(name); ok {
		fmt.Fprint(a.out, k.Text())
		return nil
	}
	if table, ok := config.ReferenceOf(name); ok {
		fmt.Fprint(a.out, table)
		return nil
	}
	advice := "'zeroth help' lists commands, 'zeroth help job' keys"
	if hint := words.Hint(name); hint != "" {
		advice = hint
	} else if near := config.NearestKey(name); near != "" {
		advice = fmt.Sprintf("did you mean 'zeroth help %s'?", near)
	}
	return input.BadInput(fmt.Errorf("there is no command or key %q; %s", name, advice))
}

// do returns f as the RunE of a command, after the checks that all commands share.
func (a *app) do(f func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := errors.Join(checkTexts(cmd.Flags(), args), paths(cmd, args), a.startLog()); err != nil {
			return err
		}
		a.started = true
		return f(cmd, args)
	}
}

// checkTexts refuses empty arguments and flag values: an unset variable in a script does
// not ask for the default. Counts are checked where they are used.
func checkTexts(flags *pflag.FlagSet, args []string) error {
	var errs []error
	if slices.Contains(args, "") {
		errs = append(errs, errors.New("an argument is empty; give it a value or leave it out"))
	}
	flags.Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.Value.String() == "" && f.Name != "prompt" { // sample checks it
			errs = append(errs, fmt.Errorf("--%s is empty; give it a value or leave it out", f.Name))
		}
	})
	return errors.Join(errs...)
}

// addresses lists the commands whose arguments may be addresses, with their schemes; launch passes them on.
var addresses = map[string][]string{
	"launch": {""}, "train": {"hf://"}, "plan": {"hf://"}, "fit": {"hf://"}, "model": {"hf://", "s3://"}, "export": {"hf://", "s3://"}, "import": {"hf://", "s3://"},
	"tokenize": {"s3://"}, "ls": {"s3://"}, "inspect": {"s3://"}, "verify": {"s3://"}, "diff": {"s3://"}, "prune": {"s3://"},
}

// paths expands ~ in all paths of a command line: its arguments, and flags whose help calls the value a file,
// a folder or what can be one. It refuses addresses with a scheme that the flag's help does not name.
func paths(cmd *cobra.Command, args []string) error {
	var wrong []error
	for i, arg := range args {
		full, err := config.Path(arg, addresses[cmd.Name()]...)
		wrong = append(wrong, err)
		args[i] = full
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		kind, _ := pflag.UnquoteUsage(f)
		if !slices.Contains([]string{"file", "folder", "checkpoint", "model", "name"}, kind) {
			return
		}
		list, many := f.Value.(pflag.SliceValue)
		values := []string{f.Value.String()}
		if many {
			values = list.GetSlice()
		}
		for i, value := range values {
			full, err := config.Path(value, scheme.FindAllString(f.Usage, -1)...)
			if err != nil {
				wrong = append(wrong, fmt.Errorf("--%s %w", f.Name, err))
				return
			}
			values[i] = full
		}
		if many {
			wrong = append(wrong, list.Replace(values))
			return
		}
		wrong = append(wrong, f.Value.Set(values[0]))
	})
	return errors.Join(wrong...)
}

var scheme = regexp.MustCompile(`[a-z0-9]+://`)

// jobTopic returns "zeroth help job", the reference of the job file.
func jobTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "job",
		Short: "The keys of a job file, their defaults and meanings",
		Long: `A job file is YAML. Every key except data has a default, which applies if the key
is missing or null. Relative paths are relative to the current directory.

  data: {text: ["docs/**/*.md"]}
  train: {steps: 1000}
  optimizer: {type: adamw, lr: 3e-4}

'zeroth help KEY' explains one key, 'zeroth help SECTION' lists a section.

Keys, defaults, meanings:

` + config.Reference(),
	}
}
