package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"zeroth/checkpoint/vfs"
)

// Names in a checkpoint's folder, and of folders beside it.
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

// manifest is MANIFEST.json: what the checkpoint is and which files it has.
type manifest struct {
	Format  int                `json:"format"`
	Seq     int64              `json:"seq"`
	Step    int64              `json:"step"`
	Nonce   string             `json:"nonce"`
	Created time.Time          `json:"created"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
	Writers int                `json:"writers"`
	Tensors []Tensor           `json:"tensors"` // sorted by name, then kind
	Files   []fileEntry        `json:"files"`   // all but MANIFEST.json and COMMIT
}

// fileEntry is a file's name, size and digest: CRC32C for data files, SHA-256
// for the others.
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

// parseManifest reads and checks a manifest.
func parseManifest(b []byte) (*manifest, error) {
	m := &manifest{}
	if err := decodeStrict(b, m); err != nil {
		return nil, err
	}
	if m.Format != format {
		return nil, fmt.Errorf("format %d; this program reads format %d", m.Format, format)
	}
	if m.Step < 0 || m.Seq < 1 || m.Writers < 1 || m.Writers > len(m.Files) {
		return nil, fmt.Errorf("step %d, seq %d, %d writers, %d files", m.Step, m.Seq, m.Writers, len(m.Files))
	}
	for i, t := range m.Tensors {
		if err := t.check(); err != nil {
			return nil, err
		}
		if i > 0 && (t.Name < m.Tensors[i-1].Name || t.Name == m.Tensors[i-1].Name && t.Kind <= m.Tensors[i-1].Kind) {
			return nil, fmt.Errorf("tensors out of order at %v", t)
		}
	}
	seen := map[string]bool{}
	for _, f := range m.Files {
		if err := f.check(); err != nil {
			return nil, err
		}
		if seen[f.Name] {
			return nil, fmt.Errorf("file %s twice", f.Name)
		}
		seen[f.Name] = true
	}
	return m, nil
}

func (f fileEntry) check() error {
	if f.Name == "" || f.Name[0] == '.' || strings.ContainsAny(f.Name, `/\`) || f.Bytes < 0 {
		return fmt.Errorf("file %q of %d bytes", f.Name, f.Bytes)
	}
	if isData(f.Name) != (len(f.CRC) == 1) || isData(f.Name) == (len(f.SHA256) == 2*sha256.Size) {
		return fmt.Errorf("file %s: data files have a crc32c, others a sha256", f.Name)
	}
	return nil
}

func isData(name string) bool { return strings.HasPrefix(name, "data-") }

// bytes is the size of all files.
func (m *manifest) bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Bytes
	}
	return n
}

// marker is the contents of COMMIT.
type marker struct {
	seq, step int64
	nonce     string
	manifest  string // SHA-256 of MANIFEST.json, hexadecimal
}

const markerForm = "zeroth-checkpoint 1 seq %d step %d nonce %s manifest %s\n"

func (c marker) String() string {
	return fmt.Sprintf(markerForm, c.seq, c.step, c.nonce, c.manifest)
}

// parseMarker takes exactly what String gives.
func parseMarker(b []byte) (marker, error) {
	var c marker
	if len(b) <= 1024 {
		_, err := fmt.Sscanf(string(b), markerForm, &c.seq, &c.step, &c.nonce, &c.manifest)
		if err == nil && c.String() == string(b) {
			return c, nil
		}
	}
	return c, fmt.Errorf("%.100q is not a commit marker of format %d", b, format)
}

// readManifest reads COMMIT and the manifest that it vouches for.
func readManifest(fsys vfs.FS, dir string) (*manifest, error) {
	b, err := vfs.ReadFile(fsys, filepath.Join(dir, commitName), 1024)
	if err != nil {
		return nil, err
	}
	c, err := parseMarker(b)
	if err != nil {
		return nil, &Damage{File: commitName, Why: err.Error()}
	}
	b, err = vfs.ReadFile(fsys, filepath.Join(dir, manifestName), maxJSON)
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
	if m.Seq != c.seq || m.Step != c.step || m.Nonce != c.nonce {
		return nil, &Damage{File: commitName, Why: fmt.Sprintf("is of save %s (seq %d, step %d), the manifest of %s (seq %d, step %d)",
			c.nonce, c.seq, c.step, m.Nonce, m.Seq, m.Step)}
	}
	return m, nil
}

// readListed reads a file that the manifest lists with a SHA-256.
func readListed(fsys vfs.FS, dir string, f fileEntry) ([]byte, error) {
	b, err := vfs.ReadFile(fsys, filepath.Join(dir, f.Name), maxJSON)
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
		panic("checkpoint: " + err.Error()) // our own structs always marshal
	}
	return append(b, '\n')
}
