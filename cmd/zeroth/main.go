// Command zeroth trains GPT models, sharded over ranks in the ways of ZeRO.
//
// What never enters: anything that a program without a terminal could need. Here
// are flags, signals, exit codes and what is printed; a verb is a file.
//
// Begin with main.go; train.go is the verb that trains.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
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
	"zeroth/input"
	"zeroth/job/config"
	"zeroth/job/show"
	"zeroth/job/state"
)

// Exit codes, as the help of the command tells them.
const (
	exitDone    = 0
	exitFailure = 1
	exitInput   = 2
	exitAgain   = 75  // sysexits' EX_TEMPFAIL: stopped by SIGTERM, by SIGHUP or with another process, and there is a checkpoint to resume from; or not all have come
	exitStopped = 130 // 128 + SIGINT, as shells have it
)

func main() {
	// A panic ends the process by SIGABRT, with the stacks of all goroutines:
	// Go's own exit code for it is 2, which here is the user's mistake.
	debug.SetTraceback("crash")
	tellLarge()
	code := run(os.Args[1:], os.Stdout, os.Stderr)
	time.AfterFunc(time.Second, func() { os.Exit(code) }) // what MPI has left to do may hang
	mpi.Exit(code)
	os.Exit(code)
}

// errStopped is what a run returns that was asked to stop and did.
var errStopped = errors.New("stopped")

// errSaved is what it returns if SIGTERM or SIGHUP asked and there is a
// checkpoint to resume from.
var errSaved = errors.New("stopped, to be resumed")

// errFound is what a check returns that found and told what it looked for.
var errFound = errors.New("found")

// app is one call of the command.
type app struct {
	out  io.Writer
	errs io.Writer
	stopping
	saves   atomic.Pointer[string] // where a run has its checkpoints; nil: that is not known yet
	trains  bool                   // what it makes is in files, and the output alone is not worth an exit code
	started bool                   // arguments and flags were right; errors before that are the user's

	quiet  bool         // only results and errors are told
	format string       // of --log: "json", "text", or empty
	log    *slog.Logger // that --log asks for; nil: people read
}

// run executes the command and returns its exit code.
func run(args []string, out, errs io.Writer) int {
	a := &app{}
	defer a.begin()()
	var o *output
	a.out, o = a.outputTo(out)
	a.errs, _ = a.outputTo(errs)
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.errs)
	cmd, err := root.ExecuteContextC(context.Background())
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
	if errors.Is(err, syscall.EFBIG) {
		message += "\na file grew beyond what this process may write (ulimit -f), or what its file system takes"
	}
	if message != "" {
		a.complain(code, message)
	}
	if code == exitInput && !a.started && a.log == nil {
		fmt.Fprintf(a.errs, "See '%s --help'.\n", cmd.CommandPath())
	}
	return code
}

// lacksTemp says what to do about the folder for temporary files, if an error is that it
// is missing; else it is empty.
func lacksTemp(err error) string {
	var at *fs.PathError
	temp := os.TempDir()
	if info, wrong := os.Stat(temp); wrong == nil && info.IsDir() || !errors.As(err, &at) || !strings.HasPrefix(at.Path, temp) {
		return ""
	}
	return fmt.Sprintf("the folder for temporary files, %s, is missing; make it, or set TMPDIR to a folder that is there", temp)
}

// complain tells why a command ends as it does: as text, or a record for each line.
func (a *app) complain(code int, message string) {
	if a.log == nil {
		fmt.Fprintln(a.errs, show.Escape(message))
		return
	}
	for line := range strings.Lines(message) {
		a.log.Error(strings.TrimSpace(line), "exit_code", code)
	}
}

// note tells people something on the side, unless they want none of it.
func (a *app) note(line string) {
	switch {
	case a.quiet:
	case a.log != nil:
		a.log.Info(line)
	default:
		fmt.Fprintln(a.errs, show.Escape(line))
	}
}

// side is where work is told that has no records: nowhere, where those are wanted.
func (a *app) side() io.Writer {
	if a.quiet || a.log != nil {
		return io.Discard
	}
	return a.errs
}

// startLog begins what --log asks for.
func (a *app) startLog() error {
	switch a.format {
	case "":
	case "json":
		a.log = slog.New(slog.NewJSONHandler(escaped{a.errs}, nil))
	case "text":
		a.log = slog.New(slog.NewTextHandler(escaped{a.errs}, nil))
	default:
		return fmt.Errorf("--log %s; want json or text", a.format)
	}
	return nil
}

// escaped writes records as show.Escape has them. A record is one Write.
type escaped struct{ io.Writer }

