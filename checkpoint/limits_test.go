package checkpoint

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/tests/nightly"
)

// spent returns the total bytes allocated by f, freed or not.
func spent(f func()) int64 {
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	f()
	runtime.ReadMemStats(&b)
	return int64(b.TotalAlloc - a.TotalAlloc)
}

// TestMemoryOfForgedJSON checks that manifests and part files with a million small items use no
// more memory than a multiple of their size, whether they are valid or not.
func TestMemoryOfForgedJSON(t *testing.T) {
	nightly.Long(t)
	const size = 4 << 20
	sha := strings.Repeat("0", 64)
	manifest := `{"format":1,"seq":1,"step":1,"nonce":"0123456789abcdef","writers":1,"files":[{"name":"state.json","bytes":0,"sha256":"` + sha +
		`"},{"name":"part-00000.json","bytes":0,"sha256":"` + sha + `"}`
	part := `{"format":1,"step":1,"nonce":"0123456789abcdef","writer":0,"tensors":[{"name":"w","kind":"m","dtype":"F32","shape":[10000000]}],"files":[`
	data := part + `{"name":"data-00000-000.safetensors","bytes":99,"header":8,"header_crc32c":"00000000","crc32c":"00000000","extents":[`
	extent := func(i int) string {
		return fmt.Sprintf(`{"tensor":0,"lo":%d,"hi":%d,"offset":%d,"codec":"raw","crc32c":"00000000"}`, i, i+1, 8+4*i)
	}
	empty := func(int) string { return "{}" }
	zero := func(int) string { return "0" }
	for what, c := range map[string]struct {
		begin, end string
		next       func(i int) string
		taken      bool
	}{
		"tensors":            {manifest + `],"tensors":[`, "]}", func(i int) string { return fmt.Sprintf(`{"name":"%09d","kind":"m","dtype":"F32","shape":[]}`, i) }, true},
		"empty tensors":      {manifest + `],"tensors":[`, "]}", empty, false},
		"data files":         {manifest + `,`, "]}", func(i int) string { return fmt.Sprintf(`{"name":"%s","bytes":0,"crc32c":"00000000"}`, dataName(0, i)) }, true},
		"empty files":        {manifest + `,`, "]}", empty, false},
		"checksums":          {manifest + `,{"crc32c":"`, `"}]}`, func(int) string { return "00000000" }, false},
		"a shape":            {manifest + `],"tensors":[{"shape":[`, "]}]}", zero, false},
		"metrics":            {manifest + `],"metrics":{`, "}}", func(i int) string { return fmt.Sprintf(`"%d":0`, i) }, false},
		"a date":             {manifest + `],"created":"`, `"}`, zero, false},
		"a nonce":            {manifest + `],"nonce":"`, `"}`, zero, false},
		"unknown keys":       {`{`, "}", func(i int) string { return fmt.Sprintf(`"%d":0`, i) }, false},
		"deep":               {`{"metrics":`, "", func(int) string { return "[[[[[[" }, false},
		"spaces":             {manifest + `],"step":`, "2}", func(int) string { return "    " }, false},
		"extents":            {data, "]}]}", extent, false},
		"empty extents":      {data, "]}]}", empty, false},
		"stored sizes":       {data + `{"tensor":0,"codec":"planes","stored":[`, "]}]}]}", zero, false},
		"block checksums":    {data + `{"tensor":0,"codec":"raw","crc32c":"`, `"}]}]}`, func(int) string { return "00000000" }, false},
		"empty descriptions": {part, "]}", empty, false},
		"tensors of a part":  {`{"tensors":[`, "]}", func(i int) string { return `{"name":"a","kind":"m","dtype":"F32","shape":[]}` }, false},
	} {
		var b strings.Builder
		b.WriteString(c.begin)
		comma := !strings.HasSuffix(c.begin, `"`) && what != "spaces" && what != "deep"
		for i := 0; b.Len() < size; i++ {
			if i > 0 && comma {
				b.WriteByte(',')
			}
			b.WriteString(c.next(i))
		}
		b.WriteString(c.end)
		raw := []byte(b.String())
		for name, parse := range map[string]func([]byte) error{
			"manifest": func(b []byte) error { _, err := parseManifest(b); return err },
			"part":     func(b []byte) error { _, err := parsePart(b); return err },
		} {
			var err error
			n := spent(func() { err = parse(raw) })
			if n > 24*int64(len(raw)) { // the race detector adds a sixth
				t.Errorf("%s as a %s: %d bytes of memory for %d", what, name, n, len(raw))
			}
			if name == "manifest" && c.taken != (err == nil) || err != nil && len(err.Error()) > 1000 {
				t.Errorf("%s as a %s: %.1000v", what, name, err)
			}
		}
	}
}

