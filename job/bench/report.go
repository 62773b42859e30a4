package bench

import (
	"fmt"
	"io"
	"strings"

	"zeroth/internal/show"
)

// Table writes the report as a table, in Markdown if markdown is set.
func (r *Report) Table(w io.Writer, markdown bool) error {
	m := r.Host
	text := fmt.Sprintf("%s/%s, %d processors, %s; products: fp32 %s, bf16 %s\n", m.OS, m.Arch, m.Processors, m.Go, m.F32, m.BF16)
	text += prefixed("", m.GPU) + prefixed("", r.Between)
	rows, group := [][]string{{"", "what", "one takes", "rate", "of the limit", "samples"}}, ""
	for _, l := range r.Lines {
		row := []string{l.Group, l.Name, "", l.rate(), l.share(), fmt.Sprint(l.Samples)}
		if l.Seconds > 0 {
			row[2] = show.Seconds(l.Seconds)
		}
		if l.Group == group && !markdown {
			row[0] = ""
		}
		group, rows = l.Group, append(rows, row)
	}
	if markdown {
		text += "\n"
	}
	return show.Print(w, text+table(w, rows, markdown))
}

// table returns rows as a table. All columns but the first two contain numbers.
func table(w io.Writer, rows [][]string, markdown bool) string {
	numbers := len(rows[0]) - 2
	t := show.Columns{Align: "ll" + strings.Repeat("r", numbers)}
	var b strings.Builder
	for i, row := range rows {
		t.Add(row...)
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(&b, "|---|---|%s\n", strings.Repeat("---:|", numbers))
		}
	}
	if markdown {
		return b.String()
	}
	return t.Within(show.Width(w))
}

func (l Row) rate() string {
	switch l.Unit {
	case "":
		return ""
	case "launch/s":
		return fmt.Sprintf("%.0f %s", l.Rate, l.Unit)
	}
	if l.Rate < 1e8 {
		return fmt.Sprintf("%.2f M%s", l.Rate/1e6, l.Unit)
	}
	return fmt.Sprintf("%.1f G%s", l.Rate/1e9, l.Unit)
}

func (l Row) share() string {
	if l.Limit == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f of %s", l.Share, l.LimitName)
}
