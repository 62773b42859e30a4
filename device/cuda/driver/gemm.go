package driver

import "fmt"

// Types as cuBLAS calls them.
const (
	Float32  = 0
	Float16  = 2
	BFloat16 = 14
)

// Epilogue is what a product does beside multiplying, as cublasLtEpilogue_t has it.
type Epilogue int32

// Bias adds one to each row. GeluBias adds it, writes the sum to the matrix beside d and
// GELU (by tanh) of the sum to d; GeluGrad multiplies by GELU's slope at what is in that
// matrix. SumsA and SumsB write the sums of op(a) and of op(b) over k, of which a is not
// transposed, or b is.
const (
	Plain    Epilogue = 1
	Bias     Epilogue = 4
	GeluBias Epilogue = 164 // CUBLASLT_EPILOGUE_GELU_AUX_BIAS
	GeluGrad Epilogue = 192 // CUBLASLT_EPILOGUE_DGELU
	SumsA    Epilogue = 256 // CUBLASLT_EPILOGUE_BGRADA
	SumsB    Epilogue = 512 // CUBLASLT_EPILOGUE_BGRADB
)

// String is what is beside the product.
func (e Epilogue) String() string {
	switch e {
	case Bias:
		return "a bias"
	case GeluBias:
		return "a bias and GELU"
	case GeluGrad:
		return "the slope of GELU"
	case SumsA, SumsB:
		return "the gradient of a bias"
	}
	return "another matrix"
}

// Gemm is the shape of a product of column-major matrices, d (M, N) = a (M, K)
// b (K, N), plus c if Add is set; a and b are stored transposed where it says so. The
// second part is of Fused alone, which looks its plans up by all of it: there is nothing
// between the fields, so that it is hashed as one piece.
type Gemm struct {
	M     int32 `json:"m"`
	N     int32 `json:"n"`
	K     int32 `json:"k"`
	LdA   int32 `json:"ld_a"` // elements from one column to the next
	LdB   int32 `json:"ld_b"`
	LdD   int32 `json:"ld_d"`
	Type  int32 `json:"type"`   // of a and b
	TypeD int32 `json:"type_d"` // of c and d

	LdC      int32    `json:"ld_c"`
	LdAux    int32    `json:"ld_aux"`
	Align    int32    `json:"align"` // bytes that the operands' addresses are multiples of
	Epilogue Epilogue `json:"epilogue"`

	TransA bool `json:"trans_a"`
	TransB bool `json:"trans_b"`
	Add    bool `json:"add"`
}

// String is the product in words.
func (g Gemm) String() string {
	return fmt.Sprintf("product (%d,%d) by (%d,%d) with %v", g.N, g.K, g.K, g.M, g.Epilogue)
}

// Plain says whether the product is one that cuBLAS computes without cuBLASLt, unless a table
// has an algorithm.
func (g *Gemm) Plain() bool { return g.Epilogue == Plain && g.LdC == g.LdD }

// Algorithm is a cublasLtMatmulAlgo_t, which the same version of cuBLASLt understands on the
// same model of GPU.
type Algorithm [8]uint64

// Table is the algorithms that were chosen for products.
type Table map[Gemm]Algorithm

// Choice is how a product is computed, and who chose that: one of the By words.
type Choice struct {
	Algorithm Algorithm // zero if it is not cuBLASLt's
	Config    string    // what it is, in words
	By        string
}

// Who chooses: a table, cuBLASLt's heuristic, or cuBLAS, in a call that tells nobody.
const (
	ByTable     = "table"
	ByHeuristic = "heuristic"
	ByCUBLAS    = "cublas"
)
