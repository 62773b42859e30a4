package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/internal/input/hub"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/nn"
)

func (a *app) model() *cobra.Command {
	return &cobra.Command{
		Use:   "model FOLDER|hf://ORG/NAME",
		Short: "Show what a Hugging Face folder contains, and whether zeroth can train it",
		Long: `Show the family, shape, parameters, types, size, tokenizer and chat template of a
Hugging Face model. If zeroth cannot train it, all reasons are reported at once, with
exit code 2. The values of parameters are not read.`,
		Example: "  zeroth model ./Qwen3-0.6B\n  zeroth model hf://Qwen/Qwen3-0.6B@main",
		Args:    arguments(1, 1),
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			row := func(word, format string, args ...any) {
				_ = show.Print(a.out, fmt.Sprintf("%-10s %s\n", word, fmt.Sprintf(format, args...))) // a.out remembers its first error
			}
			folder, err := a.local(cmd.Context(), args[0], hub.Weights)
			if err != nil {
				return err
			}
			m, carried, err := hf.ReadConfig(folder)
			if err != nil && input.Exists(folder) {
				err = errors.Join(err, printTokenizer(folder, row))
			}
			if err != nil {
				return err
			}
			row("family", "%s", m.Describe())
			row("shape", "%s", describeShape(m))
			err = errors.Join(printParameters(folder, m, row), printTokenizer(folder, row))
			for _, note := range carried.Notes {
				row("note", "%s", show.Printable(note))
			}
			if err == nil {
				row("trains", "with model: {from: %q}", args[0])
			}
			return err
		}),
		ValidArgsFunction: onlyFolders(1),
	}
}

// describeShape returns a model's shape in words.
func describeShape(m hf.Model) string {
	words := []string{fmt.Sprintf("%d layers", m.Layers), fmt.Sprintf("width %d", m.Width), fmt.Sprintf("%d heads of %d", m.Heads, m.Head())}
	if m.Family == "llama" {
		words[2] += fmt.Sprintf(" (%d for keys and values)", m.KV)
		if m.FFN > 0 {
			words = append(words, fmt.Sprintf("MLP %d", m.FFN))
		}
		if x := m.Experts; x.Count > 0 {
			words = append(words, fmt.Sprintf("%d of %d experts of width %d", x.Router.TopK, x.Count, x.FFN))
		}
		if n := m.Experts.Shared; n > 0 {
			words = append(words, fmt.Sprintf("a shared expert of width %d", n))
		}
	}
	words = append(words, fmt.Sprintf("context %d", m.Context), fmt.Sprintf("vocabulary %d", m.Vocab))
	if m.Window > 0 {
		n := len(m.Layout) - len(strings.ReplaceAll(m.Layout, "w", ""))
		words = append(words, fmt.Sprintf("%d layers attend to a window of %d", n, m.Window))
	}
	if m.Tied {
		words = append(words, "tied embeddings")
	}
	return strings.Join(words, ", ")
}

// printParameters prints the number, size and types of the folder's tensors.
func printParameters(folder string, m hf.Model, row func(word, format string, args ...any)) error {
	t, err := hf.OpenModel(folder, m)
	if err != nil {
		return err
	}
	defer t.Close() // only read from
	elements, bytes, types := int64(0), int64(0), map[string]bool{}
	for _, p := range hf.Parameters(m.Network(nn.LoRA{})) {
		x, _ := t.Tensor(t.Names[p.Name])
		elements, bytes = elements+int64(x.Numel()), bytes+int64(x.Numel())*int64(x.DType.Size())
		types[string(x.DType)] = true
	}
	var names []string
	for name := range types {
		names = append(names, name)
	}
	slices.Sort(names)
	row("parameters", "%s (%d) in %d tensors, %s of %s", show.Compact(float64(elements)), elements, len(t.Names), show.ByteSize(bytes), strings.Join(names, ", "))
	for _, note := range t.Note() {
		row("note", "%s", show.Printable(note))
	}
	return nil
}

// printTokenizer describes the tokenizer and the chat template of the folder.
func printTokenizer(folder string, row func(word, format string, args ...any)) error {
	files := data.TokenizerFiles(folder)
	if len(files) == 0 {
		row("tokenizer", "none; train on token files, or choose one with data.tokenizer")
		return nil
	}
	t, err := data.NewTokenizer(folder)
	if err != nil {
		return input.BadInput(fmt.Errorf("tokenizer: %w", err))
	}
	row("tokenizer", "%s, %d tokens", strings.Join(files, ", "), t.Vocab())
	if _, err := data.NewChat(t, time.Now()); err != nil {
		row("chat", "no: %s", show.Printable(err.Error()))
	} else {
		row("chat", "has a template, for data.format: chat and sample --chat")
	}
	return nil
}
