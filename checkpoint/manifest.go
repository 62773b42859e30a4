package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/internal/input/jsonread"
)

// Names in a checkpoint's folder and in its parent.
const (
	commitName   = "COMMIT"
	manifestName = "MANIFEST.json"
	stateName    = "state.json"
	lockName     = ".lock"
	tmpPrefix    = ".tmp-"
	trashPrefix  = ".trash-"
	stepPrefix   = "step-"
)

func partName(writer int) string    { return fmt.Sprintf("part-%05d.json", writer) }
func dataName(writer, i int) string { return fmt.Sprintf("data-%05d-%03d.safetensors", writer, i) }

// manifest is MANIFEST.json: a description of the checkpoint and its files.
type manifest struct {
	Format  int                `json:"format"`
	Seq     int64              `json:"seq"`
	Step    int64              `json:"step"`
	Nonce   string             `json:"nonce"`
	Created time.Time          `json:"created"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
	Writers int                `json:"writers"`
	Uses    []feature          `json:"uses,omitempty"` // features that a reader must support, sorted
	Base    string             `json:"base,omitempty"` // folder next to this one with more tensors; "" if there is none
	Tensors []Tensor           `json:"tensors"`        // sorted by name, then kind
	Files   []fileEntry        `json:"files"`          // all but MANIFEST.json and COMMIT
}

// fileEntry has a file's name, size and digest: CRC32C for data files, SHA-256 for others.
type fileEntry struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256,omitempty"`
	CRC    crcs   `json:"crc32c,omitempty"`
}

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// Limits of a manifest's numbers.
const (
	maxSeq     = 1 << 53 // commits
	maxWriters = 1 << 20
)

// parseManifest parses and checks a manifest.
func parseManifest(b []byte) (*manifest, error) {
	m := &manifest{}
	err := jsonread.Strict(b, m)
	if known := m.Format == format || m.Format == formatCuts; !known && (err == nil || m.Format != 0) {
		return nil, unknownFormat(m.Format)
	}
	if err != nil {
		return nil, err
	}
	if m.Step < 0 || m.Seq < 1 || m.Seq > maxSeq || m.Writers < 1 || m.Writers > min(len(m.Files), maxWriters) || !nonceForm.MatchString(m.Nonce) {
		return nil, fmt.Errorf("step %d, seq %d, nonce %.40q, %d writers, %d files", m.Step, m.Seq, m.Nonce, m.Writers, len(m.Files))
	}
	if m.Base != "" && !isBase(m.Base) || (m.Base != "") != slices.Contains(m.Uses, baseUsed) {
		return nil, fmt.Errorf("base %.80q, and uses %.80q", m.Base, m.Uses)
	}
	if len(m.Metrics) > maxMetrics {
		return nil, fmt.Errorf("more than %d metrics", maxMetrics)
	}
	for i, t := range m.Tensors[min(1, len(m.Tensors)):] {
		if compareKeys(m.Tensors[i], t) >= 0 {
			return nil, fmt.Errorf("tensors out of order at %v", t)
		}
	}
	return m, m.checkFiles()
}

// setUses sets the features that a reader of the manifest must support.
func (m *manifest) setUses() {
	var names []feature
	if m.Format == formatCuts {
		names = append(names, partsUsed)
	}
	if m.Base != "" {
		names = append(names, baseUsed)
	}
	for _, t := range m.Tensors {
		if name, some := features[t.Kind]; some && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	m.Uses = names
}

// checkFiles checks that the files are state.json, one part file per writer, and their data files,
// without duplicates.
func (m *manifest) checkFiles() error {
	seen := make(map[string]bool, len(m.Files))
	for _, f := range m.Files {
		if seen[f.Name] {
			return fmt.Errorf("duplicate file %s", f.Name)
		}
		seen[f.Name] = true
		if w, _ := writerOf(f.Name); w >= m.Writers {
			return fmt.Errorf("file %s, but %d writers", f.Name, m.Writers)
		}
	}
	if !seen[stateName] {
		return fmt.Errorf("lists no %s", stateName)
	}
	for w := range m.Writers {
		if !seen[partName(w)] {
			return fmt.Errorf("lists no %s", partName(w))
		}
	}
	return nil
}

// Check implements jsonread.Checked.
func (f *fileEntry) Check() error {
	if _, ok := writerOf(f.Name); !ok && f.Name != stateName || f.Bytes < 0 {
		return fmt.Errorf("file %.80q of %d bytes", f.Name, f.Bytes)
	}
	if isData(f.Name) != (len(f.CRC) == 1) || isData(f.Name) == (len(f.SHA256) == 2*sha256.Size) {
		return fmt.Errorf("file %s: data files have a crc32c, others a sha256", f.Name)
	}
	if !isData(f.Name) && f.Bytes > maxJSON {
		return fmt.Errorf("file %s of %d bytes, at most %d expected", f.Name, f.Bytes, maxJSON)
	}
	return nil
}

// writerOf returns the writer of a part file or data file from its name. For other names it returns
// -1 and false.
func writerOf(name string) (writer int, ok bool) {
	var i int
	if _, err := fmt.Sscanf(name, "part-%d.json", &writer); err == nil && writer >= 0 && name == partName(writer) {
		return writer, true
	}
	if _, err := fmt.Sscanf(name, "data-%d-%d.safetensors", &writer, &i); err == nil && writer >= 0 && i >= 0 && name == dataName(writer, i) {
		return writer, true
	}
	return -1, false
}

// isOurs reports whether a name in a checkpoint's folder belongs to the format. Other files are never
// deleted.
func isOurs(name string) bool {
	_, ok := writerOf(name)
	return ok || name == commitName || name == manifestName || name == stateName
}

func isData(name string) bool { return strings.HasPrefix(name, "data-") }

// bytes returns the total size of the files.
func (m *manifest) bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Bytes
	}
	return n
}