func (e escaped) Write(b []byte) (int, error) {
	if _, err := io.WriteString(e.Writer, show.Escape(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// say prints a line or more for people; see show.Print.
func (a *app) say(format string, args ...any) {
	_ = show.Print(a.out, fmt.Sprintf(format, args...)) // the output keeps its errors
}

// verdict is the exit code of an error and what to print about it. Problems of
// a job file come as a compiler's do, each line beginning with its place.
func (a *app) verdict(err error) (code int, message string) {
	switch {
	case err == nil:
		return exitDone, ""
	case errors.Is(err, errFound):
		return exitFailure, ""
	case errors.Is(err, errStopped):
		return exitStopped, ""
	case errors.As(err, new(childFailed)):
		return int(err.(childFailed)), ""
	case errors.Is(err, errSaved), errors.As(err, new(rendezvous.Missing)):
		return exitAgain, "zeroth: " + err.Error()
	case a.started && input.IsInput(err):
		return exitInput, err.Error()
	case !a.started:
		return exitInput, "zeroth: " + err.Error()
	}
	return exitFailure, "zeroth: " + err.Error()
}

const about = `zeroth trains GPT-2, Llama, Mistral, Qwen, OLMo, Phi-3, SmolLM3 and Gemma models in
pure Go, sharded over ranks in the ways of ZeRO (stages 0 to 3) and FSDP. A job is
one YAML file: 'zeroth init' writes one.

Exit codes: 0 done; 1 failure, or a check found something, or a search nothing; 2 a
mistake in the job file, its data or the command line; 130 stopped by Ctrl-C, with
all steps done so far kept; 75 training stopped by SIGTERM, by SIGHUP or
by the loss of another process, with a checkpoint to go on from with --resume
latest, without one 1; 75 as well if not all processes of a job came. A defect of
the program itself ends it by SIGABRT (134).`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:     "zeroth",
		Short:   "Train GPT models, sharded",
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
	root.AddCommand(a.train(), a.launch(), a.flight(), a.plan(), a.fit(), a.plot(), a.ckpt(), a.sample(), a.eval(), a.model(), a.tokenize(), a.bench(), a.doctor(), a.initJob(), a.schema(), a.man(root), a.version(), jobTopic())
	f := root.PersistentFlags()
	f.BoolVarP(&a.quiet, "quiet", "q", false, "tell results and errors only")
	f.StringVar(&a.format, "log", "", "tell progress and errors as records with time stamps on the standard error: `json` or text")
	must(root.RegisterFlagCompletionFunc("log", words("json", "text")))
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80"))
	root.SetFlagErrorFunc(wrongFlag)
	root.CompletionOptions.HiddenDefaultCmd = false
	root.SuggestionsMinimumDistance = 2
	root.Args = knownCommand
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.SetHelpCommand(a.help(root))
	return root
}

// help is cobra's, but that what it does not know is an error.
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
	if near := config.NearestKey(name); near != "" {
		advice = fmt.Sprintf("did you mean 'zeroth help %s'?", near)
	}
	return input.BadInput(fmt.Errorf("no command or key %q to help with; %s", name, advice))
}

// do marks the end of the command line's own errors.
func (a *app) do(f func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := errors.Join(checkTexts(cmd.Flags(), args), atHome(cmd, args), a.startLog()); err != nil {
			return err
		}
		a.started = true
		return f(cmd, args)
	}
}

// checkTexts refuses arguments and texts of flags that are given and empty: "$UNSET" in a
// script is no wish for the default. Counts are checked where they are used.
func checkTexts(flags *pflag.FlagSet, args []string) error {
	var errs []error
	if slices.Contains(args, "") {
		errs = append(errs, errors.New("an argument is empty; give it a value or leave it out"))
	}
	flags.Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.Value.String() == "" && f.Name != "prompt" { // which has its own words for it
			errs = append(errs, fmt.Errorf("--%s is empty; give it a value or leave it out", f.Name))
		}
	})
	return errors.Join(errs...)
}

// atHome puts the home folder in place of ~ in all paths of a command line: its
// arguments, and the flags whose help calls their value a file or folder.
func atHome(cmd *cobra.Command, args []string) error {
	var wrong []error
	for i, arg := range args {
		full, err := config.AtHome(arg)
		wrong = append(wrong, err)
		args[i] = full
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		kind, _ := pflag.UnquoteUsage(f)
		if kind != "file" && kind != "folder" && kind != "checkpoint" {
			return
		}
		full, err := config.AtHome(f.Value.String())
		if err != nil {
			wrong = append(wrong, fmt.Errorf("--%s %w", f.Name, err))
			return
		}
		wrong = append(wrong, f.Value.Set(full))
	})
	return errors.Join(wrong...)
}

// jobTopic is "zeroth help job", the reference of the job file.
func jobTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "job",
		Short: "The keys of a job file, their defaults and meanings",
		Long: `A job file is YAML. Every key but data has a default; a key that is left out,
or set to null, has it. Relative paths are relative to the current directory.

  data: {text: ["docs/**/*.md"]}
  train: {steps: 1000}
  optimizer: {type: adamw, lr: 3e-4}

'zeroth help KEY' says more of one, 'zeroth help SECTION' lists some.

Keys, defaults, meanings:

` + config.Reference(),
	}
}
