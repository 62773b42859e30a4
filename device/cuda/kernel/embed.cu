// Embeddings: lookups of rows, and sums of their gradients.

// place returns a row's position in its document; sequences have T rows. start has the position of
// each row's document in the sequence, or is null.
__device__ int place(const int *start, i64 row, int T) { return (int)(row % T) - (start ? start[row] : 0); }

// embed sets y[i] = wte[ids[i]] + wpe[place(i)]; wpe may be null. wte has some of the vocabulary's
// size rows, starting at first; other rows count as 0. Each warp processes one row.
PASS embed(Mat y, Mat wte, Mat wpe, const int *ids, const int *start, int rows, int cols, int some, int first, int size, int T) {
	with_kind(wpe.p ? type_of(cols % 8 == 0, y, wte, wpe) : type_of(cols % 8 == 0, y, wte), [&](auto type) {
		const int AS = decltype(type)::is;
		EACH_ROW(row, rows) {
			i64 id = ids[row];
			if (id < 0 || id >= size) TRAP("an id that is not in the vocabulary");
			id -= first;
			Mat to = row_of(y, row), of = row_of(wte, id), at = row_of(wpe, wpe.p ? place(start, row, T) : 0);
			LANE8(c, cols) {
				Eight e = {{0, 0, 0, 0, 0, 0, 0, 0}}, p = e;
				if (id >= 0 && id < some) e = get8<AS>(of, c, cols);
				if (wpe.p) p = get8<AS>(at, c, cols);
				EIGHT(j) e.v[j] += p.v[j];
				put8<AS>(to, c, cols, e);
			}
		}
	});
}
KERNEL(embed)

// word2 loads two elements of a row, and add2 adds them to sum. 16-bit elements stay packed until
// then, so that many rows are in flight.
template <int T> struct Word2 { typedef float2 type; };
template <> struct Word2<BF16> { typedef unsigned type; };
template <> struct Word2<F16> { typedef unsigned type; };
template <int T> __device__ __forceinline__ typename Word2<T>::type word2(const Mat &row, int c, int cols) {
	if constexpr (T != ANY)
		return *(const typename Word2<T>::type *)(row.p + c * (i64)(T == F32 ? 4 : 2));
	else {
		float2 f;
		f.x = get(row, c), f.y = c + 1 < cols ? get(row, c + 1) : 0;
		return f;
	}
}
template <int T> __device__ __forceinline__ void add2(float *sum, unsigned x) {
	float f[2];
	unpack2<T>(f, x);
	sum[0] += f[0], sum[1] += f[1];
}
template <int T> __device__ __forceinline__ void add2(float *sum, float2 x) { sum[0] += x.x, sum[1] += x.y; }

