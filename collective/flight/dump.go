// Package flight writes dumps of the ranks' recorders and finds where ranks diverged.
//
// A dump is a JSON file for each rank, DIR/rank-N.json, which replaces an earlier one of the same
// rank:
//
//	{"version":1,"session":"5f0c...","written":"2026-11-22T13:40:00Z","why":"...","fault":true,"rank":3,"world":4,"process":1,"host":"node1","pid":77,
//	"began":"2026-11-22T13:39:00Z","at":60000000000,"forgotten":0,
//	"groups":[{"name":"world","ranks":[0,1,2,3]}],
//	"operations":[
//	{"group":0,"seq":7,"step":3,"op":"all-gather","label":"unit h.3: gather","type":"fp32","count":96,"bytes":384,"state":"done","issued":1,"started":2,"done":3}]}
//
// Times are nanoseconds since "began" on the rank's own clock; clocks of different hosts are not
// compared. Dumps of the same start of a world have the same session.
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
	"zeroth/input"
	"zeroth/input/jsonread"
)

// Folder is the folder of dumps within a run folder.
const Folder = "flight"

// Limits of files read.
const (
	mostBytes  = 32 << 20 // of a file
	mostTotal  = 2 << 30  // of all files
	mostFiles  = 1 << 16
	mostRanks  = 1 << 20
	mostGroups = 64
	mostText   = 4096 // bytes of a string
)

// Dump is the content of a rank's recorder.
type Dump struct {
	Session string    `json:"session"` // identifies the start of the world
	Written time.Time `json:"written"`
	Why     string    `json:"why"`   // reason for the dump
	Fault   bool      `json:"fault"` // the run ended because of a fault; else somebody requested the dump
	Rank    int       `json:"rank"`
	World   int       `json:"world"` // number of ranks
	Process int       `json:"process"`
	Host    string    `json:"host"`
	Pid     int       `json:"pid"`
	collective.Record

	File string `json:"-"` // the file it was read from
}

// Write atomically writes the rank's file to a folder, which it creates if needed.
func (d Dump) Write(dir string) error {
	if err := input.Folder(dir); err != nil {
		return err
	}
	return input.WriteBytes(filepath.Join(dir, fmt.Sprintf("rank-%d.json", d.Rank)), d.encode())
}

// encode returns the content of the file, with one operation per line.
func (d Dump) encode() []byte {
	d.Why, d.Host = line(d.Why), line(d.Host)
	text, err := json.Marshal(struct {
		Version int `json:"version"`
		Dump
	}{1, d})
	if err != nil {
		panic("flight: " + err.Error()) // cannot fail for numbers and strings
	}
	for _, begins := range []string{`"operations":[`, `{"group":`} { // strings cannot contain these: their quotes are escaped
		text = bytes.ReplaceAll(text, []byte(begins), []byte("\n"+begins))
	}
	return append(text, '\n')
}

// line converts a string to a single printable line of bounded length.
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

// Read reads dumps from files. Its error joins all problems, with their positions.
func Read(files []string) (all []Dump, err error) {
	if len(files) > mostFiles {
		return nil, fmt.Errorf("%d files; at most %d dumps are read", len(files), mostFiles)
	}
	var wrong []error
	remaining := int64(mostTotal)
	for _, file := range files {
		text, err := input.Read(file, min(mostBytes, remaining))
		var d Dump
		if err == nil {
			remaining -= int64(len(text))
			d, err = decode(text)
		}
		if err != nil {
			wrong = append(wrong, locate(file, err))
			continue
		}
		d.File = file
		all = append(all, d)
	}
	return all, errors.Join(wrong...)
}

// locate adds the file and the position to an error.
func locate(file string, err error) error {
	if e := (*jsonread.Error)(nil); errors.As(err, &e) {
		return fmt.Errorf("%s: byte %d (line %d): not a dump of a rank: %w", file, e.Offset, e.Line, e.Err)
	}
	return fmt.Errorf("%s: %w", file, input.Cause(err))
}

// reading is a dump being decoded.
type reading struct {
	*jsonread.Reader
	texts map[string]string // deduplicated strings
	next  map[int]int       // by group: the smallest valid sequence number
}

