package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"zeroth/job/state"
)

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and how it was built",
		Args:  arguments(0, 0),
		RunE: a.do(func(*cobra.Command, []string) error {
			fmt.Fprintln(a.out, state.Version())
			return nil
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}
