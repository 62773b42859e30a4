package show

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Width returns the number of columns of a terminal, 0 if out is not one.
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

// Print writes a text for people, formatted by Fitted. Names and paths in it are untrusted, so
// control characters are escaped.
func Print(out io.Writer, text string) error {
	_, err := io.WriteString(out, Fitted(out, Escape(text)))
	return err
}

// Fitted returns a text as out can show it. For a terminal it breaks long lines between words
// and replaces characters that its locale lacks; otherwise the text is unchanged, for other
// programs.
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

// unicodeLocale reports whether the locale claims to support all characters.
func unicodeLocale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			v = strings.ToLower(strings.ReplaceAll(v, "-", ""))
			return strings.Contains(v, "utf8")
		}
	}
	return true
}

// likeness maps characters that zeroth prints to ASCII.
var likeness = map[rune]string{'×': "x", 'µ': "u", '–': "-", '−': "-", '…': "...", '·': "*", '≥': ">=", '≤': "<=", '→': "->", '↑': "^"}

// plain returns a text in ASCII.
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

// hang is the indent of the continuation of a broken line: the column of the text after a name of
// up to seven letters.
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

// brokenLine breaks a line at spaces and changes nothing else. A word that is longer than a
// line stays whole.
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

// lastSpace returns the index of the last space after the indent at which a line has at most
// width characters, otherwise of the first space, or -1.
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
