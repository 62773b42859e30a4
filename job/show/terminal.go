package show

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Width is how many columns a terminal has; 0 if out is none.
func Width(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// Print writes a text for people, as Fitted has it. Names and paths in it may come from
// anywhere: a terminal obeys none of it.
func Print(out io.Writer, text string) error {
	_, err := io.WriteString(out, Fitted(out, Escape(text)))
	return err
}

// Fitted is a text as out can have it. On a terminal long lines are broken between
// words, and characters that its locale lacks are written with those it has;
// elsewhere the text stays as it is, for other programs.
func Fitted(out io.Writer, text string) string {
	width := Width(out)
	if width == 0 {
		return text
	}
	if text = within(text, width); unicodeLocale() {
		return text
	}
	return plain(text)
}

// unicodeLocale tells whether the locale can show all characters, as far as it
// says what it can.
func unicodeLocale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			v = strings.ToLower(strings.ReplaceAll(v, "-", ""))
			return strings.Contains(v, "utf8")
		}
	}
	return true
}

// likeness are characters of ours in ASCII.
var likeness = map[rune]string{'×': "x", 'µ': "u", '–': "-", '−': "-", '…': "...", '·': "*", '≥': ">=", '≤': "<=", '→': "->", '↑': "^"}

// plain is a text in ASCII.
func plain(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch like, ok := likeness[r]; {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		case ok:
			b.WriteString(like)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

// hang is how far the rest of a broken line is indented: to where words begin
// that stand behind a name of up to seven letters.
const hang = 8

// within breaks lines of more than width characters between words.
func within(text string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		words, end := strings.CutSuffix(line, "\n")
		b.WriteString(brokenLine(words, width))
		if end {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// brokenLine breaks a line at spaces, which it otherwise leaves as they are. A
// word that is longer than a line stays whole.
func brokenLine(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	indent := len(line) - len(strings.TrimLeft(line, " "))
	rest := strings.Repeat(" ", max(hang, indent))
	if width <= 3*len(rest) {
		rest = ""
	}
	at := lastSpace(line, width, indent)
	if at < 0 {
		return line
	}
	return strings.TrimRight(line[:at], " ") + "\n" + brokenLine(rest+strings.TrimLeft(line[at:], " "), width)
}

// lastSpace is the index of the last space behind the indent with which a line is
// at most so wide, or else of the first there is; -1 for none.
func lastSpace(line string, width, indent int) int {
	at, column := -1, 0
	for i, r := range line {
		if r == ' ' && i > indent && line[i-1] != ' ' && (column <= width || at < 0) {
			at = i
		}
		column++
	}
	return at
}
