// Runs kernels in a process of its own, for tests that need no CUDA: run FILE
// ADDRESS maps FILE, which the tester has mapped at the same address, and obeys
// what comes on standard input, numbers little-endian:
//
//	'L' grid[3] block shared n 0 (uint32 each) name\0 sizes[n] (uint32) parameters (bytes)   launches
//	'+' address length (uint64 each)   the memory is the kernels' to use
//	'-' address length                 it is not: under ASan touching it ends the process
//	'P' name\0                         asks for the sizes of parameters
//
// A launch is answered by a line: empty, or what went wrong; 'P' by the sizes.
#include "emu_api.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#ifdef EMU_ASAN
extern "C" void __asan_poison_memory_region(void const volatile *, size_t);
extern "C" void __asan_unpoison_memory_region(void const volatile *, size_t);
extern "C" __attribute__((visibility("default"))) const char *__asan_default_options() { return "detect_leaks=0:detect_stack_use_after_return=0"; }
#endif
#ifdef EMU_TSAN
extern "C" __attribute__((visibility("default"))) const char *__tsan_default_options() { return "halt_on_error=1"; }
#endif

static void die(const char *what) {
	perror(what);
	exit(2);
}

template <class T> static void take(T *to, size_t n = 1) {
	if (fread(to, sizeof(T), n, stdin) != n) exit(0);
}

static std::string take_name() {
	std::string s;
	for (char c; take(&c), c;) s += c;
	return s;
}

static void access(bool allowed) {
	uint64_t at[2];
	take(at, 2);
#ifdef EMU_ASAN
	(allowed ? __asan_unpoison_memory_region : __asan_poison_memory_region)((void *)at[0], at[1]);
#endif
}

static void launch() {
	uint32_t d[7];
	take(d, 7);
	std::string name = take_name();
	std::vector<uint32_t> size(d[5]);
	std::vector<std::vector<char>> all;
	std::vector<void *> params;
	if (d[5]) take(size.data(), d[5]);
	for (uint32_t n : size) {
		all.emplace_back(n);
		take(all.back().data(), n);
	}
	int want[64], n = emu_params(name.c_str(), want, 64);
	bool fits = n == (int)d[5];
	for (int i = 0; fits && i < n; i++) fits = want[i] == (int)size[i];
	for (auto &p : all) params.push_back(p.data());
	const char *wrong = fits ? emu_launch(name.c_str(), {d[0], d[1], d[2]}, {d[3], 1, 1}, d[4], params.data()) : "its parameters differ";
	printf("%s\n", wrong ? wrong : "");
}

static void sizes() {
	int size[64], n = emu_params(take_name().c_str(), size, 64);
	printf("%d", n);
	for (int i = 0; i < n; i++) printf(" %d", size[i]);
	printf("\n");
}

int main(int argc, char **argv) {
	if (argc != 3) return 2;
	int fd = open(argv[1], O_RDWR);
	struct stat st;
	if (fd < 0 || fstat(fd, &st)) die(argv[1]);
	void *want = (void *)strtoull(argv[2], 0, 0);
	if (mmap(want, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) != want) die("mmap");
	for (char c; take(&c), true; fflush(stdout)) switch (c) {
		case 'L': launch(); break;
		case '+': access(true); break;
		case '-': access(false); break;
		case 'P': sizes(); break;
		default: return 2;
		}
}
