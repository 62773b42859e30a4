package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"zeroth/job/state"
)

func (a *app) version() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version and how it was built",
		Long: `Print the version and how it was built: commit, Go, platform, tags. 'go version -m
FILE' lists every module inside the program with its checksum.`,
		Args: arguments(0, 0),
		RunE: a.do(func(*cobra.Command, []string) error {
			if asJSON {
				return a.writeJSON(state.ReadBuild())
			}
			fmt.Fprintln(a.out, state.Version())
			return nil
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write commit, platform and build flags as JSON")
	return cmd
}
