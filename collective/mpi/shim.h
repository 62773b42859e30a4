// The functions of a libmpi that is opened at run time, for Open MPI 4 and 5, the MPICH
// family and the standard ABI of MPI 5. A request is 8 bytes whichever it is, 0 where
// there is none: handles are pointers, but for MPICH's, ints in the low half.
#include <stdint.h>

typedef struct { int32_t index, bytes, cancelled; } z_done;

// z_open returns an empty string, or why the library cannot be used.
const char *z_open(const char *path);
const char *z_version(void);
// z_abi is whose handles and constants the library has.
const char *z_abi(void);
// z_init is MPI_Init_thread; *threads is whether several threads may call at once.
int z_init(int *threads, int *rank, int *size);
int z_finalize(void);
// z_message writes what an error code means, at most n bytes with the 0.
void z_message(int code, char *to, int n);
int z_isend(uintptr_t from, int n, int to, int tag, uint64_t *request);
int z_irecv(uintptr_t into, int n, int from, int tag, uint64_t *request);
int z_cancel(uint64_t *request);
// z_test tests the n requests, from number first on and around, up to one that is
// done, which it sets to 0. Its index is -1 where none is.
int z_test(uint64_t *requests, int n, int first, z_done *done);
void z_yield(void);
void z_sleep(int microseconds);
