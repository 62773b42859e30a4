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
	"unique"

	"zeroth/collective"
	"zeroth/internal/input"
	"zeroth/internal/input/jsonread"
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
	mostText   = 4096                       // bytes of a string
	mostBraces = 2 * collective.RecorderLen // one for each operation and group, and those in strings
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
			if d, err = decode(text); err != nil {
				err = fmt.Errorf("not a dump of a rank: %w", err)
			}
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", file, input.Cause(err)))
			continue
		}
		d.File = file
		all = append(all, d)
	}
	return all, errors.Join(wrong...)
}

func decode(text []byte) (d Dump, err error) {
	if n := bytes.Count(text, []byte("{")); n > mostBraces {
		return d, fmt.Errorf("%d objects; a dump has at most %d operations", n, collective.RecorderLen)
	}
	var file struct {
		Version int `json:"version"`
		Dump
	}
	err = jsonread.Into(text, &file)
	switch {
	case err != nil:
		return d, err
	case file.Version != 1:
		return d, fmt.Errorf("version %d; this program reads version 1", file.Version)
	}
	return file.Dump, file.check()
}

// check returns an error for a dump that no rank can have written, and shares equal strings.
func (d *Dump) check() error {
	texts := []*string{&d.Session, &d.Why, &d.Host}
	switch {
	case d.Rank < 0 || d.Rank >= d.World || d.World > mostRanks:
		return fmt.Errorf("rank %d of a world of %d", d.Rank, d.World)
	case len(d.Groups) > mostGroups:
		return fmt.Errorf("%d groups; at most %d", len(d.Groups), mostGroups)
	}
	for i, g := range d.Groups {
		texts = append(texts, &d.Groups[i].Name)
		for i, rank := range g.Ranks {
			if rank < 0 || rank >= mostRanks || i > 0 && rank <= g.Ranks[i-1] {
				return fmt.Errorf("group %s of ranks %v; want ranks in order, below %d", g.Name, g.Ranks[max(0, i-1):i+1], mostRanks)
			}
		}
	}
	next := make([]int, len(d.Groups)) // by group: the smallest valid sequence number
	for i := range d.Operations {
		o := &d.Operations[i]
		switch {
		case o.Group < 0 || o.Group >= len(d.Groups):
			return fmt.Errorf("an operation of group %d, of %d", o.Group, len(d.Groups))
		case o.Seq == math.MaxInt || o.Seq < next[o.Group]:
			return fmt.Errorf("operation %d of group %d after operation %d", o.Seq, o.Group, next[o.Group]-1)
		case !slices.Contains(states, o.State):
			return fmt.Errorf("%.40q is not a state of an operation", o.State)
		}
		next[o.Group] = o.Seq + 1
		texts = append(texts, &o.Op, &o.Label, &o.Type)
	}
	for _, s := range texts {
		if len(*s) > mostText || strings.ContainsFunc(*s, func(c rune) bool { return !strconv.IsPrint(c) }) {
			return fmt.Errorf("a string of %d bytes, %.40q; want printable characters, at most %d bytes", len(*s), *s, mostText)
		}
		*s = unique.Make(*s).Value()
	}
	return nil
}

// states lists the states of operations in their order.
var states = []string{collective.Issued, collective.Started, collective.Launched, collective.Done}