// TestMemoryOfForgedSizes checks that a checkpoint with claimed and actual (sparse) file sizes of
// a terabyte is refused without allocating memory for it.
func TestMemoryOfForgedSizes(t *testing.T) {
	const huge = 1 << 40
	for what, change := range map[string]func(m *manifest, p *part){
		"header": func(m *manifest, p *part) {
			f := &p.Files[0]
			f.Extents[0].Offset += huge - f.Header
			f.Bytes += huge - f.Header
			f.Header = huge
		},
		"header beyond 63 bits": func(m *manifest, p *part) { p.Files[0].Header = math.MaxInt64; p.Files[0].Bytes = math.MaxInt64 },
		"extent": func(m *manifest, p *part) {
			p.Files[0].Extents[0].Hi = huge / 4
			p.Files[0].Bytes = huge
			p.Tensors[0].Shape[0] = huge / 4
		},
		"tensor": func(m *manifest, p *part) {
			p.Tensors[0].Shape[0], m.Tensors[0].Shape = math.MaxInt/4, []int{math.MaxInt / 4}
		},
		"state": func(m *manifest, p *part) { m.Files[0].Bytes = huge },
	} {
		m := bigModel(1000, Master)
		path := m.mustSave(t, vfs.OS{}, t.TempDir(), 1, 1, Options{})
		forge(t, vfs.OS{}, path, func(m *manifest, p *part) {
			change(m, p)
			m.Files[2].Bytes = p.Files[0].Bytes
			if p.Files[0].Bytes < math.MaxInt64 {
				os.Truncate(filepath.Join(path, p.Files[0].Name), p.Files[0].Bytes) // sparse; if that fails, the size is refused anyway
			}
			if what == "state" {
				os.Truncate(filepath.Join(path, stateName), huge)
			}
		})
		var bad []*Damage
		var err error
		n := spent(func() { bad, err = Verify(context.Background(), path, Walk{}) })
		if n > 16<<20 || err != nil || len(bad) == 0 {
			t.Errorf("%s: %d bytes of memory, found %v, %v", what, n, bad, err)
		}
	}
}

// TestNamesAreEscaped checks that names with control characters are escaped in all messages.
func TestNamesAreEscaped(t *testing.T) {
	const evil = "w\x1b[2J\x1b]0;title\x07\n\u009b31m\u202e"
	root := t.TempDir()
	m := &model{data: map[key][]byte{}, tensors: []Tensor{{evil, Master, F32, []int{2}}}}
	m.data[key{evil, Master}] = make([]byte, 8)
	path := m.mustSave(t, vfs.OS{}, root, 1, 1, Options{headerBytes: 1024})
	poke(t, filepath.Join(path, dataName(0, 0)), 1026, 1)
	bad, err := Verify(context.Background(), path, Walk{})
	if err != nil || len(bad) != 1 {
		t.Fatal(bad, err)
	}
	messages := []string{bad[0].Error(), Tensor{Name: evil, Kind: "k"}.String(), Tensor{Name: evil, Kind: evil}.Check().Error(), Plain("\xff\x1b"), Plain(evil)}
	forge(t, vfs.OS{}, path, func(m *manifest, p *part) { p.Tensors[0].Shape[0] = 3 })
	_, err = Open(path)
	messages = append(messages, fmt.Sprint(err))
	for _, s := range messages {
		if strings.ContainsAny(s, "\x1b\x07\n\u009b\u202e") || strings.Contains(s, "\xff") || !strings.Contains(s, `\x1b`) {
			t.Errorf("%q is not escaped", s)
		}
	}
	for _, s := range []string{"h.0.ln_1.bias", "müße 模型 'a' \"b\" \\", ""} {
		if Plain(s) != s {
			t.Errorf("%s became %s", s, Plain(s))
		}
	}
}

// TestCommitsOnlyTheReadable checks that Commit refuses a checkpoint that could not be read back.
func TestCommitsOnlyTheReadable(t *testing.T) {
	nightly.Long(t)
	commit := func(change func(c *Commit)) error {
		mem := &vfstest.Mem{}
		s, err := Begin("/c", 1, Options{FS: mem})
		must(t, err)
		defer s.Abort()
		w := s.Writer(0)
		must(t, bigModel(1, Master).put(w, 0, 1, 3))
		p, err := w.Finish()
		must(t, err)
		c := Commit{Parts: []PartFile{p}}
		change(&c)
		_, err = s.Commit(c)
		return err
	}
	must(t, commit(func(c *Commit) { c.State = make([]byte, maxJSON) }))
	many := map[string]float64{}
	for i := range 10000 {
		many[fmt.Sprint(i)] = 1
	}
	for what, change := range map[string]func(c *Commit){
		"state.json has 67108865 bytes": func(c *Commit) { c.State = make([]byte, maxJSON+1) },
		"more than 8192 metrics":        func(c *Commit) { c.Metrics = many },
	} {
		if err := commit(change); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
	if err := (Tensor{"w", Master, F32, make([]int, maxDims+1)}).Check(); err == nil {
		t.Error("a tensor of 65 dimensions")
	}
}
