//go:build cuda

package machine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"zeroth/device/cuda/driver"
)

// searchedPlaces lists every place where cuBLAS and NCCL were searched, and what was found.
// For a missing library it also asks Python: training never runs Python, so the line gives the
// variable to set.
func searchedPlaces(noBLAS, noNCCL bool) (rows [][2]string) {
	add := func(format string, args ...any) {
		rows = append(rows, [2]string{"looked", fmt.Sprintf(format, args...)})
	}
	for _, variable := range []string{"ZEROTH_CUBLAS_PATH", "ZEROTH_NCCL_PATH"} {
		if path := os.Getenv(variable); path != "" {
			add("only at %s=%s for that library", variable, path)
		}
	}
	add("by name, as the loader does: in LD_LIBRARY_PATH and in its cache (ldconfig -p)")
	for _, p := range driver.SearchPaths() {
		add("in %v: %s", p, names(p.Libraries()))
	}
	if !noBLAS && !noNCCL {
		return rows
	}
	for _, python := range []string{"python3", "python"} {
		packages, err := askPython(python)
		if err != nil {
			add("package folders of %s: %v", python, err)
			continue
		}
		for _, dir := range packages {
			p := driver.Packages(dir)
			cublas, nccl := p.Libraries()
			add("in %v, according to %s: %s", p, python, names(cublas, nccl))
			if noBLAS && len(cublas) > 0 {
				add("cuBLAS exists, but training does not ask Python for it: export ZEROTH_CUBLAS_PATH=%s", cublas[0])
				noBLAS = false
			}
			if noNCCL && len(nccl) > 0 {
				add("NCCL exists, but training does not ask Python for it: export ZEROTH_NCCL_PATH=%s", nccl[0])
				noNCCL = false
			}
		}
	}
	return rows
}

// names returns the names of libraries, or "nothing".
func names(cublas, nccl []string) string {
	var all []string
	for _, path := range append(cublas, nccl...) {
		all = append(all, filepath.Base(path))
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

// askPython returns the absolute folders in which a Python interpreter searches for packages.
func askPython(python string) (folders []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", `import sys; print("\n".join(sys.path))`)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	for line := range strings.Lines(string(out)) {
		if dir := strings.TrimSpace(line); filepath.IsAbs(dir) {
			folders = append(folders, dir)
		}
	}
	return folders, err
}
