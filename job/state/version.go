package state

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"strings"
)

// number is the version in development.
const number = "0.1.0-devel"

// Stamp is the version of a release, set by its build with -ldflags "-X
// zeroth/job/state.Stamp=v1.2.3". If empty, the build information is used.
var Stamp string

// Version returns the program's version, the commit if the build recorded it, Go's version and
// the platform.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return describe(info)
}

// Build is how the program was built.
type Build struct {
	Version  string            `json:"version"`
	Commit   string            `json:"commit,omitempty"`
	Time     string            `json:"time,omitempty"` // of the commit
	Modified bool              `json:"modified"`       // files differed from the commit
	Go       string            `json:"go"`
	OS       string            `json:"os"`
	Arch     string            `json:"arch"`
	Flags    map[string]string `json:"flags"` // "-tags", "CGO_ENABLED" and so on
}

// ReadBuild returns how this program was built.
func ReadBuild() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	b := Build{Version: version(info), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, Flags: map[string]string{}}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		default:
			b.Flags[s.Key] = s.Value
		}
	}
	return b
}

// version returns the release, or the one in development. A version that Go derives from a commit
// adds nothing to the commit.
func version(info *debug.BuildInfo) string {
	tagged := info.Main.Version
	if tagged == "(devel)" || strings.HasPrefix(tagged, "v0.0.0-") {
		tagged = ""
	}
	return cmp.Or(Stamp, tagged, number)
}

// describe returns the version of the stamp or the build information. A version that Go
// derives from a commit adds nothing to the commit.
func describe(info *debug.BuildInfo) string {
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	words := []string{"zeroth", version(info)}
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
