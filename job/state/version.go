package state

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"strings"
)

// number is the version that is being worked on.
const number = "0.1.0-devel"

// Stamp is the version of a release, which its build gives with
// -ldflags "-X zeroth/job/state.Stamp=v1.2.3"; empty: the build information tells.
var Stamp string

// Version is the program's: its version, the commit if the build noted it, Go
// and platform.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return describe(info)
}

// describe is the version that the stamp or build information tells. A version
// that Go makes of a commit says no more than the commit.
func describe(info *debug.BuildInfo) string {
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	tagged := info.Main.Version
	if tagged == "(devel)" || strings.HasPrefix(tagged, "v0.0.0-") {
		tagged = ""
	}
	words := []string{"zeroth", cmp.Or(Stamp, tagged, number)}
	if commit := set["vcs.revision"]; commit != "" {
		words = append(words, "commit", commit[:min(12, len(commit))])
		if at := set["vcs.time"]; at != "" {
			words = append(words, "of", at)
		}
		if set["vcs.modified"] == "true" {
			words = append(words, "with changes")
		}
	}
	if tags := set["-tags"]; tags != "" {
		words = append(words, "tags", tags)
	}
	return strings.Join(append(words, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH), " ")
}
