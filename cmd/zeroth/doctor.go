package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"zeroth/device/cpu"
)

// doctor is "zeroth doctor": what this machine has that training would use.
func (a *app) doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Show what this machine has that training would use",
		Long: `Show the processors and the instruction sets kernels are chosen for, and, in a
binary built with -tags cuda, the NVIDIA GPUs the driver knows.`,
		Args: cobra.NoArgs,
		RunE: a.do(func(*cobra.Command, []string) error {
			fmt.Fprintf(a.out, "machine  %s/%s, %d processors, of which this process may use %d\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.GOMAXPROCS(0))
			f32, bf16 := cpu.Instructions()
			fmt.Fprintf(a.out, "kernels  fp32 and fp16 products by %s, bf16 by %s\n", f32, bf16)
			for _, line := range gpus() {
				fmt.Fprintf(a.out, "gpus     %s\n", line)
			}
			return nil
		}),
	}
}
