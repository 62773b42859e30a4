//go:build cuda

package driver

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestFindLibraries puts libraries into each kind of place, one at a time.
func TestFindLibraries(t *testing.T) {
	for place, set := range map[string][2]string{
		"toolkit/lib64":                                       {"CUDA_HOME", "toolkit"},
		"toolkit/targets/x86_64-linux/lib":                    {"CUDA_PATH", "toolkit"},
		"venv/lib/python3.12/site-packages/nvidia/cublas/lib": {"VIRTUAL_ENV", "venv"},
		"venv/lib/python3.12/site-packages/nvidia/cu13/lib":   {"VIRTUAL_ENV", "venv"},
		"venv/lib64/python3.9/site-packages/torch/lib":        {"VIRTUAL_ENV", "venv"},
		"conda/lib":                      {"CONDA_PREFIX", "conda"},
		"conda/targets/x86_64-linux/lib": {"CONDA_PREFIX", "conda"},
		"app/.venv/lib/python3.12/site-packages/nvidia/nccl/lib":             {"PATH", "app/.venv/bin"},
		"packages/nvidia/cublas/lib":                                         {"PYTHONPATH", "packages"},
		"home/.local/lib/python3.11/site-packages/nvidia/cublas/lib":         {"HOME", "home"},
		"home/work/.venv/lib/python3.12/site-packages/nvidia/cublas/lib":     {"HOME", "home"},
		"home/miniconda3/envs/a/lib/python3.12/site-packages/nvidia/x/lib":   {"HOME", "home"},
		"home/.pyenv/versions/3.12.1/lib/python3.12/site-packages/torch/lib": {"HOME", "home"},
	} {
		t.Run(place, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range []string{"CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "PYTHONPATH", "HOME", "ZEROTH_CUBLAS_PATH"} {
				t.Setenv(name, "")
			}
			t.Setenv(set[0], filepath.Join(dir, set[1]))
			want := filepath.Join(dir, place, "libcublas.so.12")
			touch(t, want)
			touch(t, filepath.Join(dir, "app/.venv/bin/python3"))
			if got := slices.Collect(candidates("ZEROTH_CUBLAS_PATH", blasFiles())); !slices.Contains(got, want) {
				t.Errorf("%s is not in %q", want, got)
			}
			t.Setenv("ZEROTH_CUBLAS_PATH", "/elsewhere")
			if got := slices.Collect(candidates("ZEROTH_CUBLAS_PATH", blasFiles())); !slices.Equal(got, []string{"/elsewhere"}) {
				t.Errorf("%q beside what the environment names", got)
			}
		})
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o777); err != nil {
		t.Fatal(err)
	}
}

// TestLibraryPathsAreAbsolute checks that nothing is loaded relative to the current folder.
func TestLibraryPathsAreAbsolute(t *testing.T) {
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "PYTHONPATH", "HOME"} {
		t.Setenv(name, ".")
	}
	for _, p := range SearchPaths() {
		if !filepath.IsAbs(p.Root) {
			t.Errorf("%v is looked into", p)
		}
	}
}
