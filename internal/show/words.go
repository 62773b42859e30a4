package show

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Grouped formats 1234567 as 1,234,567.
func Grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Compact formats 12345 as 12.3k, and a billion as 1.0B.
func Compact(x float64) string {
	switch {
	case x >= 1e12:
		return fmt.Sprintf("%.1fT", x/1e12)
	case x >= 1e9:
		return fmt.Sprintf("%.1fB", x/1e9)
	case x >= 1e6:
		return fmt.Sprintf("%.1fM", x/1e6)
	case x >= 1e3:
		return fmt.Sprintf("%.1fk", x/1e3)
	}
	return fmt.Sprintf("%.0f", x)
}

// ByteSize formats bytes in units of 1024.
func ByteSize(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	x, i := float64(n), 0
	for ; math.Abs(x) >= 1024 && i < len(units)-1; i++ {
		x /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", x, units[i])
}

// Span formats a duration: 4.2s, 3m05s, 2h10m.
func Span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second)).Round(time.Second)
	switch {
	case seconds < 10:
		return fmt.Sprintf("%.1fs", seconds)
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

// Seconds formats seconds in a suitable unit.
func Seconds(s float64) string {
	switch {
	case s < 1e-3:
		return fmt.Sprintf("%.0f µs", 1e6*s)
	case s < 1:
		return fmt.Sprintf("%.1f ms", 1e3*s)
	}
	return fmt.Sprintf("%.2f s", s)
}

// Brief returns the beginning of a text from a file, in printable characters.
func Brief(s string) string { return Printable(Cut(strings.ToValidUTF8(s, "\uFFFD"), 100)) }

// BothUnits formats bytes in units of 1024 and of 1000, which are easily confused.
func BothUnits(n int64) string { return fmt.Sprintf("%s (%s)", ByteSize(n), DecimalSize(n)) }

// DecimalSize formats bytes in units of 1000 with two digits.
func DecimalSize(n int64) string { return decimal(n, 2) }

// BriefSize formats bytes in units of 1000 with one digit.
func BriefSize(n int64) string { return decimal(n, 1) }

func decimal(n int64, places int) string {
	units := []string{"kB", "MB", "GB", "TB"}
	if n > -1000 && n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	x, full := float64(n)/1000, 1000-0.5*math.Pow10(-places) // these round to 1000
	for math.Abs(x) >= full && len(units) > 1 {
		x, units = x/1000, units[1:]
	}
	return fmt.Sprintf("%.*f %s", places, x, units[0])
}

// Printable returns s in one line, with unprintable characters escaped as in Go: \n, \x1b,
// \u200b.
func Printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// Escape returns a text of several lines in which characters that a terminal may obey or
// cannot show are escaped as in JSON and Go: \u001b, \u202e.
func Escape(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\t' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// Either returns "a, b or c".
func Either(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// Cut returns s, or as many of its first runes as fit into most bytes, and three dots.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "..."
}

// The limits of a message, in bytes.
const (
	mostLine    = 4 << 10
	mostMessage = 64 << 10
)

// Bound returns a message with the middle of its long lines left out, and then of the whole. Messages quote what
// is in files and arguments, which may have megabytes.
func Bound(message string) string {
	if len(message) <= mostLine {
		return message
	}
	lines := strings.SplitAfter(message, "\n")
	for i, line := range lines {
		lines[i] = inner(line, mostLine)
	}
	return inner(strings.Join(lines, ""), mostMessage)
}

// inner returns s, or its first and last bytes, at most about as many as given, and how many are left out.
func inner(s string, most int) string {
	if len(s) <= most {
		return s
	}
	lo, hi := most/3*2, len(s)-most/3
	for lo > 0 && !utf8.RuneStart(s[lo]) {
		lo--
	}
	for hi < len(s) && !utf8.RuneStart(s[hi]) {
		hi++
	}
	return fmt.Sprintf("%s... (%d bytes) ...%s", s[:lo], hi-lo, s[hi:])
}

// Way describes the route of operations between hosts with several ranks: by host from a number
// of bytes on, or never if it is 0.
func Way(byHostFrom float64) string {
	switch byHostFrom {
	case 0:
		return "from rank to rank"
	case 1024:
		return "by host"
	}
	return "by host from " + ByteSize(int64(byHostFrom)) + " on"
}
