package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"zeroth/input"
	"zeroth/job/generate"
	"zeroth/job/show"
)

func (a *app) sample() *cobra.Command {
	o := generate.Options{}
	cmd := &cobra.Command{
		Use:        "sample --run FOLDER",
		Short:      "Let a trained model continue a text",
		SuggestFor: []string{"generate", "infer", "inference", "chat", "complete"},
		Long: `Let the model of a run folder continue a text, up to so many tokens or the one
that ends a text. Of a run that still trains its newest complete checkpoint is
taken; --run may also name a checkpoint, or a Hugging Face folder. The same seed
writes the same text. On a terminal control characters are written as in a Go
string; in a pipe bytes are as they come.`,
		Example: `  zeroth sample --run run1 --prompt "func main() {" --tokens 200
  zeroth sample --run run1/ckpt/step-00001000
  zeroth sample --run run1 --prompt "// " --temperature 0 --tokens 50
  zeroth sample --run ./Qwen3-0.6B --chat --prompt "Why is the sky blue?"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return fmt.Errorf("sample takes no arguments; did you mean: zeroth sample --run %s", quoted(args[0]))
		},
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			if err := checkSample(o); err != nil {
				return err
			}
			ctx, release := untilSignal(cmd.Context(), func() {})
			defer release()
			o.Note = a.note
			err := a.writeSample(ctx, o)
			if errors.Is(err, context.Canceled) && ctx.Err() != nil {
				fmt.Fprintln(a.out) // a shell's prompt is not behind the text
				return errStopped
			}
			return err
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&o.Run, "run", "", "run `folder` that training wrote, or writes; a checkpoint; or a Hugging Face folder")
	f.StringVar(&o.Tokenizer, "tokenizer", "", "`name` bytes or gpt2, or a folder with tokenizer.json, or vocab.json and merges.txt (default the model's)")
	f.StringVar(&o.Prompt, "prompt", "\n", "`text` to continue")
	f.BoolVar(&o.Chat, "chat", false, "the prompt is a user's message; write the answer, by the chat template of the tokenizer's folder")
	f.StringVar(&o.System, "system", "", "with --chat, `text` that tells the model how to answer")
	intVar(f, &o.Tokens, "tokens", 200, "tokens to write, at most")
	f.Float64Var(&o.Temperature, "temperature", 0.8, "0 always takes the likeliest token, 1 the model's own spread")
	intVar(f, &o.TopK, "top-k", 0, "choose among the `k` likeliest tokens; 0 is all")
	uintVar(f, &o.Seed, "seed", 1, "of the choices")
	f.StringVar(&o.Device, "device", "auto", "`name` auto, cpu or cuda: what computes, as the job's key device")
	must(cmd.MarkFlagRequired("run"))
	must(cmd.MarkFlagDirname("run"))
	must(cmd.RegisterFlagCompletionFunc("tokenizer", wordsOrFile("bytes", "gpt2")))
	return cmd
}

// writeSample writes the text, and a line feed, so that a shell's prompt does not
// stand behind it.
func (a *app) writeSample(ctx context.Context, o generate.Options) error {
	end := func() error { return nil }
	w := a.out
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		screen := show.NewScreen(f)
		w, end = screen, screen.Close
	}
	if err := generate.Sample(ctx, o, w); err != nil {
		return err
	}
	if err := end(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.out)
	return err
}

// maxSampled is as many tokens as a job may ask for.
const maxSampled = 1 << 20

// checkSample refuses all flags that make no sense, at once.
func checkSample(o generate.Options) error {
	var wrong []error
	if o.Device != "auto" && o.Device != "cpu" && o.Device != "cuda" {
		wrong = append(wrong, fmt.Errorf("--device %q; want auto, cpu or cuda", show.Brief(o.Device)))
	}
	if o.Prompt == "" {
		wrong = append(wrong, errors.New("--prompt is empty; want at least one character, such as a line feed"))
	}
	if o.Tokens < 1 || o.Tokens > maxSampled {
		wrong = append(wrong, fmt.Errorf("--tokens %d; want 1 to %d", o.Tokens, maxSampled))
	}
	if !(o.Temperature >= 0) || math.IsInf(o.Temperature, 0) {
		wrong = append(wrong, fmt.Errorf("--temperature %v; want a number of at least 0", o.Temperature))
	}
	if o.TopK < 0 {
		wrong = append(wrong, fmt.Errorf("--top-k %d; want at least 0, where 0 is all tokens", o.TopK))
	}
	if o.System != "" && !o.Chat {
		wrong = append(wrong, errors.New("--system is for --chat"))
	}
	if len(wrong) == 0 {
		return nil
	}
	return input.BadInput(errors.Join(wrong...))
}
