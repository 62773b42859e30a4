package bench

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	align "github.com/jedib0t/go-pretty/v6/text"
)

// JSON writes the report as JSON.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Table writes the report as a table, in Markdown if markdown is set.
func (r *Report) Table(w io.Writer, markdown bool) error {
	m := r.Host
	fmt.Fprintf(w, "%s/%s, %d processors, %s; products: fp32 %s, bf16 %s\n", m.OS, m.Arch, m.Processors, m.Go, m.F32, m.BF16)
	if m.GPU != "" {
		fmt.Fprintln(w, m.GPU)
	}
	if r.Between != "" {
		fmt.Fprintln(w, r.Between)
	}
	if markdown {
		fmt.Fprintln(w)
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = align.FormatDefault
	t.AppendHeader(table.Row{"", "what", "one takes", "rate", "of the limit", "samples"})
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 1, AutoMerge: !markdown}, {Number: 3, Align: align.AlignRight},
		{Number: 4, Align: align.AlignRight}, {Number: 5, Align: align.AlignRight}})
	group := ""
	for _, l := range r.Lines {
		if group != "" && l.Group != group && !markdown {
			t.AppendSeparator()
		}
		group = l.Group
		t.AppendRow(table.Row{l.Group, l.Name, l.took(), l.rate(), l.share(), l.Samples})
	}
	out := t.Render
	if markdown {
		out = t.RenderMarkdown
	}
	_, err := fmt.Fprintln(w, out())
	return err
}

func (l Row) took() string {
	switch s := l.Seconds; {
	case s == 0:
		return ""
	case s < 1e-3:
		return fmt.Sprintf("%.1f µs", 1e6*s)
	case s < 1:
		return fmt.Sprintf("%.2f ms", 1e3*s)
	default:
		return fmt.Sprintf("%.2f s", s)
	}
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
