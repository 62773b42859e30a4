// Package launchtest helps to test launches on hosts.
package launchtest

import (
	"os"
	"path/filepath"
	"testing"

	"zeroth/tests/nightly"
)

// SSH writes a program that behaves like ssh with every host on this machine. A host is down
// while the file down-HOST exists. Each agent writes its process id to a
// file. It returns the command for --ssh.
func SSH(t *testing.T, dir string) string {
	t.Helper()
	nightly.Needs(t, "sh")
	script := `#!/bin/sh
while [ $# -gt 2 ]; do shift; done
[ -e "down-$1" ] && { echo "connect to host $1: No route to host" >&2; exit 255; }
case "$2" in *agent) echo $$ >>"pids-$1";; esac
cd / && cd "$OLDPWD" && sh -c "$2"
`
	if err := os.WriteFile(filepath.Join(dir, "reach"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return "./reach"
}
