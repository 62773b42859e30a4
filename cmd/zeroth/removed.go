package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zeroth/job/config"
)

// removed are commands and flags there were, by the command they belonged to, and
// what to do instead.
var removed = map[string]string{
	"ckpt reshard":               "checkpoints load on any number of ranks: 'zeroth train JOB.yaml --resume latest --set parallel.ranks=N' just works",
	"plan --deepspeed-estimate":  "DeepSpeed's estimates count model states alone; 'zeroth plan' says all bytes of a rank, by category",
	"plan --csv":                 "it is now --timeline FILE.csv",
	"plan --html":                "it is now --timeline FILE.html",
	"plan --svg":                 "it is now --timeline FILE.svg",
	"plan --gpus-per-node":       "it was for --deepspeed-estimate; 'zeroth fit' has --gpus-per-node",
	"plan --torchtitan-estimate": "'zeroth plan --gpus N --recompute block' says what this program takes for the same model",
}

// removedCommand is a command there was under a parent: it says what to do instead.
func (a *app) removedCommand(parent, name string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              "Removed: " + removed[parent+" "+name],
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("%s %s is no more: %s", parent, name, removed[parent+" "+name])
		},
	}
}

// wrongFlag says of a flag that was removed what to do instead.
func wrongFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	if long := unknown.GetSpecifiedShortnames(); cmd.Flags().Lookup(long) != nil && len(long) > 1 {
		return fmt.Errorf("%w; did you mean --%s?", err, long)
	}
	name := "--" + unknown.GetSpecifiedName()
	key := strings.TrimPrefix(cmd.CommandPath(), "zeroth ") + " " + name
	if instead := removed[key]; instead != "" {
		return fmt.Errorf("%s is no more: %s", name, instead)
	}
	for _, s := range shortcuts {
		if s.flag == unknown.GetSpecifiedName() {
			return fmt.Errorf("%w; write --set %s=VALUE", err, s.key)
		}
	}
	if _, ok := config.Explain(unknown.GetSpecifiedName()); ok {
		return fmt.Errorf("%w; write --set %s=VALUE", err, unknown.GetSpecifiedName())
	}
	if near := nearFlag(cmd, unknown.GetSpecifiedName()); near != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return err
}

// knownCommand refuses arguments of a command that only has commands, and says what
// may have been meant.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	near := cmd.SuggestionsFor(args[0])
	if len(near) == 0 && !cmd.HasParent() {
		near = meant(args[0])
	}
	if len(near) > 0 {
		err += "\n\nDid you mean this?\n\t" + strings.Join(near, "\n\t") + "\n"
	}
	return errors.New(err)
}

// meant is the command for what stands where one belongs: a job file, or a key.
func meant(word string) []string {
	if _, ok := config.Explain(word); ok {
		return []string{"help " + word}
	}
	if ext := filepath.Ext(word); ext == ".yaml" || ext == ".yml" || ext == ".json" {
		return []string{"train " + word, "plan " + word}
	}
	return nil
}

// nearFlag is the flag of a command that a name is likely a misspelling of, or "".
func nearFlag(cmd *cobra.Command, name string) string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return config.Nearest(name, names)
}
