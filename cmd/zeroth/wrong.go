package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zeroth/config"
	"zeroth/config/words"
)

// wrongFlag adds a suggestion to the error of an unknown flag.
func wrongFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	if long := unknown.GetSpecifiedShortnames(); cmd.Flags().Lookup(long) != nil && len(long) > 1 {
		return fmt.Errorf("%w; did you mean --%s?", err, long)
	}
	if keys := keysOf(unknown.GetSpecifiedName()); keys != nil {
		return fmt.Errorf("%w; write --set %s=VALUE", err, strings.Join(keys, "=VALUE or --set "))
	}
	if near := nearFlag(cmd, unknown.GetSpecifiedName()); near != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return err
}

// keysOf returns the keys that an unknown flag may mean: tensor is parallel.tensor, micro-batch
// is train.micro_batch, and optimizer is optimizer.type.
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
	return keys
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

// nearFlag returns the flag of a command that name is likely a misspelling of, or "".
func nearFlag(cmd *cobra.Command, name string) string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return words.Nearest(name, names)
}
