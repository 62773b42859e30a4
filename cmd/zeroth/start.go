package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"zeroth/config"
	"zeroth/config/dialect"
	"zeroth/internal/input"
	"zeroth/job/spec"
)

// initJob returns "zeroth init", which writes a job file for a goal.
func (a *app) initJob() *cobra.Command {
	var names []string
	list, model, from := "", "", []string(nil)
	for _, g := range spec.Goals() {
		names = append(names, g.Name)
		list += fmt.Sprintf("  %-11s %s\n", g.Name, g.For)
	}
	cmd := &cobra.Command{
		Use:        "init [GOAL] [FILE]",
		Short:      "Write a commented job file for a goal",
		SuggestFor: []string{"new", "create"},
		Long: `Write a commented job file for a goal, for you to edit, to GOAL.yaml, to another FILE,
or with - to standard output. Existing files are never overwritten. --from converts a
configuration of DeepSpeed, Accelerate, Axolotl or LLaMA-Factory, or TrainingArguments,
and prints the job.
Goals:

` + strings.TrimRight(list, "\n"),
		Example: "  zeroth init quickstart\n  zeroth init chat --model Qwen3-1.7B\n  zeroth init pretrain - | less\n  zeroth init --from ds_config.json > job.yaml",
		Args:    arguments(0, 2),
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			if len(from) > 0 {
				return a.translate(from, args)
			}
			if len(args) == 0 {
				a.say("zeroth init GOAL writes GOAL.yaml. Goals:\n\n%s", list)
				return nil
			}
			for _, g := range spec.Goals() {
				if g.Name == args[0] {
					g, err := g.Of(model)
					if err != nil {
						return err
					}
					return a.writeGoal(g, args[1:])
				}
			}
			return input.BadInput(fmt.Errorf("unknown goal %q; want one of\n%s", args[0], strings.TrimRight(list, "\n")))
		}),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return names, cobra.ShellCompDirectiveNoFileComp
			}
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	cmd.Flags().StringVar(&model, "model", "", "`model` to start from, for chat, finetune and lora: a folder, hf://org/name, or a published one such as Llama-3.2-1B")
	must(cmd.RegisterFlagCompletionFunc("model", oneOf(publishedNames()...)))
	cmd.Flags().StringArrayVar(&from, "from", nil, "configuration `file` of another program to convert; twice for TrainingArguments and the DeepSpeed configuration that they use")
	return cmd
}

// translate prints the job of another program's configuration.
func (a *app) translate(files, more []string) error {
	if len(more) > 0 {
		return input.BadInput(fmt.Errorf("init --from prints a job; want no goal (%s)", strings.Join(more, " ")))
	}
	text, ok, err := dialect.Translate(files...)
	if err != nil {
		return err
	}
	if !ok {
		return input.BadInput(fmt.Errorf("%s is no configuration of DeepSpeed, Accelerate, Axolotl or LLaMA-Factory, nor TrainingArguments", strings.Join(files, " or ")))
	}
	_, err = io.WriteString(a.out, text)
	return err
}

// writeGoal writes a goal's job to a new file.
func (a *app) writeGoal(g spec.Goal, to []string) error {
	file := g.Name + ".yaml"
	if len(to) > 0 {
		file = to[0]
	}
	text := strings.ReplaceAll(g.Text, g.Name+".yaml", file)
	if file == "-" {
		_, err := fmt.Fprint(a.out, g.Text)
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, os.ErrExist) {
		return input.BadInput(fmt.Errorf("%s exists and is not overwritten; name another file, such as: zeroth init %s my-%s.yaml", file, g.Name, g.Name))
	}
	if err != nil {
		return input.BadInput(fmt.Errorf("%w; name a file that can be written", err))
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(file)) // an incomplete job must not be run
	}
	if !a.quiet {
		a.say("wrote %s. Replace the paths marked YOUR, then run: zeroth plan %s\n", file, quoted(file))
	}
	return nil
}

// schema returns "zeroth schema", which prints the JSON Schema of the job file.
func (a *app) schema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the job file, for editors",
		Long: `Print the JSON Schema of the job file. An editor with a YAML language server checks
and completes a job that begins with the line

  # yaml-language-server: $schema=zeroth.schema.json`,
		Example: "  zeroth schema > zeroth.schema.json",
		Args:    arguments(0, 0),
		RunE: a.do(func(*cobra.Command, []string) error {
			return a.writeJSON(config.Schema())
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

// man returns "zeroth man", which writes the manual pages.
func (a *app) man(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "man FOLDER",
		Short:   "Write man pages of all commands to a folder",
		Example: "  zeroth man ~/.local/share/man/man1",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("want one folder, such as: zeroth man ~/.local/share/man/man1 (%s given)", count(len(args), "argument"))
			}
			return nil
		},
		RunE: a.do(func(_ *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o777); err != nil {
				return input.BadInput(fmt.Errorf("%w; name a folder that can be created", err))
			}
			root.DisableAutoGenTag = true
			return writeMan(root, args[0])
		}),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
}

// literal converts a help text to Markdown that renders as it is: indented lines become
// code blocks, which keep columns, and punctuation loses its meaning.
func literal(help string) string {
	var out strings.Builder
	block := true // whether a code block may follow without a blank line
	for line := range strings.Lines(help) {
		switch {
		case strings.HasPrefix(line, "  "):
			if !block {
				out.WriteByte('\n')
			}
			block = true
			out.WriteString("  " + line)
		default:
			block = strings.TrimSpace(line) == ""
			out.WriteString(markdown.Replace(line))
		}
	}
	return out.String()
}

// markdown escapes the punctuation that Markdown gives a meaning.
var markdown = strings.NewReplacer("*", `\*`, "_", `\_`, "<", `\<`, "[", `\[`, "#", `\#`)

// writeMan writes the pages of a command and its subcommands.
func writeMan(cmd *cobra.Command, folder string) error {
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	cmd.Long = literal(cmd.Long)
	err := writeFile(filepath.Join(folder, name+".1"), func(w io.Writer) error {
		return doc.GenMan(cmd, &doc.GenManHeader{Title: "ZEROTH", Section: "1", Source: "zeroth", Manual: "zeroth"}, w)
	})
	for _, below := range cmd.Commands() {
		if err == nil && below.IsAvailableCommand() && !below.IsAdditionalHelpTopicCommand() {
			err = writeMan(below, folder)
		}
	}
	return err
}
