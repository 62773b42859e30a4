//go:build mpi && cgo

#define _GNU_SOURCE
#include "shim.h"
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void *handle; // MPICH's ints go where pointers do: both are passed in a register

static handle world, bytes_of, errors_return;
static int thread_multiple;
static char version[8192], abi[64], wrong[512];

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

enum { error_len = 1024 };

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

static void numbers(uintptr_t w, uintptr_t b, uintptr_t e, int multiple) {
	world = (handle)w, bytes_of = (handle)b, errors_return = (handle)e;
	thread_multiple = multiple;
}

// standard is whether the library says that it has the ABI that MPI 5 fixes (chapter 20
// of the standard), major 0 where it has not. MPICH's and Intel's libraries of their old
// ABI have the function, too, and answer -1.
static int standard(void *lib, int *major, int *minor) {
	int (*ask)(int *, int *) = 0;
	void *f = dlsym(lib, "MPI_Abi_get_version");
	memcpy(&ask, &f, sizeof f);
	*major = *minor = -1;
	return ask && !ask(major, minor) && *major >= 0;
}

// family sets the handles and says whose they are, by what the library says of itself:
// those of MPI 5 and of MPICH's ABI are numbers, Open MPI's are addresses of its objects.
// It is 0 for a library of which that is not sure.
static int family(void *lib) {
	int major, minor;
	if (standard(lib, &major, &minor)) {
		numbers(0x101, 0x247, 0x143, 4096);
		snprintf(abi, sizeof abi, "the standard ABI %d.%d", major, minor);
		return major == 1;
	}
	if (dlsym(lib, "ompi_mpi_comm_world")) {
		numbers((uintptr_t)dlsym(lib, "ompi_mpi_comm_world"), (uintptr_t)dlsym(lib, "ompi_mpi_byte"), (uintptr_t)dlsym(lib, "ompi_mpi_errors_return"), 3);
		snprintf(abi, sizeof abi, "Open MPI's ABI");
		return bytes_of && errors_return;
	}
	if (strstr(version, "MPICH") || strstr(version, "Intel(R) MPI") || strstr(version, "MVAPICH")) {
		numbers(0x44000000, 0x4c00010d, 0x54000001, 3);
		snprintf(abi, sizeof abi, "MPICH's ABI");
		return 1;
	}
	snprintf(abi, sizeof abi, "an ABI of its own");
	return 0;
}

// missing is the first function that the library has not, 0 where it has all.
static const char *missing(void *lib) {
	for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *f = dlsym(lib, functions[i].name);
		if (!f)
			return functions[i].name;
		memcpy(functions[i].to, &f, sizeof f);
	}
	return 0;
}

static struct sigaction before; // Go's handler of SIGABRT

// aborted ends the process where the library calls abort, as UCX does when it copies
// from a process that was killed. To Go that is a crash of its own, with the stacks of
// all goroutines. SIGABRT from elsewhere is Go's.
static void aborted(int sig, siginfo_t *info, void *context) {
	static const char why[] = "zeroth: the MPI library aborted this process, usually because another process of the job was lost\n";
	if (info->si_pid != getpid()) {
		before.sa_sigaction(sig, info, context);
		return;
	}
	ssize_t n = write(2, why, sizeof why - 1); // whether anybody reads it or not
	(void)n;
	_exit(1);
}

// end_quietly has abort end the process by aborted. Go wants its handlers on a stack of
// their own, and those of others, too.
static void end_quietly(void) {
	struct sigaction to = {.sa_sigaction = aborted, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
	sigfillset(&to.sa_mask);
	sigaction(SIGABRT, &to, &before);
}

const char *z_open(const char *path) {
	// Global, since Open MPI's components look for its symbols there.
	void *lib = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	if (!lib)
		return dlerror();
	int n = 0;
	const char *name = missing(lib);
	wrong[0] = 0;
	if (name)
		snprintf(wrong, sizeof wrong, "%s has no %s", path, name);
	else if (get_version(version, &n))
		snprintf(wrong, sizeof wrong, "%s does not say what it is", path);
	else if (!family(lib))
		snprintf(wrong, sizeof wrong, "%s is \"%.*s\", with %s: want Open MPI 4 or 5, one of the MPICH family, or one with the standard ABI 1 of MPI 5", path,
			(int)strcspn(version, "\n"), version, abi);
	if (wrong[0]) {
		version[0] = 0;
		dlclose(lib); // its names are not to be found instead of another's
	} else
		end_quietly();
	return wrong;
}

const char *z_version(void) { return version; }

const char *z_abi(void) { return abi; }

int z_init(int *threads, int *rank, int *size) {
	int done = 0, granted = 0, code = initialized(&done);
	if (!code && !done)
		code = init_thread(0, 0, thread_multiple, &granted);
	if (!code)
		code = set_errhandler(world, errors_return);
	if (!code)
		code = comm_rank(world, rank);
	if (!code)
		code = comm_size(world, size);
	*threads = granted >= thread_multiple;
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
	int64_t status[8]; // 24 bytes in Open MPI, 20 in MPICH, 32 in the standard ABI
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
