package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"zeroth/job"
)

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and how it was built",
		Args:  cobra.NoArgs,
		RunE: a.do(func(*cobra.Command, []string) error {
			fmt.Fprintln(a.out, job.Version())
			return nil
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}
