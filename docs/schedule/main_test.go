package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRecord checks that a recording contains each unit's passes in order on the compute queue, and
// the operations they need or issue on the other queues.
func TestRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.yaml")
	job := "data: {text: [main.go]}\nmodel: {layers: 2, heads: 1, width: 8, context: 8}\ntrain: {micro_batch: 1}\nparallel: {ranks: 2}\n"
	if err := os.WriteFile(file, []byte(job), 0o644); err != nil {
		t.Fatal(err)
	}
	spans, err := record(file, []string{"zero.prefetch=1"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	ends := map[string]time.Duration{}
	for _, s := range spans {
		got[s.queue] += s.what + " " + s.unit + ", "
		if s.from < ends[s.queue] || s.to < s.from {
			t.Errorf("%+v begins before %v or ends before it begins", s, ends[s.queue])
		}
		ends[s.queue] = s.to
	}
	if want := "forward root, forward h.0, forward h.1, forward root, backward root, backward h.1, backward h.0, backward root, "; got["compute"] != want {
		t.Errorf("compute: %s\nwant %s", got["compute"], want)
	}
	for queue, wants := range map[string][]string{
		"comm":   {"all-gather h.0", "all-gather h.1", "reduce-scatter h.1", "reduce-scatter h.0", "reduce-scatter root"},
		"update": {"norm root", "update root", "update h.0", "update h.1"},
	} {
		for _, want := range wants {
			if !strings.Contains(got[queue], want+", ") {
				t.Errorf("%s has no %s: %s", queue, want, got[queue])
			}
		}
	}
	if _, err := record("gone.yaml", nil); err == nil {
		t.Error("a job that is not there is recorded")
	}
}

func TestDraw(t *testing.T) {
	var b bytes.Buffer
	ms := time.Millisecond
	err := draw(&b, []span{
		{"compute", "root", "forward", 0, 10 * ms}, {"comm", "h.0", "all-gather", 2 * ms, 8 * ms},
		{"compute", "h.0", "backward", 10 * ms, 30 * ms}, {"update", "root", "update", 30 * ms, 40 * ms},
	})
	if err != nil {
		t.Fatal(err)
	}
	spans, d := 0, xml.NewDecoder(bytes.NewReader(b.Bytes()))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "path" {
			for _, a := range e.Attr {
				if a.Name.Local == "class" && strings.HasPrefix(a.Value, "f") {
					spans++
				}
			}
		}
	}
	for _, want := range []string{">root</text>", ">h.0</text>", ">update</text>", ">40</text>", ">backward</text>",
		`M258.5 195.9L258.5 114.8L607.5 114.8L607.5 195.9Z"><title>backward</title>`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, &b)
		}
	}
	if spans != 4 {
		t.Errorf("%d areas, want one for each of 4 spans", spans)
	}
}