// add_rows adds up to N of the rows where[i] for each bit i, in order, and returns the other bits.
// It loads them together, repeating the last one.
template <int T, int N> __device__ __forceinline__ unsigned add_rows(float *sum, const Mat &dy, const int *where, unsigned bits, int c, int cols) {
	typename Word2<T>::type d[N];
	int at = 0, n = 0;
#pragma unroll
	for (int i = 0; i < N; i++) {
		if (bits) at = __ffs((int)bits) - 1, bits &= bits - 1, n++;
		d[i] = word2<T>(row_of(dy, where[at]), c, cols);
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		if (i < n) add2<T>(sum, d[i]);
	return bits;
}

// add_noted adds the rows of dy that a block has noted, in order, to the rows of dwte of their ids
// (whose), in two columns from c. Each warp processes one id and loads several rows at once, so
// that a frequent id waits for memory only once per group.
template <int T>
__device__ __forceinline__ void add_noted(float *dwte, int ld, const Mat &dy, const int *where, const int *whose, int noted, int c, int cols, int vocab, bool fresh) {
	const int MANY = T == BF16 || T == F16 ? 32 : 16, FEW = 4;
	for (i64 v = blockIdx.x + (i64)WARP * gridDim.x; v < vocab; v += (i64)WARPS * gridDim.x) {
		float *to = dwte + v * ld, sum[2] = {0, 0};
		bool any = false;
		for (int k = 0; k < noted; k += 32) {
			unsigned bits = __ballot_sync(ALL, k + LANE < noted && whose[k + LANE] == v);
			if (!bits) continue;
			if (!any && !fresh)
				for (int j = 0; j < 2; j++) sum[j] = c + j < cols ? to[c + j] : 0;
			any = true;
			while (bits && c < cols) bits = __popc(bits) > FEW ? add_rows<T, MANY>(sum, dy, where + k, bits, c, cols) : add_rows<T, FEW>(sum, dy, where + k, bits, c, cols);
		}
		if (any || fresh)
			for (int j = 0; j < 2; j++)
				if (c + j < cols) to[c + j] = sum[j];
	}
}

// embed_grad sums the rows of dy with the same id, in order, into the id's row of dwte (float32),
// starting from 0 or, with add, from the present value; row 0 belongs to id first. The order of
// summation is the CPU's for any number of blocks. Block (b, s) processes the ids that are b modulo
// the number of blocks, which spreads frequent ids, as these are low, and columns 64s to 64s+63.
// It scans all ids and notes the positions of its own in order. When the list could overflow in the
// next scan, and at the end, it adds the noted rows.
#define LIST 3072
#define LOOK (4 * THREADS)
extern "C" __global__ void __launch_bounds__(THREADS, 3) embed_grad(float *dwte, int ld, Mat dy, const int *ids, int rows, int cols, int vocab, int first, int add) {
	SHARED(int, where, LIST);
	SHARED(int, whose, LIST);
	SHARED(int, found, WARPS);
	int noted = 0, blocks = gridDim.x, block = blockIdx.x, c = 64 * blockIdx.y + 2 * LANE;
	bool fresh = !add;
	for (int base = 0; base < rows || fresh || noted; base += LOOK) {
		int id[4], at = noted, sum = 0;
		unsigned bits[4];
#pragma unroll
		for (int j = 0; j < 4; j++) {
			int i = base + 4 * threadIdx.x + j;
			id[j] = i < rows ? ids[i] - first : -1;
		}
#pragma unroll
		for (int j = 0; j < 4; j++) {
			bool mine = id[j] >= 0 && id[j] < vocab && id[j] % blocks == block;
			bits[j] = __ballot_sync(ALL, mine);
			if (!mine) id[j] = -1;
			sum += __popc(bits[j]);
			at += __popc(bits[j] & ((1u << LANE) - 1));
		}
		if (LANE == 0) found[WARP] = sum;
		__syncthreads();
		for (int w = 0; w < WARPS; w++) {
			if (w < WARP) at += found[w];
			noted += found[w];
		}
#pragma unroll
		for (int j = 0; j < 4; j++)
			if (id[j] >= 0) where[at] = base + 4 * threadIdx.x + j, whose[at++] = id[j];
		__syncthreads();
		if (base + LOOK < rows && noted + LOOK <= LIST) continue;
		with_kind(type_of(cols % 8 == 0, dy), [&](auto type) { add_noted<decltype(type)::is>(dwte, ld, dy, where, whose, noted, c, cols, vocab, fresh); });
		noted = 0, fresh = false; // a barrier precedes the next notes
	}
}
KERNEL(embed_grad)

// position_grad sums the rows of dy with place t, in order, into row t of dwpe (float32), starting
// from 0 or, with add, from the present value. Without start those are rows t, t+T, ..., and rows
// of dwpe from T on get none. With start, places reach T if documents begin before the sequence;
// the caller then passes places > T.
ENTRY position_grad(float *dwpe, int ld, Mat dy, const int *start, int rows, int cols, int places, int T, int add) {
	EACH_ROW(t, places) LANE4(c, cols) {
		Four sum = {{0, 0, 0, 0}};
		for (int j = 0; add && j < 4; j++)
			if (c + j < cols) sum.v[j] = dwpe[t * ld + c + j];
		bool before = start && places > T;
		for (i64 i = before ? 0 : t; (before || t < T) && i < rows; i += start ? 1 : T) {
			if (start && place(start, i, T) != t) continue;
			Four d = get4(dy, i * dy.ld + c, cols - c);
			for (int j = 0; j < 4; j++) sum.v[j] += d.v[j];
		}
		for (int j = 0; j < 4; j++)
			if (c + j < cols) dwpe[t * ld + c + j] = sum.v[j];
	}
}
KERNEL(position_grad)
