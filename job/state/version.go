package state

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// Version is the program's: its version, the commit if the build noted it, Go
// and platform.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return describe(info)
}

// describe is the version that build information tells.
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
