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
	"zeroth/device/cpu"
	"zeroth/job/machine"
	"zeroth/job/show"
	"zeroth/job/state"
)

// doctor is "zeroth doctor": what this machine has that training would use.
func (a *app) doctor() *cobra.Command {
	var cluster bool
	var in joining
	cmd := &cobra.Command{
		Use:        "doctor [FOLDER]",
		Short:      "Show what this machine has that training would use",
		SuggestFor: []string{"info", "env"},
		Long: `Show what a run on this machine could use, and who bounds it: processors and
their instruction sets, those that kernels are chosen for, memory, the disk that
run folders are on (FOLDER, or runs in this one), the limits of the process, and,
in a binary built with -tags cuda, the NVIDIA driver, its GPUs, cuBLAS and NCCL,
with what is missing and every place that was searched. If a library is missing
doctor also asks python3 where its packages are; training never runs Python.

With --cluster: which process of which world this is, by which launcher, and what
would carry data to the others, and why. Where there are others it joins them as
training would, measures the connections one after the other (the first two
processes of each host, and the first host with each other: 64 at most), and
process 0 tells what they reach and what would reach more. It fails if not all
come, and says who has not.`,
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
			f32, bf16 := cpu.Instructions()
			row := a.row
			row("version", "%s", strings.TrimPrefix(state.Version(), "zeroth "))
			row("machine", "%s/%s, %s", runtime.GOOS, runtime.GOARCH, cores(machine.Processors()))
			row("has", "%s", strings.Join(instructionSets(), " "))
			row("kernels", "fp32 and fp16 products by %s, bf16 by %s", f32, bf16)
			row("memory", "%s", memory(machine.Machine()))
			row("disk", "%s", disk(folder))
			row("limits", "%s", bounds(machine.Ulimits()))
			for _, r := range machine.GPUReport() {
				row(r[0], "%s", r[1])
			}
			return nil
		}),
		ValidArgsFunction: onlyFolders(1),
	}
	cmd.Flags().BoolVar(&cluster, "cluster", false, "show what is between this process and others, and measure it")
	in.options(cmd.Flags())
	return cmd
}

// row prints what there is of something.
func (a *app) row(word, format string, args ...any) {
	_ = show.Print(a.out, fmt.Sprintf("%-8s %s\n", word, fmt.Sprintf(format, args...))) // the output keeps its errors
}

// cores says how many processors a run would use, and who bounds that.
func cores(c machine.Cores) string {
	words := fmt.Sprintf("%d processors", runtime.NumCPU())
	if c.Bound > 0 {
		words = fmt.Sprintf("%d processors this process may run on", c.Bound)
	}
	if c.Quota > 0 {
		words += fmt.Sprintf(", for %.3g processors' time by %s", c.Quota, c.Limit)
	}
	return words + fmt.Sprintf("; kernels use %d", runtime.GOMAXPROCS(0))
}

func memory(m machine.Memory) string {
	if m.Total == 0 {
		return "this system does not tell"
	}
	return fmt.Sprintf("%s free of %s with swap, by %s", show.ByteSize(m.Free), show.ByteSize(m.Total), m.Limit)
}

// disk is what is free where a folder is, or would be made.
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

func bounds(b machine.Bounds) string {
	if b == (machine.Bounds{}) {
		return "this system does not tell"
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

// instructionSets are those of the processor that kernels know, here or elsewhere.
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
		return []string{"no instruction set that kernels know"}
	}
	return names
}
