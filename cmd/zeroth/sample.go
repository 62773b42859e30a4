package main

import (
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

	"zeroth/input"
	"zeroth/job"
	"zeroth/job/generate"
	"zeroth/job/show"
)

func (a *app) sample() *cobra.Command {
	var o sampling
	cmd := &cobra.Command{
		Use:        "sample --run FOLDER",
		Short:      "Let a trained model continue a text",
		SuggestFor: []string{"generate", "infer", "inference", "chat", "complete"},
		Long: `Let the model of a run folder continue a text, up to so many tokens or the one
that ends a text. Of a run that still trains its newest complete checkpoint is
taken; --run may also name a checkpoint, or a Hugging Face folder. The same seed
writes the same text, whatever other prompts there are. On a terminal control
characters are written as in a Go string; in a pipe bytes are as they come, but a
character of several bytes comes whole. With --json there is a line for each
prompt: prompt, text (without the prompt), tokens, and finish_reason, which is
length, eos (a token ended the text) or stop.`,
		Example: `  zeroth sample --run run1 --prompt "func main() {" --tokens 200
  zeroth sample --run run1/ckpt/step-00001000
  zeroth sample --run run1 --prompt "// " --temperature 0 --tokens 50
  zeroth sample --run ./Qwen3-0.6B --chat --prompt "Why is the sky blue?"
  zeroth sample --run run1 --prompts questions.txt --top-p 0.9 --stop "." --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return fmt.Errorf("sample takes no arguments; did you mean: zeroth sample --run %s", quoted(args[0]))
		},
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			o.given = cmd.Flags().Changed("prompt")
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
			err = a.writeSamples(ctx, o, prompts)
			err = stopped(ctx, cmp.Or(err, stop(err)))
			if errors.Is(err, errStopped) {
				fmt.Fprintln(a.out) // a shell's prompt is not behind the text
			}
			return err
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o.flags(cmd.Flags())
	must(cmd.MarkFlagRequired("run"))
	must(cmd.MarkFlagDirname("run"))
	must(cmd.RegisterFlagCompletionFunc("precision", cobra.FixedCompletions([]string{"fp32", "bf16"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("tokenizer", wordsOrFile("bytes", "gpt2")))
	return cmd
}

// flags declares the flags of sample.
func (o *sampling) flags(f *pflag.FlagSet) {
	f.StringVar(&o.Run, "run", "", "run `folder` that training wrote, or writes; a checkpoint; or a Hugging Face folder")
	f.StringVar(&o.Tokenizer, "tokenizer", "", "`name` bytes or gpt2, or a folder with tokenizer.json, or vocab.json and merges.txt (default the model's)")
	f.StringArrayVar(&o.prompts, "prompt", []string{"\n"}, "`text` to continue; may be given several times")
	f.StringVar(&o.file, "prompts", "", "`file` with a text to continue a line: as it is, or a JSON string if it begins with \"; after those of --prompt")
	f.BoolVar(&o.Chat, "chat", false, "the prompt is a user's message; write the answer, by the chat template of the tokenizer's folder")
	f.StringVar(&o.System, "system", "", "with --chat, `text` that tells the model how to answer")
	intVar(f, &o.Tokens, "tokens", 200, "tokens to write, at most")
	f.Float64Var(&o.Temperature, "temperature", 0.8, "0 always takes the likeliest token, 1 the model's own spread")
	intVar(f, &o.TopK, "top-k", 0, "choose among the `k` likeliest tokens; 0 is all")
	f.Float64Var(&o.TopP, "top-p", 1, "choose among the likeliest tokens that together have this probability, of those that --top-k leaves; 1 is all")
	f.StringArrayVar(&o.Stop, "stop", nil, "end before this `text`; may be given several times")
	intVar(f, &o.Batch, "batch", 8, "prompts that are continued at once, at most; each is answered as it would be alone")
	f.StringVar(&o.Precision, "precision", "fp32", "`type` fp32 or bf16 of parameters and activations: bf16 takes half the memory, and rounds")
	f.BoolVar(&o.json, "json", false, "write a JSON object a line for each prompt, when its text is whole")
	uintVar(f, &o.Seed, "seed", 1, "of the choices")
	f.StringVar(&o.Device, "device", "auto", "`name` auto, cpu or cuda: what computes, as the job's key device")
	o.probes.profileFlag(f)
}

// sampling is what the flags of sample say.
type sampling struct {
	generate.Options
	prompts []string
	given   bool   // prompts are not the default
	file    string // of more of them
	json    bool
	probes  probes
}

// writeSamples writes the text of each prompt, and a line feed, so that a shell's
// prompt does not stand behind it; or a line of JSON.
func (a *app) writeSamples(ctx context.Context, o sampling, prompts []string) error {
	if o.json {
		lines := json.NewEncoder(a.out)
		lines.SetEscapeHTML(false)
		return generate.Many(ctx, o.Options, prompts, io.Discard, func(t generate.Answer) error { return lines.Encode(t) })
	}
	end := func() error { return nil }
	w := a.out
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		screen := show.NewScreen(f)
		w, end = screen, screen.Close
	}
	return generate.Many(ctx, o.Options, prompts, w, func(generate.Answer) error {
		if err := end(); err != nil {
			return err
		}
		_, err := fmt.Fprintln(a.out)
		return err
	})
}

// What a command may ask for.
const (
	maxSampled     = 1 << 20  // tokens, as a job
	maxPromptsFile = 16 << 20 // bytes
	maxPrompts     = 100_000
	maxStops       = 64
	maxBatch       = 1024
	maxStop        = 4096 // bytes
)

// check refuses all flags that make no sense, at once, and returns the prompts.
func (o sampling) check() ([]string, error) {
	var wrong []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	refuse(o.Device != "auto" && o.Device != "cpu" && o.Device != "cuda", "--device %q; want auto, cpu or cuda", show.Brief(o.Device))
	refuse(o.Precision != "fp32" && o.Precision != "bf16", "--precision %q; want fp32 or bf16", show.Brief(o.Precision))
	refuse(o.Batch < 1 || o.Batch > maxBatch, "--batch %d; want 1 to %d", o.Batch, maxBatch)
	prompts := o.prompts
	if o.file != "" {
		if !o.given {
			prompts = nil
		}
		more, err := readPrompts(o.file)
		prompts, wrong = append(prompts, more...), append(wrong, err...)
	}
	refuse(slices.Contains(o.prompts, ""), "--prompt is empty; want at least one character, such as a line feed")
	refuse(len(prompts) > maxPrompts, "%d prompts; want at most %d", len(prompts), maxPrompts)
	refuse(o.Tokens < 1 || o.Tokens > maxSampled, "--tokens %d; want 1 to %d", o.Tokens, maxSampled)
	refuse(!(o.Temperature >= 0) || math.IsInf(o.Temperature, 0), "--temperature %v; want a number of at least 0", o.Temperature)
	refuse(o.TopK < 0, "--top-k %d; want at least 0, where 0 is all tokens", o.TopK)
	refuse(!(o.TopP > 0 && o.TopP <= 1), "--top-p %v; want a number above 0 and at most 1, where 1 is all tokens", o.TopP)
	refuse(len(o.Stop) > maxStops, "--stop %d times; want at most %d", len(o.Stop), maxStops)
	refuse(slices.ContainsFunc(o.Stop, func(s string) bool { return s == "" || len(s) > maxStop }), "--stop is empty or longer than %d bytes; want a text", maxStop)
	refuse(o.System != "" && !o.Chat, "--system is for --chat")
	if err := errors.Join(wrong...); err != nil {
		return nil, input.BadInput(err)
	}
	return prompts, nil
}

// readPrompts reads a prompt a line; empty lines are none.
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
				wrong = append(wrong, fmt.Errorf("--prompts: %s:%d: it begins with \", but is no JSON string: %w", file, line, err))
			}
		}
		if text != "" {
			prompts = append(prompts, text)
		}
	}
	if len(prompts)+len(wrong) == 0 {
		wrong = []error{fmt.Errorf("--prompts: %s has no prompt; want a text a line", file)}
	}
	return prompts, wrong[:min(len(wrong), 20)]
}
