package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"zeroth/config"
	"zeroth/internal/input"
	"zeroth/internal/input/hub"
	"zeroth/internal/show"
	"zeroth/job"
	"zeroth/job/generate"
)

func (a *app) sample() *cobra.Command {
	var o sampling
	cmd := &cobra.Command{
		Use:        "sample --run FOLDER",
		Short:      "Generate text with a trained model",
		SuggestFor: []string{"generate", "infer", "inference", "chat", "complete"},
		Long: `Continue a text with the model of a run folder, a checkpoint, a Hugging Face folder or
the Hub: of a run its final model or, while it trains, its newest complete checkpoint;
--step names another. The same seed gives the same text, whatever the other prompts. On a terminal, control
characters are escaped. With --json each prompt gives one line: prompt, text (without
the prompt), tokens, and finish_reason, which is length, eos (an end-of-text token) or
stop.

With --chat and no prompt, each line of standard input is a message of one
conversation and is answered; Ctrl-D ends it.

Settings of the sampling that no flag gives are those of the model's
generation_config.json, or else the defaults below.`,
		Example: `  zeroth sample --run run1 --prompt "func main() {" --tokens 200
  zeroth sample --run run1 --step 1000
  zeroth sample --run run1 --prompt "// " --temperature 0 --tokens 50
  zeroth sample --run ./Qwen3-0.6B --chat --template-arg enable_thinking=false
  zeroth sample --run hf://Qwen/Qwen3-0.6B --chat --prompt "Why is the sky blue?"
  zeroth sample --run run1 --prompts questions.txt --top-p 0.9 --stop "." --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if cmd.Flags().Changed("run") {
				return fmt.Errorf("sample has no arguments; write the text as --prompt %s", quoted(args[0]))
			}
			return fmt.Errorf("sample has no arguments; did you mean: zeroth sample --run %s", quoted(args[0]))
		},
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			o.given = cmd.Flags().Changed("prompt")
			o.Chosen = map[string]bool{}
			for _, name := range []string{"temperature", "top-k", "top-p", "min-p", "repetition-penalty"} {
				o.Chosen[strings.ReplaceAll(name, "-", "_")] = cmd.Flags().Changed(name)
			}
			prompts, err := o.check()
			if err != nil {
				return err
			}
			stop, err := o.probes.start(&job.Options{})
			if err != nil {
				return err
			}
			ctx, release := a.untilSignal(cmd.Context(), func() {}, nil)
			defer release()
			o.Note = a.note
			if o.Run, err = a.local(ctx, o.Run, hub.Weights); err == nil {
				o.Tokenizer, err = a.local(ctx, o.Tokenizer, hub.Tokenizer)
			}
			if err != nil {
				return stopped(ctx, err)
			}
			err = a.writeSamples(o, func(w io.Writer, told func(generate.Answer) error) error {
				if o.Chat && len(prompts) == 0 {
					return generate.Converse(ctx, o.Options, a.messages(ctx), w, told)
				}
				return generate.Many(ctx, o.Options, prompts, w, told)
			})
			err = stopped(ctx, cmp.Or(err, stop(err)))
			if errors.Is(err, errStopped) {
				fmt.Fprintln(a.out) // the shell's prompt starts a new line
			}
			return err
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o.addFlags(cmd.Flags())
	stepFlag(cmd, &o.Step, "its model")
	must(cmd.MarkFlagRequired("run"))
	must(cmd.MarkFlagDirname("run"))
	must(cmd.RegisterFlagCompletionFunc("precision", cobra.FixedCompletions([]string{"fp32", "bf16"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("tokenizer", wordsOrFile("bytes", "gpt2")))
	return cmd
}

// addFlags declares the flags of sample.
func (o *sampling) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Run, "run", "", "run `folder`, checkpoint or Hugging Face folder, hf://org/name[@revision], or s3://bucket/folder")
	f.StringVar(&o.Tokenizer, "tokenizer", "", "`name` (bytes or gpt2) or folder of the tokenizer, hf://org/name, or s3://bucket/folder (default the model's)")
	f.StringArrayVar(&o.prompts, "prompt", []string{"\n"}, "`text` to continue (repeatable; default a line feed)")
	f.Lookup("prompt").DefValue = "[]" // help would print the line feed itself
	f.StringVar(&o.file, "prompts", "", "`file` with one prompt per line, plain or as a JSON string")
	f.BoolVar(&o.Chat, "chat", false, "answer messages, with the model's chat template: each prompt or, without any, each line of standard input")
	f.StringVar(&o.System, "system", "", "`text` of the system message, with --chat")
	f.StringArrayVar(&o.Variables, "template-arg", nil, "`key=value` for the chat template, the value in JSON or as text (repeatable)")
	intVar(f, &o.Tokens, "tokens", 200, "maximum number of tokens to generate")
	f.Float64Var(&o.Temperature, "temperature", 0.8, "0 is greedy, 1 the model's own distribution")
	intVar(f, &o.TopK, "top-k", 0, "sample from the `k` likeliest tokens; 0 means all")
	f.Float64Var(&o.TopP, "top-p", 1, "sample from the likeliest tokens with this total probability, after --top-k; 1 means all")
	f.Float64Var(&o.MinP, "min-p", 0, "sample from tokens with at least this fraction of the highest probability, after --top-p")
	f.Float64Var(&o.Penalty, "repetition-penalty", 1, "above 1, make tokens of the text less likely")
	intVar(f, &o.Context, "context", 0, fmt.Sprintf("maximum number of `tokens` the model reads (default its limit, but %d in a conversation)", generate.ConversationContext))
	f.StringArrayVar(&o.Stop, "stop", nil, "stop before this `text` (repeatable)")
	intVar(f, &o.Batch, "batch", 8, "prompts to process at once; does not change the answers")
	f.StringVar(&o.Precision, "precision", "fp32", "`type` of parameters and activations: fp32, or bf16 for half the memory")
	f.BoolVar(&o.json, "json", false, "print one JSON object per prompt")
	uintVar(f, &o.Seed, "seed", 1, "seed of the random choices")
	f.StringVar(&o.Device, "device", "auto", "`name` of the device: auto, cpu or cuda")
	f.StringVar(&o.Attention, "attention", "auto", "`name` of the kernels of attention on GPUs, like the job's key parallel.attention: "+strings.Join(config.Attentions, " or "))
	o.probes.profileFlag(f)
}

// sampling holds the flags of sample.
type sampling struct {
	generate.Options
	prompts []string
	given   bool   // --prompt was given
	file    string // --prompts
	json    bool
	probes  probes
}

// writeSamples writes the text of each answer that do gives and a line feed, or a line of JSON.
func (a *app) writeSamples(o sampling, do func(w io.Writer, told func(generate.Answer) error) error) error {
	if o.json {
		lines := json.NewEncoder(a.out)
		lines.SetEscapeHTML(false)
		return do(io.Discard, func(t generate.Answer) error { return lines.Encode(t) })
	}
	end := func() error { return nil }
	w := a.out
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		screen := show.NewScreen(f)
		w, end = screen, screen.Close
	}
	return do(w, func(t generate.Answer) error {
		if err := end(); err != nil {
			return err
		}
		_, err := fmt.Fprintln(a.out)
		if o.Chat && t.Reason == "length" {
			a.note(fmt.Sprintf("the answer is cut after %d tokens (--tokens)", t.Tokens))
		}
		return err
	})
}

// messages returns a function that returns the next line of standard input that is not empty, io.EOF
// at the end, or the error of the context once it is cancelled. On a terminal it asks for the line.
func (a *app) messages(ctx context.Context) func() (string, error) {
	type line struct {
		text string
		err  error
	}
	in, read := bufio.NewReader(os.Stdin), make(chan line, 1)
	asks := term.IsTerminal(int(os.Stdin.Fd()))
	return func() (string, error) {
		for {
			if asks {
				fmt.Fprint(a.side(), "> ")
			}
			go func() { // ends with a line or the process
				text, err := readLine(in, maxMessage)
				read <- line{text, err}
			}()
			select {
			case <-ctx.Done():
				return "", context.Cause(ctx)
			case l := <-read:
				if l.err == io.EOF && asks {
					fmt.Fprintln(a.side())
				}
				if l.text != "" || l.err != nil {
					return l.text, l.err
				}
			}
		}
	}
}

// readLine reads a line of up to most bytes, without the characters that end it. The last one
// may end with the file.
func readLine(r *bufio.Reader, most int) (string, error) {
	var text []byte
	for {
		part, err := r.ReadSlice('\n')
		if text = append(text, part...); len(text) > most {
			return "", input.BadInput(fmt.Errorf("a message is longer than %d bytes", most))
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		text := strings.TrimRight(string(text), "\r\n")
		if err == io.EOF && text != "" {
			err = nil
		}
		return text, err
	}
}

// Limits of flags.
const (
	maxSampled     = 1 << 20  // tokens, as a job
	maxPromptsFile = 16 << 20 // bytes
	maxPrompts     = 100_000
	maxStops       = 64
	maxBatch       = 1024
	maxStop        = 4096    // bytes
	maxMessage     = 4 << 20 // bytes
)

// check reports all invalid flags at once, and returns the prompts.
func (o sampling) check() ([]string, error) {
	var wrong input.Problems
	wrong.If(config.AttentionLevel(o.Attention) > 0 && o.Precision != "bf16", "--attention %s is for --precision bf16", o.Attention)
	wrong.If(!slices.Contains(config.Attentions, o.Attention), "--attention %q; want %s", show.Brief(o.Attention), strings.Join(config.Attentions, " or "))
	wrong.If(o.Device != "auto" && o.Device != "cpu" && o.Device != "cuda", "--device %q; want auto, cpu or cuda", show.Brief(o.Device))
	wrong.If(o.Precision != "fp32" && o.Precision != "bf16", "--precision %q; want fp32 or bf16", show.Brief(o.Precision))
	wrong.If(o.Batch < 1 || o.Batch > maxBatch, "--batch %d; want 1 to %d", o.Batch, maxBatch)
	prompts := o.prompts
	if o.file != "" {
		if !o.given {
			prompts = nil
		}
		more, err := readPrompts(o.file)
		prompts, wrong = append(prompts, more...), append(wrong, err...)
	} else if o.Chat && !o.given {
		prompts = nil // a conversation
	}
	wrong.If(slices.Contains(o.prompts, ""), "--prompt is empty; want at least one character")
	wrong.If(len(prompts) > maxPrompts, "%d prompts; want at most %d", len(prompts), maxPrompts)
	wrong.If(o.Tokens < 1 || o.Tokens > maxSampled, "--tokens %d; want 1 to %d", o.Tokens, maxSampled)
	wrong.If(!(o.Temperature >= 0) || math.IsInf(o.Temperature, 0), "--temperature %v; want a number of at least 0", o.Temperature)
	wrong.If(o.TopK < 0, "--top-k %d; want at least 0, where 0 is all tokens", o.TopK)
	wrong.If(!(o.TopP > 0 && o.TopP <= 1), "--top-p %v; want a number above 0 and at most 1, where 1 is all tokens", o.TopP)
	wrong.If(!(o.MinP >= 0 && o.MinP <= 1), "--min-p %v; want a number from 0 to 1", o.MinP)
	wrong.If(!(o.Penalty > 0) || math.IsInf(o.Penalty, 0), "--repetition-penalty %v; want a number above 0, where 1 is none", o.Penalty)
	wrong.If(o.Context < 0, "--context %d; want at least 0, where 0 is the default", o.Context)
	wrong.If(len(o.Stop) > maxStops, "--stop %d times; want at most %d", len(o.Stop), maxStops)
	wrong.If(slices.ContainsFunc(o.Stop, func(s string) bool { return s == "" || len(s) > maxStop }), "--stop is empty or longer than %d bytes; want a text", maxStop)
	wrong.If(o.System != "" && !o.Chat, "--system needs --chat")
	wrong.If(len(o.Variables) > 0 && !o.Chat, "--template-arg needs --chat")
	return prompts, wrong.Err()
}

// readPrompts reads one prompt per line and skips empty lines.
func readPrompts(file string) (prompts []string, wrong []error) {
	raw, err := input.Read(file, maxPromptsFile)
	if err != nil {
		return nil, []error{fmt.Errorf("--prompts: %w", err)}
	}
	line := 0
	for text := range strings.Lines(string(raw)) {
		line++
		text = strings.TrimRight(text, "\r\n")
		if strings.HasPrefix(text, `"`) {
			if err := json.Unmarshal([]byte(text), &text); err != nil {
				wrong = append(wrong, fmt.Errorf("--prompts: %s:%d: begins with \", but is not a JSON string: %w", file, line, err))
			}
		}
		if text != "" {
			prompts = append(prompts, text)
		}
	}
	if len(prompts)+len(wrong) == 0 {
		wrong = []error{fmt.Errorf("--prompts: %s has no prompts; want one per line", file)}
	}
	return prompts, wrong[:min(len(wrong), 20)]
}
