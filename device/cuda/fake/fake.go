//go:build cuda

// Package fake runs tests of GPU code without a GPU: on a libcuda, a cuBLAS, an NVML and an NCCL
// that tests compile (lib/), with kernels emulated on the CPU.
//
// The libraries are loaded when a program starts, so a test's TestMain calls Main, which builds
// them and runs the test's binary again with their paths in its environment. Without g++, tests
// that Need them are skipped. With the tag gpu, tests run on the installed driver, except those
// that are about the fakes (Only).
//
// For another processor, CXX names its compiler, and ZEROTH_EMULATOR the program that runs its
// binaries, for example qemu-aarch64-static.
package fake

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// inside marks the environment of a binary run by Main.
const inside = "ZEROTH_FAKE_CUDA"

// Main runs a test binary on the fakes and returns its exit code.
func Main(m *testing.M) int {
	if onHardware || os.Getenv(inside) != "" {
		return m.Run()
	}
	env, err := Environment()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake:", err)
		return 1
	}
	cmd := Self(os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, append(os.Environ(), env...)
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake:", err)
		return 1
	}
	return 0
}

// Need skips a test if the fakes are not available.
func Need(t testing.TB) {
	t.Helper()
	if os.Getenv(inside) == "none" {
		t.Skip("no g++ here: the fake CUDA libraries cannot be compiled")
	}
	readSources()
}

// readSources makes go test rerun tests when the fakes change: go test tracks the files that a
// test process reads, but Main reads the fakes in a process that runs no tests.
var readSources = sync.OnceFunc(func() {
	if !onHardware {
		_, _ = sources() // cannot fail: Main has already read them in the parent process
	}
})

// Only skips a test of the fakes when tests run on hardware.
func Only(t testing.TB) {
	t.Helper()
	if onHardware {
		t.Skip("this tests the fakes, but with the tag gpu tests run on the real driver")
	}
	Need(t)
}

// OnHardware reports whether tests run on the installed driver instead of the fakes.
func OnHardware() bool { return onHardware }

// Self returns a command that runs this binary.
func Self(args ...string) *exec.Cmd {
	if by := os.Getenv("ZEROTH_EMULATOR"); by != "" {
		return exec.Command(by, append([]string{os.Args[0]}, args...)...)
	}
	return exec.Command(os.Args[0], args...)
}

// compiler returns the C++ compiler.
func compiler() string { return cmp.Or(os.Getenv("CXX"), "g++") }

// Environment returns the environment variables that let a program find the fakes. The fakes are
// compiled once for each state of their sources.
func Environment() ([]string, error) {
	if _, err := exec.LookPath(compiler()); err != nil {
		return []string{inside + "=none"}, nil
	}
	dir, err := libraries()
	if err != nil {
		return nil, err
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	return []string{inside + "=1", "ZEROTH_CUDA_PATH=" + at("libcuda.so.1"), "ZEROTH_CUBLAS_PATH=" + at("libcublas.so.12"), "ZEROTH_NCCL_PATH=" + at("libnccl.so.2"), "ZEROTH_EMU_KERNELS=" + at("libemukernels.so"),
		"FAKECUDA_KERNELS=" + filepath.Join(here(), "..", "kernel", "kernels.txt"),
		"LD_LIBRARY_PATH=" + dir + ":" + os.Getenv("LD_LIBRARY_PATH")}, nil // the only way to select an NVML
}

// OldNCCL returns the path of a fake NCCL of version "2.26", which registers buffers but no
// windows, or "2.18", which registers nothing. It is stored next to the one of Environment.
func OldNCCL(version string) string {
	return filepath.Join(filepath.Dir(os.Getenv("ZEROTH_NCCL_PATH")), "libnccl-"+version+".so")
}

// Again runs one test of this binary in a separate process with additional environment variables,
// and fails t with its output.
func Again(t *testing.T, test string, env ...string) {
	t.Helper()
	out, err := Output(test, env...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(env, " "), err, out)
	}
}

// Output returns the output of a test of this binary in a separate process.
func Output(test string, env ...string) (string, error) {
	cmd := Self("-test.run=^"+test+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// here returns the folder of this file.
func here() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

// libraries returns a folder with the compiled libraries, named by their sources' hash.
func libraries() (string, error) {
	sum, err := sources()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "zeroth", "fake-cuda-"+sum)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	tmp, err := os.MkdirTemp("", "fake-cuda-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := compile(tmp); err != nil {
		return "", err
	}
	return dir, install(tmp, dir)
}

// sources returns a hash of everything that the libraries are built from.
func sources() (string, error) {
	h, root := sha256.New(), filepath.Join(here(), "..")
	fmt.Fprintln(h, compiler())
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch filepath.Ext(path) {
		case ".cc", ".h", ".cu", ".cuh":
		default:
			if path != filepath.Join(here(), "fake.go") { // fake.go contains the compiler's flags
				return nil
			}
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s", path, len(text), text)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)[:8]), err
}

func compile(dir string) error {
	lib := filepath.Join(here(), "lib")
	shared := []string{"-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-shared"}
	for _, c := range [][]string{
		{"libcuda.so.1", "fakecuda.cc", "-lpthread"},
		{"libnccl.so.2", "fakenccl.cc", "-lpthread"},
		{"libnccl-2.26.so", "fakenccl.cc", "-lpthread", "-DVERSION=22605"},
		{"libnccl-2.18.so", "fakenccl.cc", "-lpthread", "-DVERSION=21805"},
		{"libcublas.so.12", "fakecublas.cc"},
		{"libcublasLt.so.12", "fakecublas.cc", "-DLT"},
		{"libnvidia-ml.so.1", "fakenvml.cc"},
	} {
		args := append(shared, "-Wl,-soname,"+c[0], filepath.Join(lib, c[1]), "-o", filepath.Join(dir, c[0]))
		if err := run(compiler(), append(append(args, c[2:]...), "-ldl")...); err != nil {
			return err
		}
	}
	return run(filepath.Join(here(), "..", "..", "..", "scripts", "build-emu"), dir)
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// install moves the folder to the cache atomically; the first process to do so wins.
func install(tmp, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return err
	}
	next, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(next)
	if err := os.CopyFS(next, os.DirFS(tmp)); err != nil {
		return err
	}
	if err := os.Rename(next, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
