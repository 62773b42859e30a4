package kernel

import (
	"bufio"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// assembled contains ptxas's results for a kernel on one GPU: registers per thread, and bytes of
// stack and of spills.
type assembled struct{ registers, stack, spilled int }

// readAssembled reads kernels.txt: each kernel's static shared memory, and its results on sm_80 and
// on sm_90. scripts/build-ptx --check compares the file with the PTX.
func readAssembled(t *testing.T) (shared map[string]int, on map[string][2]assembled) {
	t.Helper()
	f, err := os.Open("kernels.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	shared, on = map[string]int{}, map[string][2]assembled{}
	for s := bufio.NewScanner(f); s.Scan(); {
		words := strings.Fields(s.Text())
		if len(words) != 8 {
			continue // the header
		}
		var n [7]int
		numbers := true
		for i, w := range words[1:] {
			n[i], err = strconv.Atoi(strings.Replace(w, "-", "0", 1)) // not made for the GPU
			numbers = numbers && err == nil
		}
		if numbers {
			shared[words[0]], on[words[0]] = n[0], [2]assembled{{n[1], n[2], n[3]}, {n[4], n[5], n[6]}}
		}
	}
	return shared, on
}

// spills lists the kernels that may have a stack, with the maximum bytes of stack and of spills
// on either GPU. rope's stack is for its parameter, which sincos reduces; attention's is an array
// in the kernels for ordinary cores that is indexed by a variable.
var spills = map[string]assembled{
	"rope":             {stack: 48},
	"attention_dkv_64": {stack: 64}, "attention_dkv_128": {stack: 32},
}

// TestRegistersDoNotSpill checks that no other kernel has a stack. Additions to the list need a
// review.
func TestRegistersDoNotSpill(t *testing.T) {
	_, on := readAssembled(t)
	for _, k := range Table() {
		both, ok := on[k.Name]
		if !ok {
			t.Errorf("kernels.txt does not have %s: run scripts/build-ptx", k.Name)
		}
		most := spills[k.Name]
		for i, a := range both {
			if a.stack > most.stack || a.spilled > most.spilled {
				t.Errorf("%s on %s has %d bytes of stack and spills %d; it may have %d and %d", k.Name, targets[i].name, a.stack, a.spilled, most.stack, most.spilled)
			}
		}
		if most.stack > 0 && both[0].stack < most.stack && both[1].stack < most.stack || most.spilled > 0 && both[0].spilled < most.spilled && both[1].spilled < most.spilled {
			t.Errorf("%s may have %d bytes of stack and spill %d, and has and spills less: %v", k.Name, most.stack, most.spilled, both)
		}
		delete(on, k.Name)
	}
	for name := range on {
		t.Errorf("kernels.txt has %s, the PTX does not", name)
	}
}

// targets contains GPUs by ptxas's names, with the registers and the bytes of shared memory of a
// multiprocessor. Each block needs an additional 1 KiB.
var targets = [2]struct {
	name              string
	registers, shared int
}{{"sm_80", 64 << 10, 164 << 10}, {"sm_90", 64 << 10, 228 << 10}}

// sharing returns how many blocks of a kernel fit on a multiprocessor at once, the minimum over
// both GPUs.
func sharing(k *Kernel, own int, dynamic uint32, both [2]assembled) int {
	least := 2048 / int(k.Threads)
	for i, a := range both {
		if a.registers == 0 {
			continue
		}
		warp := (32*a.registers + 255) / 256 * 256 // granularity of register allocation
		least = min(least, targets[i].registers/(warp*int(k.Threads)/32), targets[i].shared/(own+int(dynamic)+1<<10))
	}
	return least
}

// leastSharing returns the minimum occupancy of kernels that do more than one pass over memory.
// Attention's tiles are chosen for at least two blocks. Norm gradients hold a row in registers,
// so wider rows need more.
func leastSharing(k *Kernel) int {
	name, width, _ := strings.Cut(k.Name, "_")
	if last := strings.LastIndexByte(k.Name, '_'); last >= 0 {
		width = k.Name[last+1:]
	}
	switch {
	case k.Name == "norm_grad_rms_16":
		return 1
	case strings.HasPrefix(k.Name, "norm_grad_"):
		return map[string]int{"3": 2, "4": 2, "8": 1, "16": 2, "32": 2, "64": 1}[width]
	case slices.Contains(passes, k.Name):
		return 4
	case strings.HasPrefix(k.Name, "cross_entropy"), k.Name == "sum_peers": // their rows fit in the cache; it has few blocks
		return 2
	case k.Name == "rope", k.Name == "embed_grad": // angles in float64; 32 rows in flight
		return 3
	case k.Name == "wgmma_bf16_64", k.Name == "wgmma_f16_64": // of two groups of warps
		return 2
	case name == "wgmma":
		return 1
	case strings.HasPrefix(k.Name, "flash_dq_") && width == "96":
		return 3
	case name == "flash" && width == "256": // 8 warps, which hold one operand as a whole
		return 1
	case slices.Contains(ofExperts, k.Name): // a warp has a row
		return 4
	case name == "groups" || name == "flash" || name == "attention" && k.Name != "attention_delta":
		return 2
	}
	return 6 // 48 of 64 warps, which hide memory latency
}

// passes lists kernels whose threads load at least 16 bytes of each operand at a time, so that
// half as many threads keep memory busy.
var passes = []string{"adamw", "add_row", "attention_delta", "embed", "gate_grad", "row_norm"}

// ofExperts lists kernels of a mixture of experts besides products on tensor cores.
var ofExperts = []string{"balance", "balance_grad", "balance_total", "gate_rows", "gate_rows_grad", "gather_rows", "groups_grad", "groups_mul", "route", "route_grad", "sort_pairs", "sum_groups"}

func TestOccupancy(t *testing.T) {
	shared, on := readAssembled(t)
	most := Shared()
	for _, k := range Table() {
		if have, least := sharing(k, shared[k.Name], most[k], on[k.Name]), leastSharing(k); have < least || least == 0 {
			t.Errorf("%s: %d blocks share a multiprocessor, want %d: %v, %d bytes of shared memory", k.Name, have, least, on[k.Name], shared[k.Name]+int(most[k]))
		}
	}
}
