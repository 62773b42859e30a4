//go:build linux

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"zeroth/tests/nightly"
)

// TestOutOfDescriptors checks that commands and processes of a world that have too few file descriptors say
// so, with the limit and the number they need, and that processes that cannot connect for that reason end
// with the exit code for a restart after parallel.join. One that connects at last, when another has given
// up waiting for it, sees only a connection that broke: then the other says why.
func TestOutOfDescriptors(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	seen := 0
	ends := func(most int, code int, said string, codes ...int) {
		t.Helper()
		short := strings.Contains(said, "too many open files")
		if short {
			seen++
		}
		if advice := fmt.Sprintf("and ulimit -n is %d here; raise it", most); code != 0 && !strings.Contains(said, "netpollinit") && !strings.Contains(said, "not connected within") && !strings.Contains(said, advice) || short && !slices.Contains(codes, code) {
			t.Errorf("limited to %d: exit code %d\n%s", most, code, said)
		}
	}
	for most := 9; most < 26; most += nightly.Of(5, 1) {
		few := []string{"ZEROTH_MAIN=files", fmt.Sprint("ZEROTH_MOST=", most)}
		for _, args := range []string{"train tiny.yaml --out alone --set checkpoint.every=1", "launch -n 2 -- train tiny.yaml --out several", "tokenize tiny.yaml --tokenizer bytes --out t.bin"} {
			cmd := s.with(few...).command(strings.Fields(args)...)
			said, _ := cmd.CombinedOutput() // the exit code is checked
			ends(most, cmd.ProcessState.ExitCode(), string(said), 1, 2, 75)
			for _, name := range []string{"alone", "several", "t.bin"} {
				if err := os.RemoveAll(s.path(name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		ln := door(t, "127.0.0.1")
		three := []string{"--set", "parallel={ranks: 3, join: 1s}", "--set", "train.steps=2"}
		others := []*joiner{s.joins(ln, 0, 3, as{args: three}), s.joins(ln, 2, 3, as{args: three})}
		one := s.joins(ln, 1, 3, as{args: three, env: few})
		ln.Close()
		<-one.done
		said := one.said.String() // a process that gave it up first says why
		for _, j := range others {
			<-j.done
			said += j.said.String()
		}
		ends(most, one.cmd.ProcessState.ExitCode(), said, 2, 75)
		for _, j := range others {
			if code := j.cmd.ProcessState.ExitCode(); code != 75 && one.cmd.ProcessState.ExitCode() != 0 {
				t.Errorf("another process, limited to %d: exit code %d\n%s", most, code, &j.said)
			}
		}
		if err := os.RemoveAll(s.path("r")); err != nil {
			t.Fatal(err)
		}
	}
	if seen == 0 {
		t.Error("no process ran out of descriptors")
	}
}
