package setup

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"zeroth/device/cuda/driver"
)

// Algorithms is how products are computed on a model of GPU by a version of cuBLAS: the file
// that 'zeroth bench gpu --write-algorithms' writes and a run records.
type Algorithms struct {
	GPU      string    `json:"gpu"`
	CUBLAS   string    `json:"cublas"`
	Products []Product `json:"products"`
}

// Product is a shape and who computes it, with seconds where that was measured.
type Product struct {
	driver.Gemm
	Algorithm driver.Algorithm `json:"algorithm"`
	Config    string           `json:"config"` // the algorithm, in words
	By        string           `json:"by"`     // "table", "heuristic", or "cublas", which tells nobody what it does
	Seconds   float64          `json:"seconds,omitempty"`
	Usual     float64          `json:"usual_seconds,omitempty"` // of what is computed without a table
}

// algorithmsBytes is the most that a file of algorithms has.
const algorithmsBytes = 4 << 20

// ParseAlgorithms reads what Write wrote.
func ParseAlgorithms(text []byte) (a *Algorithms, err error) {
	d := json.NewDecoder(io.LimitReader(bytes.NewReader(text), algorithmsBytes))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return nil, fmt.Errorf("not a file of algorithms: %w", err)
	}
	if a == nil || a.GPU == "" || a.CUBLAS == "" {
		return nil, fmt.Errorf("not a file of algorithms: it names no gpu, or no cublas")
	}
	return a, nil
}

// JSON is the file.
func (a *Algorithms) JSON() []byte {
	slices.SortFunc(a.Products, func(x, y Product) int { return cmp.Compare(fmt.Sprint(x.Gemm), fmt.Sprint(y.Gemm)) })
	text, err := json.MarshalIndent(a, "", " ")
	if err != nil {
		panic(fmt.Sprintf("setup: algorithms: %v", err)) // there is nothing in them that JSON lacks
	}
	return append(text, '\n')
}

// Packed is the file as a line of text, a fraction as long; Unpacked the file.
func (a *Algorithms) Packed() string {
	var b strings.Builder
	to := base64.NewEncoder(base64.StdEncoding, &b)
	z := gzip.NewWriter(to)
	_, _ = z.Write(a.JSON()) // memory takes it
	_ = z.Close()
	_ = to.Close()
	return b.String()
}

// Unpacked is what was Packed.
func Unpacked(line string) (*Algorithms, error) {
	z, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(line)))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(z, algorithmsBytes))
	if err != nil {
		return nil, err
	}
	return ParseAlgorithms(text)
}

// Table is the algorithms that cuBLASLt is to use.
func (a *Algorithms) Table() driver.Table {
	t := driver.Table{}
	for _, p := range a.Products {
		if p.Algorithm != (driver.Algorithm{}) {
			t[p.Gemm] = p.Algorithm
		}
	}
	return t
}

// chooses is a device whose products have algorithms.
type chooses interface {
	Planned() int // shapes so far
	Choices() map[driver.Gemm]driver.Choice
}

// Shapes is how many products of different shapes a rank has computed so far.
func (r *Rank) Shapes() int {
	if d, ok := r.Device.(chooses); ok {
		return d.Planned()
	}
	return 0
}

// Add adds how a rank, which issues nothing meanwhile, has computed products. What is there
// already stays.
func (a *Algorithms) Add(r *Rank) {
	d, ok := r.Device.(chooses)
	if !ok {
		return
	}
	all := d.Choices()
	for _, p := range a.Products {
		delete(all, p.Gemm)
	}
	for _, g := range slices.Collect(maps.Keys(all)) {
		c := all[g]
		a.Products = append(a.Products, Product{Gemm: g, Algorithm: c.Algorithm, Config: c.Config, By: c.By})
	}
}
