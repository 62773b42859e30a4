package main

import (
	"fmt"
	"strings"
)

// table contains a row for each rung, followed by the rung's own rows.
type table struct{ rows [][5]string }

// row is a line below a rung: what was measured, the value, what it is compared with, and the
// verdict.
type row struct{ What, Measured, Beside, Verdict string }

// failed returns the verdict of a row that failed.
func failed(why string) string { return "FAILED: " + why }

func (t *table) add(r *result) {
	t.rows = append(t.rows, [5]string{r.Rung, "", fmt.Sprintf("%.1f s", r.Seconds), "", r.Verdict})
	for _, x := range r.Rows {
		t.rows = append(t.rows, [5]string{"", x.What, x.Measured, x.Beside, x.Verdict})
	}
}

// widest is the maximum width to which columns are padded, in characters, so that one long cell
// does not pad all others.
const widest = 60

// markdown formats the table with columns as wide as most cells need.
func (t *table) markdown() string {
	rows := append([][5]string{{"rung", "what", "measured", "beside it", "verdict"}}, t.rows...)
	var wide [5]int
	for _, r := range rows {
		for j, c := range r {
			wide[j] = min(widest, max(wide[j], len([]rune(escaped(c)))))
		}
	}
	var b strings.Builder
	for i, r := range rows {
		for j, c := range r {
			c = escaped(c)
			fmt.Fprintf(&b, "| %s%s ", c, strings.Repeat(" ", max(0, wide[j]-len([]rune(c)))))
		}
		b.WriteString("|\n")
		if i == 0 {
			for _, n := range wide {
				b.WriteString("|" + strings.Repeat("-", n+2))
			}
			b.WriteString("|\n")
		}
	}
	return b.String()
}

// escaped returns a text as one line that cannot end its cell.
func escaped(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}
