package repo

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// shellReader parses commands from shell text, supporting the syntax that pages use.
type shellReader struct {
	commands [][]string
	words    []string        // of the command being parsed
	word     strings.Builder // being parsed
	begun    bool            // word exists, though it may be empty
	quote    rune            // inside '…' or "…"
	comment  bool
	file     bool // the next word is the file of a redirection
}

// shellCommands returns the commands of a shell text, each as a list of words, without comments,
// redirections, keywords and variables set for one command.
func shellCommands(text string) [][]string {
	var s shellReader
	for _, r := range strings.ReplaceAll(text, "\\\n", " ") + "\n" {
		s.read(r)
	}
	return s.commands
}

func (s *shellReader) read(r rune) {
	switch {
	case s.comment:
		if r == '\n' {
			s.comment = false
			s.endCommand()
		}
	case s.quote != 0 && r == s.quote:
		s.quote = 0
	case s.quote == 0 && (r == '\'' || r == '"'):
		s.quote, s.begun = r, true
	case s.quote == 0 && r == '#' && !s.begun:
		s.comment = true
	case s.quote == 0 && (r == ' ' || r == '\t'):
		s.endWord()
	case s.quote == 0 && strings.ContainsRune("\n;|&", r):
		s.endCommand()
	case s.quote == 0 && (r == '>' || r == '<'):
		s.endWord()
		s.file = true
	default:
		s.word.WriteRune(r)
		s.begun = true
	}
}

func (s *shellReader) endWord() {
	if !s.begun {
		return
	}
	if !s.file {
		s.words = append(s.words, s.word.String())
	}
	s.word.Reset()
	s.begun, s.file = false, false
}

var (
	assignment = regexp.MustCompile(`^[A-Z_]+=`)
	keywords   = []string{"do", "done", "then", "fi", "time", "!"}
)

func (s *shellReader) endCommand() {
	s.endWord()
	for len(s.words) > 0 && (assignment.MatchString(s.words[0]) || slices.Contains(keywords, s.words[0])) {
		s.words = s.words[1:]
	}
	if len(s.words) > 2 && s.words[0] == "chrt" { // chrt -r 1 command
		s.words = s.words[3:]
	}
	if len(s.words) > 0 {
		s.commands = append(s.commands, s.words)
	}
	s.words, s.file = nil, false
}

func TestReadmeShellIsRead(t *testing.T) {
	got := shellCommands(`A=1 zeroth a "b c" '' d=e'f g' # h
for i in 1 2; do time go \
  test > x; done
cat y|grep -v "#" 2>/dev/null`)
	want := [][]string{{"zeroth", "a", "b c", "", "d=ef g"}, {"for", "i", "in", "1", "2"}, {"go", "test"}, {"cat", "y"}, {"grep", "-v", "#", "2"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
