//go:build cuda

package driver

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// Library is a pair of libraries, found, and its version: "12.4.5".
type Library struct{ Path, Lt, Version string }

// OpenBLAS finds cuBLAS and cuBLASLt, once. It looks at $ZEROTH_CUBLAS_PATH, a
// libcublas.so.*, and nowhere else if that is set; then by their names, versions
// 13, 12, 11; in CUDA toolkits; and in Python's packages. What was in the way of
// each is in the error.
func OpenBLAS() (Library, error) { return blas() }

var blas = sync.OnceValues(func() (Library, error) {
	var errs []error
	for _, path := range blasPaths() {
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

var blasVersions = []string{"13", "12", "11"}

// blasPaths are where cuBLAS may be, in the order they are tried.
func blasPaths() []string {
	var files []string
	for _, v := range blasVersions {
		files = append(files, "libcublas.so."+v)
	}
	return places("ZEROTH_CUBLAS_PATH", files)
}

// places are where a library may be: what the environment names, and nothing else if
// that is set; then its files by their names, in CUDA toolkits and in Python's packages.
func places(variable string, files []string) []string {
	if p := os.Getenv(variable); p != "" {
		return []string{p}
	}
	paths := slices.Clone(files)
	home, _ := os.UserHomeDir() // without one there is nothing below it
	for _, dir := range []string{
		os.Getenv("CUDA_HOME") + "/lib64", "/usr/local/cuda*/lib64",
		os.Getenv("VIRTUAL_ENV") + "/lib/python3*/site-packages/nvidia/*/lib", os.Getenv("CONDA_PREFIX") + "/lib/python3*/site-packages/nvidia/*/lib",
		home + "/.local/lib/python3*/site-packages/nvidia/*/lib", "/usr/local/lib/python3*/*-packages/nvidia/*/lib", "/usr/lib/python3*/*-packages/nvidia/*/lib",
		"/opt/*/lib/python3*/site-packages/nvidia/*/lib",
	} {
		for _, file := range files {
			found, _ := filepath.Glob(filepath.Join(dir, file)) // the patterns are well formed
			slices.Reverse(found)                               // newer toolkits and Pythons first
			paths = append(paths, found...)
		}
	}
	return paths
}
