//go:build cuda

package driver

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// Library is a pair of libraries and its version, for example "12.4.5".
type Library struct{ Path, Lt, Version string }

// OpenBLAS finds cuBLAS and cuBLASLt, once. It uses only $ZEROTH_CUBLAS_PATH, a libcublas.so.*, if
// that is set; otherwise it tries, newest version first, the loader's search path, then SearchPaths. The
// error gives the reason for each file that could not be used.
func OpenBLAS() (Library, error) { return blas() }

var blas = sync.OnceValues(func() (Library, error) {
	var errs []error
	for path := range candidates("ZEROTH_CUBLAS_PATH", blasFiles()) {
		l := Library{Path: path, Lt: filepath.Join(filepath.Dir(path), strings.Replace(filepath.Base(path), "cublas", "cublasLt", 1))}
		if !strings.Contains(path, "/") {
			l.Lt = strings.Replace(path, "cublas", "cublasLt", 1)
		}
		err := open(l)
		if err == nil {
			var v [3]C.int
			for i := range v {
				C.z_blas_version(C.int(i), &v[i])
			}
			l.Version = fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2])
			return l, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	return Library{}, fmt.Errorf("cuBLAS, version 11, 12 or 13, was not found; install it (python3 -m pip install nvidia-cublas-cu12), or set ZEROTH_CUBLAS_PATH to a libcublas.so.12. Looked at:\n%w", errors.Join(errs...))
})

func open(l Library) error {
	var why [512]byte
	lt, path := append([]byte(l.Lt), 0), append([]byte(l.Path), 0)
	if C.z_blas_open((*C.char)(unsafe.Pointer(&lt[0])), (*C.char)(unsafe.Pointer(&path[0])), (*C.char)(unsafe.Pointer(&why[0])), C.int(len(why))) != 0 {
		said, _, _ := strings.Cut(string(why[:]), "\x00")
		return errors.New(said)
	}
	return nil
}

// blasFiles returns cuBLAS's file names, newest version first. A version newer than the driver's
// CUDA would open and then fail to start, so without a driver all are returned.
func blasFiles() (files []string) {
	newest := Version() / 1000
	for _, v := range []int{13, 12, 11} {
		if newest <= 0 || v <= newest {
			files = append(files, fmt.Sprintf("libcublas.so.%d", v))
		}
	}
	return files
}

var ncclFiles = []string{"libnccl.so.2"}

// candidates yields the paths to try for a library, in order: only the one named by the environment
// variable, if set; otherwise the file names, for the loader, and then the matching files in
// SearchPaths, which are searched only if needed.
func candidates(variable string, files []string) iter.Seq[string] {
	if p := os.Getenv(variable); p != "" {
		return slices.Values([]string{p})
	}
	return func(yield func(string) bool) {
		for _, file := range files {
			if !yield(file) {
				return
			}
		}
		for _, p := range SearchPaths() {
			for _, path := range p.matching(files) {
				if !yield(path) {
					return
				}
			}
		}
	}
}

// SearchPath describes where libraries are searched for: folders below a root, all of them patterns.
type SearchPath struct {
	Root  string
	Below []string
}

// String formats the place as a shell pattern.
func (p SearchPath) String() string { return p.Root + "/{" + strings.Join(p.Below, ",") + "}" }

// matching returns the files with the given names in the place, from newer toolkits and Python
// versions first.
func (p SearchPath) matching(files []string) (found []string) {
	for _, dir := range p.Below {
		for _, file := range files {
			some, _ := filepath.Glob(filepath.Join(p.Root, dir, file)) // the patterns are well formed
			slices.Reverse(some)
			found = append(found, some...)
		}
	}
	return found
}

// Libraries returns the files of cuBLAS and NCCL in the place.
func (p SearchPath) Libraries() (cublas, nccl []string) {
	return p.matching(blasFiles()), p.matching(ncclFiles)
}

// Packages returns the place of libraries in a folder of Python packages: NVIDIA's own and
// PyTorch's.
func Packages(dir string) SearchPath { return SearchPath{dir, []string{"nvidia/*/lib", "torch/lib"}} }

// SearchPaths returns where libraries are searched for, in order: CUDA toolkits, and Python
// environments. No program is run to find them.
func SearchPaths() (all []SearchPath) {
	for _, toolkit := range []string{os.Getenv("CUDA_HOME"), os.Getenv("CUDA_PATH"), "/usr/local/cuda*", "/opt/cuda*"} {
		all = append(all, SearchPath{toolkit, []string{"lib64", "targets/*/lib"}})
	}
	all = append(all, SearchPath{"/opt/nvidia/hpc_sdk/*/*", []string{"math_libs/lib64", "comm_libs/nccl/lib"}})
	for _, dir := range filepath.SplitList(os.Getenv("PYTHONPATH")) {
		all = append(all, Packages(dir))
	}
	for _, prefix := range prefixes() { // conda has libraries in the first two
		all = append(all, SearchPath{prefix, []string{"lib", "targets/*/lib", "lib*/python3*/*-packages/nvidia/*/lib", "lib*/python3*/*-packages/torch/lib"}})
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(p SearchPath) bool { // the current folder must not affect what is loaded
		again := seen[p.String()]
		seen[p.String()] = true
		return again || !filepath.IsAbs(p.Root)
	})
}

// prefixes returns where Python may be installed: the active environment, those of PATH, and the
// usual places of virtual environments, conda and pip.
func prefixes() (all []string) {
	all = append(all, os.Getenv("VIRTUAL_ENV"), os.Getenv("CONDA_PREFIX"))
	for _, bin := range filepath.SplitList(os.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(bin, "python3")); err == nil {
			all = append(all, filepath.Dir(filepath.Clean(bin)))
		}
	}
	if home, err := os.UserHomeDir(); err == nil {
		for _, p := range []string{".local", ".venv", "venv", "*/.venv", "*/venv", "*conda3", "*conda3/envs/*", "*forge*", "*forge*/envs/*", ".conda/envs/*", ".pyenv/versions/*", ".virtualenvs/*"} {
			all = append(all, filepath.Join(home, p))
		}
	}
	return append(all, "/usr/local", "/usr", "/opt/*", "/opt/*/envs/*", "/opt/*/.venv", "/opt/*/venv", "/opt/*/*/.venv", "/venv", "/.venv", "/workspace/.venv", "/workspace/venv", "/workspace/*/.venv")
}
