package checkpoint

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
)

// TestForgedPartsAreRefused checks that invalid part files are refused, because later code trusts
// them.
func TestForgedPartsAreRefused(t *testing.T) {
	mem := &vfstest.Mem{}
	m := bigModel(blockBytes, Master) // 4 blocks
	path := m.mustSave(t, mem, "/c", 1, 1, Options{Compress: Always})
	good, err := vfs.ReadFile(mem, filepath.Join(path, partName(0)), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(p *part, e *extent){
		"format 2":                 func(p *part, e *extent) { p.Format = 2 },
		"writer -1":                func(p *part, e *extent) { p.Writer = -1 },
		"should be data-00000-000": func(p *part, e *extent) { p.Files[0].Name = "../x" },
		"header of 7":              func(p *part, e *extent) { p.Files[0].Header = 7 },
		"0 and 1 checksums":        func(p *part, e *extent) { p.Files[0].HeaderCRC = nil },
		"1 and 2 checksums":        func(p *part, e *extent) { p.Files[0].CRC = crcs{1, 2} },
		"tensor 1 of 1":            func(p *part, e *extent) { e.Tensor = 1 },
		"tensor -1 of 1":           func(p *part, e *extent) { e.Tensor = -1 },
		"elements [5, 5)":          func(p *part, e *extent) { e.Lo, e.Hi = 5, 5 },
		"elements [-1, ":           func(p *part, e *extent) { e.Lo = -1 },
		"262145) of 262144":        func(p *part, e *extent) { e.Hi++ },
		"3 checksums for 4":        func(p *part, e *extent) { e.CRC, e.Stored = e.CRC[:3], e.Stored[:3] },
		"3 stored sizes for 4":     func(p *part, e *extent) { e.Stored = e.Stored[:3] },
		"stored as 0":              func(p *part, e *extent) { e.Stored[1] = 0 },
		"stored as 262146":         func(p *part, e *extent) { e.Stored[1] = blockBytes + 2 },
		"stored as -9":             func(p *part, e *extent) { e.Stored[1] = -9 },
		"expected at 65536":        func(p *part, e *extent) { e.Offset++ },
		"extents end at":           func(p *part, e *extent) { p.Files[0].Bytes++ },
		"of 65540":                 func(p *part, e *extent) { p.Files[0].Bytes = 65540 },
		`codec "zip"`:              func(p *part, e *extent) { e.Codec = "zip" },
		"codec raw must not have":  func(p *part, e *extent) { e.Codec = codecRaw },
		"overflows":                func(p *part, e *extent) { p.Tensors[0].Shape = []int{1 << 62, 4} },
		"kind":                     func(p *part, e *extent) { p.Tensors[0].Kind = "" },
	} {
		p, err := parsePart(good)
		if err != nil {
			t.Fatal(err)
		}
		change(p, &p.Files[0].Extents[0])
		b, _ := json.Marshal(p)
		if _, err := parsePart(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for want, b := range map[string]string{"unknown key": `{"x":1}`, "unexpected text": string(good) + "{}", "format 0": "{}", "the text ends where": "{", "duplicate key": `{"step":1,"step":1}`} {
		if _, err := parsePart([]byte(b)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// forge rewrites a checkpoint's first part and its manifest, with matching digests.
func forge(t *testing.T, fsys vfs.FS, path string, change func(m *manifest, p *part)) {
	t.Helper()
	man, err := readManifest(fsys, path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := vfs.ReadFile(fsys, filepath.Join(path, partName(0)), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsePart(b)
	if err != nil {
		t.Fatal(err)
	}
	change(man, p)
	b, _ = json.Marshal(p)
	forgeFiles(t, fsys, path, man, map[string][]byte{partName(0): b})
}

// forgeFiles replaces files, and the manifest and COMMIT with matching digests. man is the manifest
// unless MANIFEST.json is among the files.
func forgeFiles(t *testing.T, fsys vfs.FS, path string, man *manifest, files map[string][]byte) {
	t.Helper()
	for i := range man.Files {
		if e := &man.Files[i]; files[e.Name] != nil {
			e.Bytes, e.SHA256 = int64(len(files[e.Name])), digest(files[e.Name])
		}
	}
	if files[manifestName] == nil {
		files[manifestName] = mustJSON(man)
	}
	files[commitName] = []byte(marker{man.Format, man.Seq, man.Step, man.Nonce, digest(files[manifestName])}.String())
	for name, b := range files {
		fsys.Remove(filepath.Join(path, name))
		if err := vfs.WriteFile(fsys, filepath.Join(path, name), b); err != nil {
			t.Fatal(err)
		}
	}
}

// TestContradictionsAreRefused checks that a part and a manifest that are valid by themselves but
// contradict each other are refused.
func TestContradictionsAreRefused(t *testing.T) {
	for want, change := range map[string]func(m *manifest, p *part){
		"elements [0, 262144) of 262144 are missing":    func(m *manifest, p *part) { p.Files, m.Files = p.Files[:0], m.Files[:2] },
		"has no such tensor":                            func(m *manifest, p *part) { m.Tensors = m.Tensors[:0] },
		"belongs to save 0000":                          func(m *manifest, p *part) { p.Nonce = "0000000000000000" },
		"the CRC32C of its blocks":                      func(m *manifest, p *part) { p.Files[0].CRC[0]++; m.Files[2].CRC[0]++ },
		"disagrees with the manifest on data-00000-000": func(m *manifest, p *part) { p.Files[0].CRC[0]++ },
		"lists no part-00001":                           func(m *manifest, p *part) { m.Writers = 2 },
		"lists no state":                                func(m *manifest, p *part) { m.Files = m.Files[1:] },
		"out of order":                                  func(m *manifest, p *part) { m.Tensors = append(m.Tensors, m.Tensors[0]) },
		"duplicate file":                                func(m *manifest, p *part) { m.Files = append(m.Files, m.Files[0]) },
		"is not a commit marker of format 1 or 2":       func(m *manifest, p *part) { m.Format = 3 },
		"has format 2, but no part file does":           func(m *manifest, p *part) { m.Format = 2 },
		"5 writers":                                     func(m *manifest, p *part) { m.Writers = 5 },
		`file "../x"`:                                   func(m *manifest, p *part) { m.Files[0].Name = "../x" },
		"have a crc32c":                                 func(m *manifest, p *part) { m.Files[0].CRC = crcs{1} },
	} {
		mem := &vfstest.Mem{}
		m := bigModel(blockBytes, Master)
		path := m.mustSave(t, mem, "/c", 1, 1, Options{})
		forge(t, mem, path, change)
		bad, err := Verify(context.Background(), path, Walk{FS: mem})
		if err != nil || len(bad) != 1 || !strings.Contains(bad[0].Error(), want) {
			t.Errorf("got %v, %v, want %q", bad, err, want)
		}
	}
}
