package launch

import (
	"bytes"
	"fmt"
	"strings"

	"zeroth/internal/show"
)

// complain prints the errors of all processes but 0, which prints its own: each line once,
// preceded by the processes that printed it, as in "[1,3] zeroth: peer 2 lost" or
// "[1 on node1,3 on node2] ...". Then it names the processes that a signal ended.
func (s *Supervisor) complain() {
	var lines []string
	by := map[string][]string{}
	for rank, c := range s.children {
		for line := range bytes.Lines(c.errs.kept.Bytes()) {
			text := string(bytes.TrimRight(line, "\r\n")) // ssh ends lines like a terminal
			if by[text] == nil {
				lines = append(lines, text)
			}
			by[text] = append(by[text], c.label(rank))
		}
	}
	for _, text := range lines {
		if by[text][0] != s.children[0].label(0) {
			fmt.Fprintf(s.Errs, "[%s] %s\n", strings.Join(by[text], ","), show.Escape(text))
		}
	}
	for rank, c := range s.children {
		which := fmt.Sprintf("process %d of %d", rank, len(s.children))
		if c.host != "" {
			which += " on " + c.host
		}
		switch {
		case c.code >= 0: // it printed the reason itself
		case c.killed:
			fmt.Fprintf(s.Errs, "zeroth: %s did not end by itself and was killed\n", which)
		case c.how == "signal: killed":
			fmt.Fprintf(s.Errs, "zeroth: %s ended by %s, which the system also sends when memory runs out\n", which, c.how)
		default:
			fmt.Fprintf(s.Errs, "zeroth: %s ended by %s\n", which, c.how)
		}
	}
}

// code returns the exit code of the launch. If all processes were lost, none has looked for a checkpoint.
func (s *Supervisor) code() int {
	code, lost := ExitDone, true
	for _, c := range s.children {
		its := c.code
		if its == ExitAlone {
			its = c.before
		}
		lost = lost && (its < 0 || its == ExitLeft)
		switch {
		case s.survived && its == ExitDone: // the others were lost
			return ExitDone
		case its == ExitLeft: // the others decide
		case code == ExitInput || its == ExitInput:
			code = ExitInput
		case code == ExitAgain || its == ExitAgain:
			code = ExitAgain
		case code == ExitDone && its < 0:
			code = ExitFailure
		case code == ExitDone:
			code = its
		}
	}
	if code == ExitFailure && lost && s.Saved != nil && s.Saved() {
		return ExitAgain
	}
	return code
}
