package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	syscpu "golang.org/x/sys/cpu"

	"zeroth/checkpoint/vfs"
	"zeroth/device/cpu/kernel"
	"zeroth/internal/machine"
	"zeroth/internal/show"
	"zeroth/job/state"
)

// doctor returns "zeroth doctor", which shows what training would use on this machine.
func (a *app) doctor() *cobra.Command {
	var cluster bool
	var in joining
	cmd := &cobra.Command{
		Use:        "doctor [FOLDER]",
		Short:      "Show what training would use on this machine",
		SuggestFor: []string{"info", "env"},
		Long: `Show what a run on this machine could use and what limits it: processors,
instruction sets and the kernels chosen for them, memory, the disk of run folders
(FOLDER, by default runs), process limits, and, if built with -tags cuda, the
NVIDIA driver, GPUs, cuBLAS and NCCL, with every place that was searched for
missing libraries. If a library is missing, doctor also asks python3 where its
packages are; training never runs Python.

With --cluster, show which process this is according to its launcher, and which
transport would carry data to the others. If there are others, join them, measure
the connections one after the other (at most 64), and recommend faster ones. If
some never join, doctor fails and names them.`,
		Example: "  zeroth doctor\n  zeroth doctor /data/runs\n  mpirun -n 4 zeroth doctor --cluster",
		Args:    arguments(0, 1),
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			if err := in.check(); err != nil {
				return err
			}
			if cluster {
				return a.cluster(cmd.Context(), &in)
			}
			folder := "runs"
			if len(args) > 0 {
				folder = args[0]
			}
			f32, bf16 := kernel.Instructions()
			row := a.row
			row("version", "%s", strings.TrimPrefix(state.Version(), "zeroth "))
			row("machine", "%s/%s, %s", runtime.GOOS, runtime.GOARCH, cores(machine.Processors()))
			row("vectors", "%s", strings.Join(instructionSets(), " "))
			row("kernels", "matrix products use %s in fp32 and fp16, %s in bf16", f32, bf16)
			row("memory", "%s", memory(machine.Machine()))
			row("disk", "%s", disk(folder))
			row("limits", "%s", limits(machine.Ulimits()))
			for _, r := range machine.GPUReport() {
				row(r[0], "%s", r[1])
			}
			return nil
		}),
		ValidArgsFunction: onlyFolders(1),
	}
	cmd.Flags().BoolVar(&cluster, "cluster", false, "show and measure the connections between processes")
	in.addFlags(cmd.Flags())
	return cmd
}

// row prints a line of the report.
func (a *app) row(word, format string, args ...any) {
	_ = show.Print(a.out, fmt.Sprintf("%-8s %s\n", word, fmt.Sprintf(format, args...))) // a.out remembers its first error
}

// cores describes how many processors a run would use, and what limits that.
func cores(c machine.Cores) string {
	words := fmt.Sprintf("%d processors", runtime.NumCPU())
	if c.Bound > 0 {
		words = fmt.Sprintf("%d processors available to this process", c.Bound)
	}
	if c.Quota > 0 {
		words += fmt.Sprintf(", limited to the time of %.3g by %s", c.Quota, c.Limit)
	}
	return words + fmt.Sprintf("; kernels use %d", runtime.GOMAXPROCS(0))
}

func memory(m machine.Memory) string {
	if m.Total == 0 {
		return "unknown on this system"
	}
	return fmt.Sprintf("%s free of %s with swap, limited by %s", show.ByteSize(m.Free), show.ByteSize(m.Total), m.Limit)
}

// disk returns the free space where a folder is, or would be created.
func disk(folder string) string {
	at := folder
	for {
		if info, err := os.Stat(at); err == nil && info.IsDir() {
			break
		}
		up := filepath.Dir(at)
		if up == at {
			break
		}
		at = up
	}
	free, err := vfs.OS{}.Space(at)
	if err != nil {
		return fmt.Sprintf("%s: %v", folder, err)
	}
	return fmt.Sprintf("%s free for %s", show.ByteSize(free), folder)
}

// limits describes the limits of this process.
func limits(b machine.Bounds) string {
	if b == (machine.Bounds{}) {
		return "unknown on this system"
	}
	size := func(n uint64) string {
		if n > 1<<62 {
			return "unlimited"
		}
		return show.ByteSize(int64(n))
	}
	files := fmt.Sprint(b.Files)
	if b.Files == machine.Unlimited {
		files = "unlimited"
	}
	return fmt.Sprintf("open files (ulimit -n) %s, address space (-v) %s, locked memory (-l) %s, file size (-f) %s", files, size(b.Address), size(b.Locked), size(b.File))
}

// instructionSets lists the processor's instruction sets that any kernel uses.
func instructionSets() (names []string) {
	x, arm := &syscpu.X86, &syscpu.ARM64
	for _, s := range []struct {
		name string
		has  bool
	}{
		{"sse4.2", x.HasSSE42}, {"avx", x.HasAVX}, {"avx2", x.HasAVX2}, {"fma", x.HasFMA}, {"bmi2", x.HasBMI2},
		{"avx512f", x.HasAVX512F}, {"avx512bw", x.HasAVX512BW}, {"avx512dq", x.HasAVX512DQ}, {"avx512vl", x.HasAVX512VL}, {"avx512_bf16", x.HasAVX512BF16},
		{"amx_tile", x.HasAMXTile}, {"amx_bf16", x.HasAMXBF16},
		{"asimd", arm.HasASIMD}, {"asimdhp", arm.HasASIMDHP}, {"sve", arm.HasSVE},
	} {
		if s.has {
			names = append(names, s.name)
		}
	}
	if len(names) == 0 {
		return []string{"none that kernels use"}
	}
	return names
}
