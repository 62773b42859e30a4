// Package flight writes down what the recorders of ranks have kept, and tells from
// these dumps where ranks parted.
//
// A dump is a file of JSON for each rank, DIR/rank-N.json, which a later one of the
// same rank replaces:
//
//	{"version":1,"session":"5f0c...","written":"2026-11-22T13:40:00Z","why":"...","fault":true,"rank":3,"world":4,"process":1,"host":"node1","pid":77,
//	"began":"2026-11-22T13:39:00Z","at":60000000000,"forgotten":0,
//	"groups":[{"name":"world","ranks":[0,1,2,3]}],
//	"operations":[
//	{"group":0,"seq":7,"step":3,"op":"all-gather","label":"unit h.3: gather","type":"fp32","count":96,"bytes":384,"state":"done","issued":1,"started":2,"done":3}]}
//
// Times are nanoseconds since "began" on the rank's own clock; clocks of hosts are
// not compared. Dumps of one start of a world have its session in common.
//
// What never enters: who records, and when dumps are written.
package flight

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"zeroth/collective"
	"zeroth/data/jsonread"
	"zeroth/input"
)

// Folder is where in a run folder the dumps are.
const Folder = "flight"

// Limits of what is read.
const (
	mostBytes  = 32 << 20 // of a file
	mostTotal  = 2 << 30  // of all files
	mostFiles  = 1 << 16
	mostRanks  = 1 << 20
	mostGroups = 64
	mostText   = 4096 // bytes of a string
	mostNumber = math.MaxInt
)

// Dump is what the recorder of a rank has kept, and whose it is.
type Dump struct {
	Session    string // of the start of its world
	Written    time.Time
	Why        string // it was written
	Fault      bool   // because the run ended by one; else somebody asked
	Rank       int
	World      int // ranks
	Process    int
	Host       string
	Pid        int
	Began      time.Time
	At         time.Duration // when the recorder was read, since Began
	Forgotten  int           // operations before those here
	Groups     []collective.RecordedGroup
	Operations []collective.Operation // in the order they were issued

	File string // it was read from
}

// New is a rank's dump of what its recorder has kept; who and why are the caller's
// to fill in.
func New(r collective.Record) Dump {
	return Dump{Written: time.Now().UTC(), Began: r.Began.UTC(), At: r.At, Forgotten: int(r.Forgotten), Groups: r.Groups, Operations: r.Operations}
}

// Write writes the rank's file in a folder, which is made, whole or not at all.
func (d Dump) Write(dir string) error {
	if err := input.Folder(dir); err != nil {
		return err
	}
	return input.WriteBytes(filepath.Join(dir, fmt.Sprintf("rank-%d.json", d.Rank)), d.encode())
}

// encode is the file of a dump.
func (d Dump) encode() []byte {
	var b bytes.Buffer
	put := func(key string, v any) {
		text, err := json.Marshal(v)
		if err != nil {
			panic("flight: " + err.Error()) // numbers and texts
		}
		fmt.Fprintf(&b, "%q:%s,", key, text)
	}
	b.WriteByte('{')
	put("version", 1)
	put("session", d.Session)
	put("written", d.Written)
	put("why", line(d.Why))
	put("fault", d.Fault)
	put("rank", d.Rank)
	put("world", d.World)
	put("process", d.Process)
	put("host", line(d.Host))
	put("pid", d.Pid)
	put("began", d.Began)
	put("at", d.At)
	put("forgotten", d.Forgotten)
	put("groups", d.Groups)
	b.WriteString("\n\"operations\":[")
	for i, o := range d.Operations {
		line, err := json.Marshal(o)
		if err != nil {
			panic("flight: " + err.Error()) // likewise
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		b.Write(line)
	}
	b.WriteString("]}\n")
	return b.Bytes()
}

// line is a text as one line, of bounded length.
func line(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return ' '
		case !strconv.IsPrint(r) || r == utf8.RuneError:
			return '?'
		}
		return r
	}, s)
	for len(s) > mostText/2 {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return s
}

// Read reads dumps from files. What is no dump is an error that says where.
func Read(files []string) (all []Dump, err error) {
	if len(files) > mostFiles {
		return nil, fmt.Errorf("%d files; at most %d dumps are read", len(files), mostFiles)
	}
	var wrong []error
	left := int64(mostTotal)
	for _, file := range files {
		text, err := input.Read(file, min(mostBytes, left))
		var d Dump
		if err == nil {
			left -= int64(len(text))
			d, err = decode(text)
		}
		if err != nil {
			wrong = append(wrong, place(file, err))
			continue
		}
		d.File = file
		all = append(all, d)
	}
	return all, errors.Join(wrong...)
}

// place says in which file an error is, and where in it.
func place(file string, err error) error {
	if e := (*jsonread.Error)(nil); errors.As(err, &e) {
		return fmt.Errorf("%s: byte %d (line %d): no dump of a rank: %w", file, e.Offset, e.Line, e.Err)
	}
	return fmt.Errorf("%s: %w", file, input.Cause(err))
}

