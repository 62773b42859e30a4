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

// searched is every place where cuBLAS and NCCL were looked for, and what is there. For a
// library that is missing Python is asked, too: training never runs Python, so the line
// gives the variable to set.
func searched(noBLAS, noNCCL bool) (rows [][2]string) {
	say := func(format string, args ...any) {
		rows = append(rows, [2]string{"looked", fmt.Sprintf(format, args...)})
	}
	for _, variable := range []string{"ZEROTH_CUBLAS_PATH", "ZEROTH_NCCL_PATH"} {
		if path := os.Getenv(variable); path != "" {
			say("at %s=%s, and nowhere else for that library", variable, path)
		}
	}
	say("by name, as the loader does: in LD_LIBRARY_PATH and in its cache (ldconfig -p)")
	for _, p := range driver.Places() {
		say("in %v: %s", p, names(p.Libraries()))
	}
	if !noBLAS && !noNCCL {
		return rows
	}
	for _, python := range []string{"python3", "python"} {
		packages, err := askPython(python)
		if err != nil {
			say("where %s has its packages: %v", python, err)
			continue
		}
		for _, dir := range packages {
			p := driver.Packages(dir)
			cublas, nccl := p.Libraries()
			say("in %v, by %s: %s", p, python, names(cublas, nccl))
			if noBLAS && len(cublas) > 0 {
				say("cuBLAS is there, but training does not ask Python: export ZEROTH_CUBLAS_PATH=%s", cublas[0])
				noBLAS = false
			}
			if noNCCL && len(nccl) > 0 {
				say("NCCL is there, but training does not ask Python: export ZEROTH_NCCL_PATH=%s", nccl[0])
				noNCCL = false
			}
		}
	}
	return rows
}

// names are the libraries of a place, in words.
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

// askPython is the absolute folders in which a Python looks for packages.
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
