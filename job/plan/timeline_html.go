package plan

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
)

//go:embed timeline.html
var timelinePage string

// page is what timelinePage shows.
type page struct {
	Title  string
	Header [][2]string
	Rows   []pageRow
	Footer []string
	Data   pageData
}

type pageRow struct {
	Title, Allocated, AtRest, AtPeak, ChangedBy string
	Part, Total                                 bool
}

// pageData is what its script draws.
type pageData struct {
	Allocated  int64          `json:"allocated"`
	Peak       int            `json:"peak"` // an event
	Categories []pageCategory `json:"categories"`
	Events     []pageEvent    `json:"events"`
	Measured   []int64        `json:"measured,omitempty"` // bytes a run had in use at each event
}

type pageCategory struct {
	Title string `json:"title"`
	Color string `json:"color"`
}

type pageEvent struct {
	Name  string  `json:"name"`
	Bytes []int64 `json:"bytes"` // by category
}

// WriteHTML writes the plan as a page that is complete in itself: its table,
// and a drawing that tells of the event under the pointer.
func (p *Plan) WriteHTML(out io.Writer) error {
	t, err := template.New("timeline").Parse(timelinePage)
	if err != nil {
		panic("plan: timeline.html: " + err.Error())
	}
	v := page{
		Title:  fmt.Sprintf("Memory plan: %s on %d ranks, stage %d", p.Model, p.Config.Parallel.Ranks, p.Config.Zero.Stage),
		Header: p.header(), Footer: p.footer(), Data: p.pageData(),
	}
	for _, line := range p.lines() {
		v.Rows = append(v.Rows, pageRow{line[0], line[1], line[2], line[3], line[4], line[1] == "" && line[2] != "", line[0] == "total"})
	}
	if err := t.Execute(out, v); err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	return nil
}

func (p *Plan) pageData() pageData {
	used := p.used()
	d := pageData{Allocated: p.Allocated.Total(), Peak: slices.Index(p.Timeline, p.Peak)}
	for _, c := range used {
		k := colors[c]
		d.Categories = append(d.Categories, pageCategory{categories[c].title, fmt.Sprintf("#%02x%02x%02x", k.R, k.G, k.B)})
	}
	for _, m := range p.Timeline {
		e := pageEvent{Name: m.Name}
		for _, c := range used {
			e.Bytes = append(e.Bytes, m.InUse[c])
		}
		d.Events = append(d.Events, e)
	}
	if p.Measured != nil {
		for _, m := range p.Measured.Timeline {
			d.Measured = append(d.Measured, m.InUse.Total())
		}
	}
	return d
}
