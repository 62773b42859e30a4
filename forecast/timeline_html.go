package forecast

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
)

//go:embed timeline.html
var timelinePage string

// page is the data of timelinePage.
type page struct {
	Title  string
	Header [][2]string
	Rows   [][5]string // those of parts of the arena have no second cell
	Footer []string
	Alike  string // omitted micro-batches
	Data   pageData
}

// pageData is the data of the page's script.
type pageData struct {
	Allocated  int64          `json:"allocated"`       // bytes
	Limit      int64          `json:"limit,omitempty"` // bytes of the device, if known
	Peak       int            `json:"peak"`            // index of an event
	Categories []pageCategory `json:"categories"`
	Events     []pageEvent    `json:"events"`
	Stretches  []stretch      `json:"stretches"`
	Micros     []stretch      `json:"micros,omitempty"`   // if there are several
	Measured   []int64        `json:"measured,omitempty"` // bytes that a run had in use at each event
	Step       int            `json:"step,omitempty"`     // of the measured run
}

type pageCategory struct {
	Title string `json:"title"`
	Light string `json:"light"` // color on a light background
	Dark  string `json:"dark"`
}

type pageEvent struct {
	Name  string  `json:"name"`
	Bytes []int64 `json:"bytes"` // by category
}

// WriteHTML writes the plan as a self-contained page with its table and a drawing that zooms,
// hides categories and describes the event under the pointer.
func (p *Plan) WriteHTML(out io.Writer) error {
	t, err := template.New("timeline").Parse(timelinePage)
	if err != nil {
		panic("forecast: timeline.html: " + err.Error())
	}
	v := page{Title: p.title(), Header: p.header(), Rows: p.lines(), Footer: p.footer(), Alike: p.alike(), Data: p.pageData()}
	if err := t.Execute(out, v); err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	return nil
}

func (p *Plan) pageData() pageData {
	used := p.used()
	d := pageData{Allocated: p.Allocated.Total(), Limit: p.Machine.Memory, Peak: slices.Index(p.Timeline, p.Peak)}
	d.Stretches, d.Micros = p.stretches()
	for _, c := range used {
		d.Categories = append(d.Categories, pageCategory{categories[c].title, colors[c].Light, colors[c].Dark})
	}
	for _, m := range p.Timeline {
		e := pageEvent{Name: m.Name}
		for _, c := range used {
			e.Bytes = append(e.Bytes, m.InUse[c])
		}
		d.Events = append(d.Events, e)
	}
	if p.Measured != nil {
		d.Step = p.Measured.Step
		for _, m := range p.Measured.Timeline {
			d.Measured = append(d.Measured, m.InUse.Total())
		}
	}
	return d
}