// marker is the content of COMMIT.
type marker struct {
	format    int
	seq, step int64
	nonce     string
	manifest  string // SHA-256 of MANIFEST.json, hexadecimal
}

const maxCommit = 1024 // bytes of COMMIT

const markerForm = "zeroth-checkpoint %d seq %d step %d nonce %s manifest %s\n"

func (c marker) String() string {
	return fmt.Sprintf(markerForm, c.format, c.seq, c.step, c.nonce, c.manifest)
}

// parseMarker parses exactly the form written by String.
func parseMarker(b []byte) (marker, error) {
	var c marker
	if len(b) <= maxCommit {
		_, err := fmt.Sscanf(string(b), markerForm, &c.format, &c.seq, &c.step, &c.nonce, &c.manifest)
		if err == nil && c.String() == string(b) && (c.format == format || c.format == formatCuts) && c.seq > 0 && c.seq <= maxSeq && c.step >= 0 && nonceForm.MatchString(c.nonce) && len(c.manifest) == 2*sha256.Size {
			return c, nil
		}
	}
	return c, fmt.Errorf("%.100q is not a commit marker of format %d or %d", b, format, formatCuts)
}

// readMarker reads COMMIT.
func readMarker(fsys vfs.FS, dir string) (marker, error) {
	b, err := readSmall(fsys, dir, commitName, maxCommit)
	if err != nil {
		return marker{}, err
	}
	c, err := parseMarker(b)
	if err != nil {
		return marker{}, &Damage{File: commitName, Why: err.Error()}
	}
	return c, nil
}

// readManifest reads COMMIT and the manifest it vouches for. They, and the folder's name if it
// names a step, must agree.
func readManifest(fsys vfs.FS, dir string) (*manifest, error) {
	c, err := readMarker(fsys, dir)
	if err != nil {
		return nil, err
	}
	b, err := readSmall(fsys, dir, manifestName, maxJSON)
	if err != nil {
		return nil, err
	}
	if got := digest(b); got != c.manifest {
		return nil, &Damage{File: manifestName, Why: fmt.Sprintf("SHA-256 is %.16s…, %s says %.16s…", got, commitName, c.manifest)}
	}
	m, err := parseManifest(b)
	if err != nil {
		return nil, &Damage{File: manifestName, Why: err.Error()}
	}
	if m.Format != c.format {
		return nil, &Damage{File: commitName, Why: fmt.Sprintf("has format %d, but the manifest has %d", c.format, m.Format)}
	}
	if m.Seq != c.seq || m.Step != c.step || m.Nonce != c.nonce {
		return nil, &Damage{File: commitName, Why: fmt.Sprintf("belongs to save %s (seq %d, step %d), but the manifest to %s (seq %d, step %d)",
			c.nonce, c.seq, c.step, m.Nonce, m.Seq, m.Step)}
	}
	if step, ok := parseStepName(baseName(dir)); ok && step != m.Step {
		return nil, &Damage{File: manifestName, Why: fmt.Sprintf("is of step %d, but the folder is named for step %d: it was renamed, or the manifest is from another checkpoint", m.Step, step)}
	}
	if name := baseName(dir); isBase(name) && (name != basePrefix+c.manifest || m.Base != "") {
		return nil, &Damage{File: manifestName, Why: fmt.Sprintf("has SHA-256 %.16s… and base %q, in a folder that is named for another digest or must not have a base", c.manifest, m.Base)}
	}
	return m, nil
}

// baseName returns a folder's own name, even for ".".
func baseName(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil { // fails without a current folder
		dir = abs
	}
	return filepath.Base(dir)
}

// readSmall reads a file of at most limit bytes.
func readSmall(fsys vfs.FS, dir, name string, limit int64) ([]byte, error) {
	b, err := vfs.ReadFile(fsys, vfs.Join(dir, name), limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Damage{File: name, Why: "is missing"}
	}
	return b, err
}

// readListed reads a file listed in the manifest and checks its SHA-256.
func readListed(fsys vfs.FS, dir string, f fileEntry) ([]byte, error) {
	b, err := readSmall(fsys, dir, f.Name, f.Bytes)
	if err != nil {
		return nil, err
	}
	if got := digest(b); got != f.SHA256 || int64(len(b)) != f.Bytes {
		return nil, &Damage{File: f.Name, Why: fmt.Sprintf("%d bytes with SHA-256 %.16s…, the manifest says %d with %.16s…", len(b), got, f.Bytes, f.SHA256)}
	}
	return b, nil
}

func mustJSON(v any) []byte {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		panic("checkpoint: " + err.Error()) // our structs always marshal
	}
	return append(b, '\n')
}
