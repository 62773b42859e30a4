package job

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"zeroth/internal/input"
	"zeroth/job/generate"
	"zeroth/job/jobtest"
	"zeroth/job/spec/spectest"
)

// trained makes a run of a few steps in the folder "run".
func trained(t *testing.T, sets ...string) {
	t.Helper()
	jobtest.InTinyFolder(t)
	if err := Run(t.Context(), spectest.MustLoad(t, append([]string{"train.steps=3"}, sets...)...), Options{Out: "run", Observer: &heard{}}); err != nil {
		t.Fatal(err)
	}
}

func sampled(t *testing.T, o generate.Options) string {
	t.Helper()
	var b bytes.Buffer
	if err := generate.Sample(t.Context(), o, &b); err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	return b.String()
}

// TestSample checks that a sample depends only on the model, the prompt and the seed, that only the
// end of a prompt beyond the context counts, and that text continues beyond the context.
func TestSample(t *testing.T) {
	defer goleak.VerifyNone(t)
	trained(t)
	o := generate.Options{Run: "run", Prompt: "line 1", Tokens: 30, Rules: generate.Rules{Temperature: 1}, Seed: 5}
	want := sampled(t, o)
	if !strings.HasPrefix(want, "line 1") || len(want) != len("line 1")+30 {
		t.Errorf("%d bytes: %q", len(want), want)
	}
	if got := sampled(t, o); got != want {
		t.Errorf("again: %q, first %q", got, want)
	}
	o.Run = "run/model"
	if got := sampled(t, o); got != want {
		t.Errorf("from the model's folder: %q, from the run's %q", got, want)
	}
	o.Seed = 6
	if sampled(t, o) == want {
		t.Error("another seed writes the same")
	}
	long, short := o, o
	long.Prompt, short.Prompt = "many bytes before line 1 of 2", "e 1 of 2" // a context is 8
	if got, want := strings.TrimPrefix(sampled(t, long), long.Prompt), strings.TrimPrefix(sampled(t, short), short.Prompt); got != want {
		t.Errorf("after a long prompt %q, after its last 8 bytes %q", got, want)
	}
}

// TestManySamples checks that each of many prompts gets the same answer as alone, however many are
// processed at once: with shorter and longer ones, common beginnings, prompts beyond the context,
// and early stops.
func TestManySamples(t *testing.T) {
	trained(t)
	o := generate.Options{Run: "run", Tokens: 12, Rules: generate.Rules{Temperature: 1, TopP: 0.9}, Seed: 5}
	prompts := []string{"line 1", "l", "line 2", "many bytes before line 1 of 2", "line 1", "li"}
	many := func(prompts ...string) (answers []generate.Answer, written string) {
		var all bytes.Buffer
		if err := generate.Many(t.Context(), o, prompts, &all, func(a generate.Answer) error { answers = append(answers, a); return nil }); err != nil {
			t.Fatal(err)
		}
		return answers, all.String()
	}
	a, _ := many(prompts[0])
	o.Stop = []string{a[0].Text[len(a[0].Text)/2:][:2]}
	var alone []generate.Answer
	text, reasons := "", map[string]bool{}
	for _, prompt := range prompts {
		a, written := many(prompt)
		alone, text, reasons[a[0].Reason] = append(alone, a...), text+written, true
		if written != prompt+a[0].Text {
			t.Errorf("%q: written %q, told %q", prompt, written, a[0].Text)
		}
	}
	if len(reasons) < 2 {
		t.Errorf("all end alike: %v", reasons)
	}
	for _, o.Batch = range []int{1, 2, 3, 100} {
		if answers, written := many(prompts...); !slices.Equal(answers, alone) || written != text {
			t.Errorf("%d at once: %+v, written %q; alone %+v, %q", o.Batch, answers, written, alone, text)
		}
	}
}

// TestSampleStop checks that a text ends before the first stop string, even one of several tokens,
// here bytes, and that the prompt may contain it.
func TestSampleStop(t *testing.T) {
	trained(t)
	o := generate.Options{Run: "run", Prompt: "line 1", Tokens: 30, Rules: generate.Rules{Temperature: 1}, Seed: 5}
	text := strings.TrimPrefix(sampled(t, o), o.Prompt)
	stop := text[9:12]
	at := strings.Index(text, stop)
	o.Stop = []string{"never", stop}
	err := generate.Many(t.Context(), o, []string{o.Prompt}, io.Discard, func(a generate.Answer) error {
		if want := (generate.Answer{Prompt: o.Prompt, Text: text[:at], Tokens: at + len(stop), Reason: "stop"}); a != want {
			t.Errorf("%+v, want %+v", a, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	o.Stop = []string{"line 1"}
	if got := sampled(t, o); got != o.Prompt+text {
		t.Errorf("stopped by its prompt: %q, want %q", got, o.Prompt+text)
	}
}

// TestSampleOnlyTokens checks the tokens beyond the tokenizer's in a larger vocabulary, which have
// no text.
func TestSampleOnlyTokens(t *testing.T) {
	trained(t, "model.vocab=5000")
	for seed := range uint64(3) {
		text := sampled(t, generate.Options{Run: "run", Prompt: "\n", Tokens: 20, Rules: generate.Rules{Temperature: 100}, Seed: seed})
		if len(text) != 21 {
			t.Errorf("20 tokens are %d bytes: %q", len(text)-1, text)
		}
	}
}

func TestSampleStops(t *testing.T) {
	trained(t)
	ctx, stop := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	w := jobtest.WriterFunc(func(b []byte) (int, error) {
		if string(b) != "line" {
			stop(reason) // at the first token
		}
		return len(b), nil
	})
	if err := generate.Sample(ctx, generate.Options{Run: "run", Prompt: "line", Tokens: 1 << 40}, w); err != reason {
		t.Errorf("got %v, want %v", err, reason)
	}
	full := errors.New("full")
	for after := range 2 {
		w := jobtest.WriterFunc(func(b []byte) (int, error) {
			if after--; after < 0 {
				return 0, full
			}
			return len(b), nil
		})
		if err := generate.Sample(t.Context(), generate.Options{Run: "run", Prompt: "line", Tokens: 3}, w); err != full {
			t.Errorf("got %v, want %v", err, full)
		}
	}
}

func TestSampleOfNothing(t *testing.T) {
	trained(t)
	if err := os.Remove("run/model/model.safetensors"); err != nil {
		t.Fatal(err)
	}
	for run, want := range map[string]string{
		"gone": "--run gone: gone/config.json cannot be read: no such file or directory; want the folder of a run that has a model or a checkpoint, a checkpoint, or a Hugging Face folder",
		"run":  "safetensors: run/model: has neither model.safetensors nor model.safetensors.index.json",
	} {
		err := generate.Sample(t.Context(), generate.Options{Run: run, Prompt: "a", Tokens: 1}, io.Discard)
		if err == nil || err.Error() != want || !input.IsInput(err) {
			t.Errorf("%s: %v\nwant %s", run, err, want)
		}
	}
}
