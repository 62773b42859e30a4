// Embeddings: looking rows up, and the sums of their gradients.

// place is the position of a row of sequences of T; start is null or where the
// document of each begins.
__device__ int place(const int *start, i64 row, int T) { return (int)(row % T) - (start ? start[row] : 0); }

// embed sets y[i] = wte[ids[i]] + wpe[place(i)]; wpe may be null. wte has some of the size
// rows of the vocabulary, from first on; the others count as 0. A warp has a row.
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

// embed_grad sums the rows of dy of one id into its row of dwte (float32), in their
// order, starting from 0 or, with add, from what is there; row 0 is that of id first. Block b has the ids that
// are b modulo the number of blocks, so that frequent ones, which have low numbers,
// are spread. It looks through all ids, notes where its own are, in order, and
// when LIST is nearly full, or at the end, adds what it has noted.
#define LIST 2048
ENTRY embed_grad(float *dwte, int ld, Mat dy, const int *ids, int rows, int cols, int vocab, int first, int add) {
	SHARED(int, where, LIST);
	SHARED(int, whose, LIST);
	SHARED(int, found, WARPS);
	int noted = 0, blocks = gridDim.x, block = blockIdx.x;
	bool fresh = !add;
	for (int base = 0; base < rows || fresh || noted; base += THREADS) {
		int i = base + threadIdx.x, id = i < rows ? ids[i] - first : -1;
		bool mine = id >= 0 && id < vocab && id % blocks == block;
		unsigned bits = __ballot_sync(ALL, mine);
		if (LANE == 0) found[WARP] = __popc(bits);
		__syncthreads();
		int at = noted + __popc(bits & ((1u << LANE) - 1));
		for (int w = 0; w < WARPS; w++) {
			if (w < WARP) at += found[w];
			noted += found[w];
		}
		if (mine) where[at] = i, whose[at] = id;
		__syncthreads();
		if (base + THREADS < rows && noted + THREADS <= LIST) continue;
		for (i64 v = block; v < vocab; v += blocks)
			for (int c = 4 * threadIdx.x; c < cols; c += 4 * THREADS) {
				Four sum = {{0, 0, 0, 0}};
				bool any = false;
				for (int k = 0; k < noted; k++) {
					if (whose[k] != v) continue;
					if (!any && !fresh)
						for (int j = 0; j < 4; j++)
							if (c + j < cols) sum.v[j] = dwte[v * ld + c + j];
					any = true;
					Four d = get4(dy, (i64)where[k] * dy.ld + c, cols - c);
					for (int j = 0; j < 4; j++) sum.v[j] += d.v[j];
				}
				for (int j = 0; j < 4; j++)
					if ((any || fresh) && c + j < cols) dwte[v * ld + c + j] = sum.v[j];
			}
		noted = 0, fresh = false; // the next are noted behind a barrier
	}
}
KERNEL(embed_grad)

// position_grad sums rows of dy whose place is t into row t of dwpe (float32), in their
// order, starting from 0 or, with add, from what is there. Rows from T on have none.
// Without start the rows of t are t, t+T, ...
ENTRY position_grad(float *dwpe, int ld, Mat dy, const int *start, int rows, int cols, int places, int T, int add) {
	EACH_ROW(t, places) LANE4(c, cols) {
		Four sum = {{0, 0, 0, 0}};
		for (int j = 0; add && j < 4; j++)
			if (c + j < cols) sum.v[j] = dwpe[t * ld + c + j];
		for (i64 i = t; t < T && i < rows; i += start ? 1 : T) {
			if (start && place(start, i, T) != t) continue;
			Four d = get4(dy, i * dy.ld + c, cols - c);
			for (int j = 0; j < 4; j++) sum.v[j] += d.v[j];
		}
		for (int j = 0; j < 4; j++)
			if (c + j < cols) dwpe[t * ld + c + j] = sum.v[j];
	}
}
KERNEL(position_grad)
