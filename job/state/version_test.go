package state

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-11-22T10:00:00Z"}, {Key: "vcs.modified", Value: "true"}, {Key: "-tags", Value: "cuda"}}}
	if got := describe(info); !strings.HasPrefix(got, "zeroth v1.2.3 commit 0123456789ab of 2026-11-22T10:00:00Z with changes tags cuda go1.") {
		t.Errorf("describe: %q", got)
	}
	for _, made := range []string{"", "(devel)", "v0.0.0-20261122100000-0123456789ab+dirty"} {
		if got := describe(&debug.BuildInfo{Main: debug.Module{Version: made}}); !strings.HasPrefix(got, "zeroth 0.1.0-devel go1.") {
			t.Errorf("describe of %q: %q", made, got)
		}
	}
	Stamp = "v9.9.9"
	defer func() { Stamp = "" }()
	if got := describe(info); !strings.HasPrefix(got, "zeroth v9.9.9 commit ") {
		t.Errorf("describe of a release: %q", got)
	}
}