func decode(text []byte) (d Dump, err error) {
	r := reading{jsonread.New(text), map[string]string{}, map[int]int{}}
	version := 0
	err = r.object(map[string]any{
		"version": &version, "session": &d.Session, "written": &d.Written, "why": &d.Why, "fault": &d.Fault, "rank": rank{&d.Rank}, "world": rank{&d.World},
		"process": rank{&d.Process}, "host": &d.Host, "pid": &d.Pid, "began": &d.Began, "at": &d.At, "forgotten": &d.Forgotten,
		"groups":     func(i int) error { return r.group(i, &d) },
		"operations": func(i int) error { return r.operation(i, &d) },
	})
	switch {
	case err != nil:
		return d, err
	case d.Rank >= d.World:
		return d, r.Wrong("rank %d of a world of %d", d.Rank, d.World)
	}
	return d, r.End()
}

// rank marks a field for a rank or a number of ranks.
type rank struct{ to *int }

// object reads an object that has exactly these keys, into the pointers.
func (r reading) object(into map[string]any) error {
	read := map[string]func() error{}
	for key, to := range into {
		read[key] = func() error {
			delete(into, key)
			return r.value(key, to)
		}
	}
	if err := r.Fields(read); err != nil {
		return err
	}
	for key := range into {
		return r.Wrong("there is no %q", key)
	}
	return nil
}

func (r reading) value(key string, to any) (err error) {
	switch to := to.(type) {
	case *bool:
		*to, err = r.Bool()
	case *int:
		if *to, err = r.Int(math.MaxInt); err == nil && key == "version" && *to != 1 {
			err = r.Wrong("%d; this program reads version 1", *to)
		}
	case rank:
		*to.to, err = r.Int(mostRanks)
	case *time.Duration:
		var n int
		n, err = r.Int(math.MaxInt)
		*to = time.Duration(n)
	case *time.Time:
		var s string
		if s, err = r.String(); err == nil {
			if *to, err = time.Parse(time.RFC3339Nano, s); err != nil {
				err = r.Wrong("%.40q is not a time", s)
			}
		}
	case *string:
		*to, err = r.text()
	case func(i int) error:
		err = r.Array(to)
	}
	return err
}

func (r reading) text() (string, error) {
	s, err := r.String()
	switch {
	case err != nil:
		return "", err
	case len(s) > mostText:
		return "", r.Wrong("a string of %d bytes; at most %d", len(s), mostText)
	case strings.ContainsFunc(s, func(c rune) bool { return !strconv.IsPrint(c) }):
		return "", r.Wrong("a string with unprintable characters: %.40q", s)
	}
	if _, ok := r.texts[s]; !ok {
		r.texts[s] = s
	}
	return r.texts[s], nil
}

func (r reading) group(i int, d *Dump) error {
	if i >= mostGroups {
		return r.Wrong("more than %d groups", mostGroups)
	}
	var g collective.RecordedGroup
	err := r.object(map[string]any{"name": &g.Name, "ranks": func(i int) error {
		n, err := r.Int(mostRanks)
		if i > 0 && n <= g.Ranks[i-1] {
			return r.Wrong("rank %d after rank %d in a group", n, g.Ranks[i-1])
		}
		g.Ranks = append(g.Ranks, n)
		return err
	}})
	d.Groups = append(d.Groups, g)
	return err
}

// states lists the states of operations in their order.
var states = []string{collective.Issued, collective.Started, collective.Launched, collective.Done}

func (r reading) operation(i int, d *Dump) error {
	if i >= collective.RecorderLen {
		return r.Wrong("more than %d operations", collective.RecorderLen)
	}
	var o collective.Operation
	err := r.object(map[string]any{
		"group": &o.Group, "seq": &o.Seq, "step": &o.Step, "op": &o.Op, "label": &o.Label, "type": &o.Type, "count": &o.Count, "bytes": &o.Bytes,
		"state": &o.State, "issued": &o.Issued, "started": &o.Started, "done": &o.Done,
	})
	switch {
	case err != nil:
		return err
	case o.Group >= len(d.Groups):
		return r.Wrong("an operation of group %d, of %d", o.Group, len(d.Groups))
	case o.Seq == math.MaxInt || o.Seq < r.next[o.Group]:
		return r.Wrong("operation %d of group %d after operation %d", o.Seq, o.Group, r.next[o.Group]-1)
	case !slices.Contains(states, o.State):
		return r.Wrong("%.40q is not a state of an operation", o.State)
	}
	r.next[o.Group] = o.Seq + 1
	d.Operations = append(d.Operations, o)
	return nil
}
