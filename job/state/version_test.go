package state

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}, {Key: "-tags", Value: "cuda"}}}
	if got := describe(info); !strings.HasPrefix(got, "zeroth v1.2.3 commit 0123456789ab with changes tags cuda go1.") {
		t.Errorf("describe: %q", got)
	}
	if got := describe(new(debug.BuildInfo)); !strings.HasPrefix(got, "zeroth (unknown) go1.") {
		t.Errorf("describe of nothing: %q", got)
	}
}
