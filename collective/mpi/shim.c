//go:build mpi && cgo

#define _GNU_SOURCE
#include "shim.h"
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef void *handle; // MPICH's ints go where Open MPI's pointers do: both are passed in a register

static handle world, bytes_of, errors_return;
static char version[8192], wrong[512];

static int (*get_version)(char *, int *);
static int (*init_thread)(int *, char ***, int, int *);
static int (*initialized)(int *);
static int (*finalize)(void);
static int (*comm_rank)(handle, int *);
static int (*comm_size)(handle, int *);
static int (*set_errhandler)(handle, handle);
static int (*error_string)(int, char *, int *);
static int (*isend)(const void *, int, handle, int, int, handle, void *);
static int (*irecv)(void *, int, handle, int, int, handle, void *);
static int (*cancel)(void *);
static int (*test)(void *, int *, void *);
static int (*test_cancelled)(const void *, int *);
static int (*get_count)(const void *, handle, int *);

enum { thread_multiple = 3, version_len = 8192, error_len = 1024 };

static const struct {
	const char *name;
	void *to;
} functions[] = {
	{"MPI_Get_library_version", &get_version}, {"MPI_Init_thread", &init_thread}, {"MPI_Initialized", &initialized},
	{"MPI_Finalize", &finalize}, {"MPI_Comm_rank", &comm_rank}, {"MPI_Comm_size", &comm_size},
	{"MPI_Comm_set_errhandler", &set_errhandler}, {"MPI_Error_string", &error_string}, {"MPI_Isend", &isend},
	{"MPI_Irecv", &irecv}, {"MPI_Cancel", &cancel}, {"MPI_Test", &test},
	{"MPI_Test_cancelled", &test_cancelled}, {"MPI_Get_count", &get_count},
};

// The handles of the family: Open MPI's are the addresses of its objects, MPICH's
// are numbers that its ABI fixes.
static int family(void *lib) {
	if (dlsym(lib, "ompi_mpi_comm_world")) {
		world = dlsym(lib, "ompi_mpi_comm_world");
		bytes_of = dlsym(lib, "ompi_mpi_byte");
		errors_return = dlsym(lib, "ompi_mpi_errors_return");
		return bytes_of && errors_return;
	}
	if (strstr(version, "MPICH") || strstr(version, "Intel") || strstr(version, "MVAPICH")) {
		world = (handle)(uintptr_t)0x44000000;
		bytes_of = (handle)(uintptr_t)0x4c00010d;
		errors_return = (handle)(uintptr_t)0x54000001;
		return 1;
	}
	return 0;
}

// The standard ABI of MPI 5 has handles of its own, which nothing here could be tried
// with. A library that has another says -1.
static int standard(void *lib) {
	int (*abi)(int *, int *) = 0, major = -1, minor = -1;
	void *f = dlsym(lib, "MPI_Abi_get_version");
	memcpy(&abi, &f, sizeof f);
	return abi && !abi(&major, &minor) && major >= 0;
}

const char *z_open(const char *path) {
	// Global, since Open MPI's components look for its symbols there.
	void *lib = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	if (!lib)
		return dlerror();
	if (standard(lib)) {
		snprintf(wrong, sizeof wrong, "%s has the standard ABI of MPI 5, which is not known here: want Open MPI's libmpi.so.40, or libmpi.so.12 of the MPICH family", path);
		return wrong;
	}
	for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *f = dlsym(lib, functions[i].name);
		if (!f) {
			snprintf(wrong, sizeof wrong, "%s has no %s", path, functions[i].name);
			return wrong;
		}
		memcpy(functions[i].to, &f, sizeof f);
	}
	int n = 0;
	if (get_version(version, &n) || !family(lib)) {
		snprintf(wrong, sizeof wrong, "%s is neither Open MPI nor of the MPICH family: %.100s", path, version);
		return wrong;
	}
	return "";
}

const char *z_version(void) { return version; }

int z_init(int *thread, int *rank, int *size) {
	int done = 0, code = initialized(&done);
	if (!code && !done)
		code = init_thread(0, 0, thread_multiple, thread);
	if (!code)
		code = set_errhandler(world, errors_return);
	if (!code)
		code = comm_rank(world, rank);
	if (!code)
		code = comm_size(world, size);
	return code;
}

int z_finalize(void) { return finalize(); }

void z_message(int code, char *to, int n) {
	char text[error_len] = "";
	int len = 0;
	if (error_string(code, text, &len))
		text[0] = 0;
	snprintf(to, n, "%s", text);
}

int z_isend(uintptr_t from, int n, int to, int tag, uint64_t *request) {
	*request = 0;
	return isend((const void *)from, n, bytes_of, to, tag, world, request);
}

int z_irecv(uintptr_t into, int n, int from, int tag, uint64_t *request) {
	*request = 0;
	return irecv((void *)into, n, bytes_of, from, tag, world, request);
}

int z_cancel(uint64_t *request) { return cancel(request); }

int z_test(uint64_t *requests, int n, int first, z_done *done) {
	int64_t status[8]; // 24 bytes in Open MPI, 20 in MPICH
	done->index = -1;
	for (int k = 0; k < n; k++) {
		int i = (first + k) % n, flag = 0, count = 0, stopped = 0;
		if (!requests[i])
			continue;
		int code = test(&requests[i], &flag, status);
		if (!code && flag)
			code = test_cancelled(status, &stopped);
		if (!code && flag && !stopped)
			code = get_count(status, bytes_of, &count);
		if (code || flag) {
			requests[i] = 0;
			done->index = i, done->bytes = count, done->cancelled = stopped;
			return code;
		}
	}
	return 0;
}

void z_yield(void) { sched_yield(); }

void z_sleep(int microseconds) {
	struct timespec t = {0, microseconds * 1000L};
	nanosleep(&t, 0);
}
