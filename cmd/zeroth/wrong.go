package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zeroth/config"
	"zeroth/config/words"
)

// wrongFlag adds a suggestion to the error of an unknown flag. An unknown command before it is reported instead.
func (a *app) wrongFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	for _, arg := range a.args[strings.Count(cmd.CommandPath(), " "):] {
		if cmd.HasAvailableSubCommands() && !strings.HasPrefix(arg, "-") {
			return knownCommand(cmd, []string{arg})
		}
	}
	file := slices.Contains([]string{"config", "config-file", "job", "yaml", "file"}, unknown.GetSpecifiedName())
	if file && strings.Contains(cmd.Use, "JOB.yaml") {
		return fmt.Errorf("%w; write the job file without a flag: zeroth %s JOB.yaml", err, cmd.Name())
	}
	if long := unknown.GetSpecifiedShortnames(); cmd.Flags().Lookup(long) != nil && len(long) > 1 {
		return fmt.Errorf("%w; did you mean --%s?", err, long)
	}
	if slices.Contains([]string{"out", "output", "to", "o"}, unknown.GetSpecifiedName()) {
		if hint := destination(cmd); hint != "" {
			return fmt.Errorf("%w; %s", err, hint)
		}
	}
	near, sets := nearFlag(cmd, unknown.GetSpecifiedName()), cmd.Flags().Lookup("set") != nil
	if keys := keysOf(unknown.GetSpecifiedName()); keys != nil && sets {
		return fmt.Errorf("%w; write --set %s=VALUE", err, strings.Join(keys, "=VALUE or --set "))
	}
	if hint := words.Hint(unknown.GetSpecifiedName()); hint != "" && (sets || near == "" && !strings.Contains(hint, "--set ")) {
		return fmt.Errorf("%w; %s", err, hint)
	}
	if near != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return fmt.Errorf("%w; usage: %s", err, cmd.UseLine())
}

// destination returns how a command names the file or folder of its result, or "" for one that only prints.
func destination(cmd *cobra.Command) string {
	for _, flag := range []string{"out", "to"} {
		if cmd.Flags().Lookup(flag) != nil {
			return fmt.Sprintf("did you mean --%s?", flag)
		}
	}
	for _, example := range examples(cmd) {
		if strings.Contains(example, " >") {
			return "the result is written to standard output: " + example
		}
	}
	return ""
}

// examples returns the commands in the help of a command.
func examples(cmd *cobra.Command) []string {
	return strings.Split(strings.TrimSpace(strings.ReplaceAll(cmd.Example, "\n  ", "\n")), "\n")
}

// plainly rewords cobra's errors about missing flags, and about flags that exclude each other, and adds what to type.
func plainly(cmd *cobra.Command, err error) error {
	same := func(e error) bool { return err != nil && e != nil && err.Error() == e.Error() }
	var of []string
	switch {
	case same(cmd.ValidateRequiredFlags()):
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if name, _ := pflag.UnquoteUsage(f); f.Annotations[cobra.BashCompOneRequiredFlag] != nil && !f.Changed {
				of = append(of, fmt.Sprintf("--%s %s", f.Name, strings.ToUpper(name)))
			}
		})
		return fmt.Errorf("'%s' needs %s, such as: %s", cmd.CommandPath(), strings.Join(of, " and "), examples(cmd)[0])
	case same(cmd.ValidateFlagGroups()):
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if _, usage := pflag.UnquoteUsage(f); f.Annotations["cobra_annotation_mutually_exclusive"] != nil {
				of = append(of, fmt.Sprintf("--%s (%s)", f.Name, usage))
			}
		})
		return fmt.Errorf("%s exclude each other; drop one of them", strings.Join(of, " and "))
	}
	return err
}

// keysOf returns the keys that an unknown flag may mean: tensor is parallel.tensor, micro-batch
// is train.micro_batch, optimizer is optimizer.type, and learning-rate of other programs is optimizer.lr.
func keysOf(flag string) (keys []string) {
	if key, ok := shortcuts[flag]; ok {
		return []string{key}
	}
	name := strings.ReplaceAll(flag, "-", "_")
	for _, key := range config.Keys() {
		_, last, _ := strings.Cut(key, ".")
		if key == name || last == name || key == name+".type" {
			keys = append(keys, key)
		}
	}
	for _, w := range words.Known(name) {
		if keys == nil && w.Ours != "" {
			return []string{w.Ours}
		}
	}
	return keys
}

// misplaced returns advice on an argument that should be the value of a flag, or "".
func misplaced(cmd *cobra.Command, args []string) string {
	advice := ""
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if v := f.Value.String(); strings.HasPrefix(v, "--") {
			advice = fmt.Sprintf("--%s got %s as its value; write it as --%[1]s VALUE", f.Name, v)
		}
	})
	for _, arg := range args {
		if key, _, ok := strings.Cut(arg, "="); ok && keysOf(key) != nil && advice == "" {
			advice = "write --set " + quoted(arg)
		}
	}
	return advice
}

// knownCommand refuses arguments of a command that only has subcommands, and suggests one.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	near := cmd.SuggestionsFor(args[0])
	if len(near) == 0 && !cmd.HasParent() {
		near = suggestions(args[0])
	}
	for i, name := range near {
		if sub, _, _ := cmd.Find([]string{name, args[0]}); sub != nil && sub.Name() == args[0] {
			near[i] += " " + args[0]
		}
	}
	if len(near) > 0 {
		err += "\n\nDid you mean this?\n\t" + strings.Join(near, "\n\t") + "\n"
	}
	return errors.New(err)
}

// suggestions returns commands for an argument that is a job file or a key.
func suggestions(word string) []string {
	if _, ok := config.Explain(word); ok {
		return []string{"help " + word}
	}
	if ext := filepath.Ext(word); ext == ".yaml" || ext == ".yml" || ext == ".json" {
		return []string{"train " + word, "plan " + word}
	}
	return nil
}

// nearFlag returns the flag of a command that name is likely a misspelling of, or the beginning, or "".
func nearFlag(cmd *cobra.Command, name string) string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := words.Nearest(name, names); near != "" || len(name) < 3 {
		return near
	}
	names = slices.DeleteFunc(names, func(s string) bool { return !strings.HasPrefix(s, name) })
	return strings.Join(names, " or --")
}
