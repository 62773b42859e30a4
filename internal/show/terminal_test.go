package show

import (
	"bytes"
	"strings"
	"testing"
)

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  string
	}{
		{"short\n", 60, "short\n"},
		{"peak    backward of h.1, before its reduce-scatter\n\nnext\n", 30, "peak    backward of h.1,\n        before its\n        reduce-scatter\n\nnext\n"},
		{"    indented text that goes on", 26, "    indented text that\n        goes on"},
		{"kept in /a/path/that/is/longer/than/the/line", 26, "kept in\n        /a/path/that/is/longer/than/the/line"},
		{"averylongwordwithoutanyspaces", 10, "averylongwordwithoutanyspaces"},
		{"four letter word here", 10, "four\nletter\nword here"},
		{"4 × 4 × 4 × 4 × 4 × 4 × 4", 25, "4 × 4 × 4 × 4 × 4 × 4 × 4"},
	} {
		if got := within(c.text, c.width); got != c.want {
			t.Errorf("%q in %d columns is %q, want %q", c.text, c.width, got, c.want)
		}
	}
}

// FuzzWithin checks that wrapping a text keeps every word, and that only lines without a space
// can be too long.
func FuzzWithin(f *testing.F) {
	f.Add("device  80.0 GiB (85.90 GB), which leaves 51.9 GiB", 30)
	f.Fuzz(func(t *testing.T, text string, width int) {
		width = 1 + width&0xff
		got := within(text, width)
		if a, b := strings.Fields(text), strings.Fields(got); strings.Join(a, " ") != strings.Join(b, " ") {
			t.Errorf("%q became %q", text, got)
		}
	})
}

func TestPlain(t *testing.T) {
	if got := plain("4 × 12 µs – “ü”\n"); got != `4 x 12 us - \u201c\u00fc\u201d`+"\n" {
		t.Errorf("plain text is %q", got)
	}
	for value, want := range map[string]bool{"C": false, "en_US.ISO-8859-1": false, "C.UTF-8": true, "de_DE.utf8": true, "": true} {
		t.Setenv("LC_ALL", value)
		t.Setenv("LC_CTYPE", "")
		t.Setenv("LANG", "")
		if unicodeLocale() != want {
			t.Errorf("LC_ALL=%s has all characters: %v", value, !want)
		}
	}
}

// TestPrintElsewhere checks that text is not wrapped or colored if the output is not a terminal.
func TestPrintElsewhere(t *testing.T) {
	var b bytes.Buffer
	text := strings.Repeat("4 × 4 ", 100) + "\n"
	if err := Print(&b, text); err != nil || b.String() != text || Width(&b) != 0 {
		t.Errorf("%d columns: %q, %v", Width(&b), b.String(), err)
	}
}

func TestColumnsWithin(t *testing.T) {
	c := Columns{Align: "lrl"}
	c.Add("what", "size", "changed by")
	c.Add("parameters", "4 MiB", "zero.stage, precision")
	c.Add("total", "10 MiB")
	for width, want := range map[int]string{
		0:  "what          size  changed by\nparameters   4 MiB  zero.stage, precision\ntotal       10 MiB\n",
		41: "what          size  changed by\nparameters   4 MiB  zero.stage, precision\ntotal       10 MiB\n",
		40: "what          size\n    changed by\nparameters   4 MiB\n    zero.stage, precision\ntotal       10 MiB\n",
		19: "what          size\n    changed by\nparameters   4 MiB\n    zero.stage,\n    precision\ntotal       10 MiB\n",
		17: "parameters\n    size 4 MiB,\n    changed by\n    zero.stage,\n    precision\ntotal\n    size 10 MiB\n",
	} {
		if got := c.Within(width); got != want {
			t.Errorf("in %d columns:\n%swant\n%s", width, got, want)
		}
	}
}
