package driver

import "fmt"

// cuBLAS's names of types.
const (
	Float32  = 0
	Float16  = 2
	BFloat16 = 14
)

// Epilogue is an operation fused with a product; values are those of cublasLtEpilogue_t.
type Epilogue int32

// Bias adds a bias to each row. GeluBias adds it, writes the sum to the matrix Beside and GELU
// (tanh) of the sum to d; GeluGrad multiplies by GELU's slope at that matrix. SumsA and SumsB write
// the sums of op(a) and of op(b) over k; a must not be transposed, or b must be.
const (
	Plain    Epilogue = 1
	Bias     Epilogue = 4
	GeluBias Epilogue = 164 // CUBLASLT_EPILOGUE_GELU_AUX_BIAS
	GeluGrad Epilogue = 192 // CUBLASLT_EPILOGUE_DGELU
	SumsA    Epilogue = 256 // CUBLASLT_EPILOGUE_BGRADA
	SumsB    Epilogue = 512 // CUBLASLT_EPILOGUE_BGRADB
)

// String describes the fused operation.
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

// Gemm is the shape of a product of column-major matrices, d (M, N) = a (M, K) b (K, N), plus c if
// Add is set; a and b may be stored transposed. The second part is used only by Fused, which looks
// up its plans by the whole struct: it has no padding, so that it is hashed as one piece.
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
	Align    int32    `json:"align"` // alignment of the operands' addresses in bytes
	Epilogue Epilogue `json:"epilogue"`

	TransA bool `json:"trans_a"`
	TransB bool `json:"trans_b"`
	Add    bool `json:"add"`
}

// String describes the product.
func (g Gemm) String() string {
	return fmt.Sprintf("product (%d,%d) by (%d,%d) with %v", g.N, g.K, g.K, g.M, g.Epilogue)
}

// Plain reports whether cuBLAS can compute the product without cuBLASLt, unless a table has an
// algorithm.
func (g *Gemm) Plain() bool { return g.Epilogue == Plain && g.LdC == g.LdD }

// Algorithm is a cublasLtMatmulAlgo_t, valid for the same version of cuBLASLt on the same GPU
// model.
type Algorithm [8]uint64

// Table contains chosen algorithms for products.
type Table map[Gemm]Algorithm

// Choice describes how a product is computed, and who chose that: one of the By constants.
type Choice struct {
	Algorithm Algorithm // zero if it is not cuBLASLt's
	Config    string    // description
	By        string
}

// Sources of a choice: a table, cuBLASLt's heuristic, or cuBLAS, which does not reveal its choice.
const (
	ByTable     = "table"
	ByHeuristic = "heuristic"
	ByCUBLAS    = "cublas"
)