// reading is a dump on its way in.
type reading struct {
	*jsonread.Reader
	texts map[string]string // each kept once
}

func decode(text []byte) (d Dump, err error) {
	r := reading{jsonread.New(text), map[string]string{}}
	missing := map[string]bool{}
	fields := map[string]func() error{
		"version":    func() error { return r.version() },
		"session":    r.text(&d.Session),
		"written":    r.time(&d.Written),
		"why":        r.text(&d.Why),
		"fault":      func() (err error) { d.Fault, err = r.Bool(); return err },
		"rank":       r.number(&d.Rank, mostRanks),
		"world":      r.number(&d.World, mostRanks),
		"process":    r.number(&d.Process, mostRanks),
		"host":       r.text(&d.Host),
		"pid":        r.number(&d.Pid, mostNumber),
		"began":      r.time(&d.Began),
		"at":         r.duration(&d.At),
		"forgotten":  r.number(&d.Forgotten, mostNumber),
		"groups":     func() error { return r.groups(&d) },
		"operations": func() error { return r.operations(&d) },
	}
	for key, read := range fields {
		missing[key] = true
		fields[key] = func() error { delete(missing, key); return read() }
	}
	if err := r.Fields(fields); err != nil {
		return d, err
	}
	for key := range missing {
		return d, r.Wrong("there is no %q", key)
	}
	if d.Rank >= d.World {
		return d, r.Wrong("rank %d of a world of %d", d.Rank, d.World)
	}
	return d, r.End()
}

func (r reading) version() error {
	v, err := r.Int(mostNumber)
	if err == nil && v != 1 {
		err = r.Wrong("version %d; this program reads version 1", v)
	}
	return err
}

func (r reading) number(to *int, most int) func() error {
	return func() (err error) { *to, err = r.Int(most); return err }
}

func (r reading) duration(to *time.Duration) func() error {
	return func() error {
		n, err := r.Int(mostNumber)
		*to = time.Duration(n)
		return err
	}
}

func (r reading) text(to *string) func() error {
	return func() error {
		s, err := r.String()
		if err == nil && len(s) > mostText {
			err = r.Wrong("a text of %d bytes; at most %d", len(s), mostText)
		}
		if err == nil && strings.ContainsFunc(s, func(c rune) bool { return !strconv.IsPrint(c) }) {
			err = r.Wrong("a text with what cannot be shown: %.40q", s)
		}
		if kept, ok := r.texts[s]; ok {
			s = kept
		}
		r.texts[s] = s
		*to = s
		return err
	}
}

func (r reading) time(to *time.Time) func() error {
	return func() error {
		s, err := r.String()
		if err == nil {
			if *to, err = time.Parse(time.RFC3339Nano, s); err != nil {
				err = r.Wrong("%.40q is no time", s)
			}
		}
		return err
	}
}

func (r reading) groups(d *Dump) error {
	return r.Array(func(i int) error {
		if i >= mostGroups {
			return r.Wrong("more than %d groups", mostGroups)
		}
		var g collective.RecordedGroup
		err := r.Fields(map[string]func() error{"name": r.text(&g.Name), "ranks": func() error {
			return r.Array(func(int) error {
				n, err := r.Int(mostRanks)
				if len(g.Ranks) > 0 && n <= g.Ranks[len(g.Ranks)-1] {
					return r.Wrong("rank %d after rank %d in a group", n, g.Ranks[len(g.Ranks)-1])
				}
				g.Ranks = append(g.Ranks, n)
				return err
			})
		}})
		d.Groups = append(d.Groups, g)
		return err
	})
}

// progress is how far an operation is; -1 for none that there is.
func progress(o collective.Operation) int {
	return slices.Index([]string{"issued", "started", "launched", "done"}, o.State)
}

func (r reading) operations(d *Dump) error {
	last := make([]int, len(d.Groups)) // sequence numbers, plus 1
	return r.Array(func(i int) error {
		if i >= collective.RecorderLen {
			return r.Wrong("more than %d operations", collective.RecorderLen)
		}
		var o collective.Operation
		err := r.Fields(map[string]func() error{
			"group": r.number(&o.Group, mostGroups), "seq": r.number(&o.Seq, mostNumber-1), "step": r.number(&o.Step, mostNumber),
			"op": r.text(&o.Op), "label": r.text(&o.Label), "type": r.text(&o.Type), "count": r.number(&o.Count, mostNumber), "bytes": r.number(&o.Bytes, mostNumber),
			"state": r.text(&o.State), "issued": r.duration(&o.Issued), "started": r.duration(&o.Started), "done": r.duration(&o.Done),
		})
		switch {
		case err != nil:
			return err
		case o.Group >= len(d.Groups):
			return r.Wrong("an operation of group %d, of %d", o.Group, len(d.Groups))
		case o.Seq < last[o.Group]:
			return r.Wrong("operation %d of group %d after operation %d", o.Seq, o.Group, last[o.Group]-1)
		case progress(o) < 0:
			return r.Wrong("%.40q is no state of an operation", o.State)
		}
		last[o.Group] = o.Seq + 1
		d.Operations = append(d.Operations, o)
		return nil
	})
}
