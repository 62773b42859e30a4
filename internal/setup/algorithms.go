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

// Algorithms lists the algorithms of matrix products on a GPU model with a version of cuBLAS. It
// is the format of the file that 'zeroth bench gpu --write-algorithms' writes and a run records.
type Algorithms struct {
	GPU      string    `json:"gpu"`
	CUBLAS   string    `json:"cublas"`
	Products []Product `json:"products"`
}

// Product is a shape and its algorithm, with the seconds if measured.
type Product struct {
	driver.Gemm
	Algorithm driver.Algorithm `json:"algorithm"`
	Config    string           `json:"config"` // description of the algorithm
	By        string           `json:"by"`     // "table", "heuristic", or "cublas", which does not reveal its choice
	Seconds   float64          `json:"seconds,omitempty"`
	Usual     float64          `json:"usual_seconds,omitempty"` // seconds without a table
}

// algorithmsBytes bounds the size of a file of algorithms.
const algorithmsBytes = 4 << 20

// ParseAlgorithms parses the output of JSON.
func ParseAlgorithms(text []byte) (a *Algorithms, err error) {
	d := json.NewDecoder(io.LimitReader(bytes.NewReader(text), algorithmsBytes))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return nil, fmt.Errorf("not a file of algorithms: %w", err)
	}
	if a == nil || a.GPU == "" || a.CUBLAS == "" {
		return nil, fmt.Errorf("not a file of algorithms: gpu or cublas is missing")
	}
	return a, nil
}

// JSON returns the contents of a file of algorithms.
func (a *Algorithms) JSON() []byte {
	slices.SortFunc(a.Products, func(x, y Product) int { return cmp.Compare(fmt.Sprint(x.Gemm), fmt.Sprint(y.Gemm)) })
	text, err := json.MarshalIndent(a, "", " ")
	if err != nil {
		panic(fmt.Sprintf("setup: algorithms: %v", err)) // JSON can represent every field
	}
	return append(text, '\n')
}

// Packed returns the file, compressed, as a line of text; see Unpacked.
func (a *Algorithms) Packed() string {
	var b strings.Builder
	to := base64.NewEncoder(base64.StdEncoding, &b)
	z := gzip.NewWriter(to)
	_, _ = z.Write(a.JSON()) // writing to memory cannot fail
	_ = z.Close()
	_ = to.Close()
	return b.String()
}

// Unpacked parses the output of Packed.
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

// Table returns the algorithms to use in cuBLASLt.
func (a *Algorithms) Table() driver.Table {
	t := driver.Table{}
	for _, p := range a.Products {
		if p.Algorithm != (driver.Algorithm{}) {
			t[p.Gemm] = p.Algorithm
		}
	}
	return t
}

// chooses is implemented by devices that choose algorithms for products.
type chooses interface {
	Planned() int // number of shapes so far
	Choices() map[driver.Gemm]driver.Choice
}

// Shapes returns the number of distinct product shapes that a rank has computed so far.
func (r *Rank) Shapes() int {
	if d, ok := r.Device.(chooses); ok {
		return d.Planned()
	}
	return 0
}

// Add adds the algorithms that a rank has used. The rank must be idle. Existing entries do not
// change.
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
