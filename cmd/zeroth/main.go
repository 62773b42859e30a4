// Command zeroth trains GPT models, sharded over ranks in the ways of ZeRO.
//
// What never enters: anything that a program without a terminal could need. Here
// are flags, signals, exit codes and what is printed; a verb is a file.
//
// Begin with main.go; train.go is the verb that trains.
//
// It is larger than other packages because it has all verbs, and each brings its help
// and its examples, which are texts.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf16"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"zeroth/collective/mpi"
	"zeroth/collective/rendezvous"
	"zeroth/input"
	"zeroth/job/config"
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

// signalled is the cause of a context that a signal ended.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return "stopped by signal: " + s.String() }

// Is makes it a cancellation.
func (s signalled) Is(target error) bool { return target == context.Canceled }

// app is one call of the command.
type app struct {
	out     io.Writer
	errs    io.Writer
	started bool // arguments and flags were right; errors before that are the user's

	quiet  bool         // only results and errors are told
	format string       // of --log: "json", "text", or empty
	log    *slog.Logger // that --log asks for; nil: people read
}

// run executes the command and returns its exit code.
func run(args []string, out, errs io.Writer) int {
	o := &output{Writer: out}
	a := &app{out: o, errs: errs}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		a.out = f // which progress bars have to know; it is never full
	}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(errs)
	cmd, err := root.ExecuteContextC(context.Background())
	code, message := a.verdict(err)
	if o.err != nil && message == "" {
		code, message = max(code, exitFailure), fmt.Sprintf("zeroth: not all of the output could be written: %v", o.err)
	}
	if errors.Is(err, syscall.EFBIG) {
		message += "\na file grew beyond what this process may write (ulimit -f), or what its file system takes"
	}
	if message != "" {
		a.complain(code, message)
	}
	if code == exitInput && !a.started && a.log == nil {
		fmt.Fprintf(errs, "See '%s --help'.\n", cmd.CommandPath())
	}
	return code
}

// complain tells why a command ends as it does: as text, or a record for each line.
func (a *app) complain(code int, message string) {
	if a.log == nil {
		fmt.Fprintln(a.errs, escaped(message))
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
		fmt.Fprintln(a.errs, line)
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
		a.log = slog.New(slog.NewJSONHandler(a.errs, nil))
	case "text":
		a.log = slog.New(slog.NewTextHandler(a.errs, nil))
	default:
		return fmt.Errorf("--log %s; want json or text", a.format)
	}
	return nil
}

// output is the standard output. It keeps the first error, so that no command
// has to look at each line it prints. The processes of a launch share it.
type output struct {
	io.Writer
	mu  sync.Mutex // of each Write
	err error
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.Writer.Write(b)
	o.err = cmp.Or(o.err, err)
	return n, err
}

// escaped is a text in which what a terminal may obey or cannot show is written
// by its code, as JSON and Go do it.
func escaped(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\t' || strconv.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
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

const about = `zeroth trains GPT-2 and Llama models in pure Go, sharded over ranks in the ways
of ZeRO (stages 0 to 3) and FSDP. A job is one YAML file: 'zeroth init' writes one.

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

// untilSignal is a context that ends with the first Ctrl-C, SIGTERM or SIGHUP,
// of which told is told. From then on Ctrl-C ends the process at once; the
// others, which supervisors and closing terminals send in pairs, change nothing
// more, nor does an output that nobody reads any longer. Release gives signals
// back.
func untilSignal(parent context.Context, told func()) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() { // ends with the first signal, or with release
		select {
		case s := <-signals:
			signal.Reset(os.Interrupt)
			signal.Ignore(syscall.SIGPIPE)
			cancel(signalled{s})
			told()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// afterEcho begins a line of its own for what is told after a terminal has echoed
// ^C: below a bar, which is drawn from the line's begin, in the place of the echo.
func afterEcho(w io.Writer) {
	f, ok := w.(*os.File)
	switch {
	case !ok || !term.IsTerminal(int(f.Fd())):
	case os.Getenv("TERM") == "dumb":
		fmt.Fprintln(f)
	default:
		fmt.Fprint(f, "\r\x1b[K")
	}
}

// do marks the end of the command line's own errors.
func (a *app) do(f func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := errors.Join(checkFlags(cmd.Flags()), atHome(cmd, args), a.startLog()); err != nil {
			return err
		}
		a.started = true
		return f(cmd, args)
	}
}

// checkFlags refuses texts that are given and empty: "$UNSET" in a script is no
// wish for the default. Counts are checked where they are used.
func checkFlags(flags *pflag.FlagSet) error {
	var errs []error
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
