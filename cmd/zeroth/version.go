package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and how it was built",
		Args:  cobra.NoArgs,
		RunE: a.do(func(*cobra.Command, []string) error {
			info, ok := debug.ReadBuildInfo()
			if !ok {
				info = new(debug.BuildInfo)
			}
			fmt.Fprintln(a.out, describe(info))
			return nil
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

// describe is the version, the commit if the build noted it, Go and platform.
func describe(info *debug.BuildInfo) string {
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	version := info.Main.Version
	if version == "" {
		version = "(unknown)"
	}
	words := []string{"zeroth", version}
	if commit := set["vcs.revision"]; commit != "" {
		words = append(words, "commit", commit[:min(12, len(commit))])
		if set["vcs.modified"] == "true" {
			words = append(words, "with changes")
		}
	}
	if tags := set["-tags"]; tags != "" {
		words = append(words, "tags", tags)
	}
	return strings.Join(append(words, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH), " ")
}
