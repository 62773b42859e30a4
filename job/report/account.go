package report

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"

	"zeroth/device"
	"zeroth/internal/machine"
	"zeroth/internal/setup"
	"zeroth/internal/show"
)

// Account compares the memory that the ranks of this process hold with the plan, and with the
// memory of the process.
type Account struct {
	Step    int // step after which it was taken
	Ranks   []Held
	Process Process
	onGPU   bool // Held.Device is GPU memory, not the machine's
}

// Held is the memory that the allocators of one rank have handed out.
type Held struct {
	Rank         int
	Planned      setup.Footprint
	Device, Host device.Usage
	Disk         int64 // size of its file in bytes
}

// Process is the memory of this process as the operating system and Go's runtime count it, in
// bytes.
type Process struct {
	Peak  int64 // peak resident size; 0 if the system does not report it
	Files int64 // currently resident pages of mapped files: the program itself, and data
	Go    int64 // memory that Go's runtime currently has from the system: heap, stacks and the like
	GPU   int64 // memory on its GPUs as their driver counts it, including contexts, kernels and libraries; 0 if unknown
}

// NewAccount returns an account of the memory that the ranks hold now.
func NewAccount(j *setup.Job, step int, ranks []*setup.Rank) *Account {
	a := &Account{Step: step, Process: process()}
	for _, n := range machine.OnGPUs(setup.GPUs(j)) {
		a.Process.GPU += n
	}
	a.onGPU = j.On() == "cuda"
	for _, r := range ranks {
		h := Held{Rank: r.Rank, Planned: r.Planned, Device: r.Device.Usage(), Disk: r.Trainer.DiskBytes()}
		if r.Host != nil {
			h.Host = r.Host.Usage()
		}
		a.Ranks = append(a.Ranks, h)
	}
	return a
}

// process reads the memory of this process from the operating system and the runtime.
func process() Process {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	p := Process{Go: int64(m.Sys - m.HeapReleased)}
	p.Peak, p.Files = machine.Resident()
	return p
}

// Held returns the ranks' peak use of the machine's memory, in bytes.
func (a *Account) Held() (n int64) {
	for _, r := range a.Ranks {
		n += r.Host.Peak.Total()
		if !a.onGPU {
			n += r.Device.Peak.Total()
		}
	}
	return n
}

// heldOnGPUs returns the ranks' peak use of GPU memory, in bytes.
func (a *Account) heldOnGPUs() (n int64) {
	for _, r := range a.Ranks {
		if a.onGPU {
			n += r.Device.Peak.Total()
		}
	}
	return n
}

// Unattributed returns the resident memory beyond what ranks hold: Go's runtime, the program, its
// data, and leaks. It is 0 if ranks hold memory that has not been written yet.
func (a *Account) Unattributed() int64 { return max(0, a.Process.Peak-a.Held()) }

// surplus describes the difference from the plan for each rank and category that differs.
func (a *Account) surplus() (words []string) {
	for _, r := range a.Ranks {
		for use := range device.Uses {
			if d := r.Device.Peak[use] - r.Planned.Device[use]; d != 0 {
				words = append(words, fmt.Sprintf("rank %d holds %+d bytes of %v", r.Rank, d, use))
			}
			if d := r.Host.Peak[use] - r.Planned.Host[use]; d != 0 {
				words = append(words, fmt.Sprintf("rank %d holds %+d bytes of %v in host memory", r.Rank, d, use))
			}
		}
		if d := r.Disk - r.Planned.Disk; d != 0 {
			words = append(words, fmt.Sprintf("rank %d holds %+d bytes on disk", r.Rank, d))
		}
	}
	return words
}

// String describes the account for the end of a run.
func (a *Account) String() string {
	least, most := a.Ranks[0].Planned.Memory(), int64(0)
	for _, r := range a.Ranks {
		least, most = min(least, r.Planned.Memory()), max(most, r.Planned.Memory())
	}
	each := show.ByteSize(most)
	if least < most {
		each = show.ByteSize(least) + " to " + each
	}
	s := fmt.Sprintf("memory: %s per rank, exactly as planned", each)
	if more := a.surplus(); len(more) > 0 {
		s = fmt.Sprintf("memory: %s per rank planned, but %s", each, strings.Join(more, ", "))
	}
	if held := a.heldOnGPUs(); a.Process.GPU > 0 {
		s += fmt.Sprintf("; the driver reports %s in use on GPUs: %s by ranks, %s by contexts, kernels and libraries", show.ByteSize(a.Process.GPU), show.ByteSize(held), show.ByteSize(a.Process.GPU-held))
	}
	if a.Process.Peak == 0 {
		return s
	}
	return s + fmt.Sprintf("; the process peaked at %s: %s for its ranks, %s unattributed (Go's runtime %s, mapped files %s)",
		show.ByteSize(a.Process.Peak), show.ByteSize(a.Held()), show.ByteSize(a.Unattributed()), show.ByteSize(a.Process.Go), show.ByteSize(a.Process.Files))
}

// surplus reports whether the rank holds more or less than planned.
func (h Held) surplus() bool {
	return h.Device.Peak != h.Planned.Device || h.Host.Peak != h.Planned.Host || h.Disk != h.Planned.Disk
}

// MarshalJSON writes the memory object of metrics.jsonl: the plan of rank 0 and, for ranks that
// differ from their plan, the memory they hold.
func (a *Account) MarshalJSON() ([]byte, error) {
	type rank struct {
		Rank     int              `json:"rank"`
		Peak     map[string]int64 `json:"peak"`
		HostPeak map[string]int64 `json:"host_peak,omitempty"`
		Disk     int64            `json:"disk,omitempty"`
	}
	type plan struct {
		Device map[string]int64 `json:"device"`
		Host   map[string]int64 `json:"host,omitempty"`
		Disk   int64            `json:"disk,omitempty"`
	}
	type whole struct {
		Peak         int64 `json:"peak_rss"`
		Held         int64 `json:"held_by_ranks"`
		Unattributed int64 `json:"unattributed"`
		Go           int64 `json:"go_runtime"`
		Files        int64 `json:"mapped_files"`
		GPU          int64 `json:"gpu,omitempty"`
		GPUHeld      int64 `json:"gpu_held_by_ranks,omitempty"`
	}
	var ranks []rank
	first := a.Ranks[0].Planned
	for _, r := range a.Ranks {
		if r.Planned != first || r.surplus() {
			ranks = append(ranks, rank{r.Rank, byName(r.Device.Peak), byName(r.Host.Peak), r.Disk})
		}
	}
	type memory struct {
		Planned plan   `json:"planned"`
		Ranks   []rank `json:"ranks,omitempty"`
		Process *whole `json:"process,omitempty"`
	}
	m := memory{plan{byName(first.Device), byName(first.Host), first.Disk}, ranks, nil}
	if p := a.Process; p.Peak > 0 {
		m.Process = &whole{p.Peak, a.Held(), a.Unattributed(), p.Go, p.Files, p.GPU, a.heldOnGPUs()}
	}
	return json.Marshal(m)
}

// byName returns the categories that are not empty.
func byName(b device.Bytes) map[string]int64 {
	m := map[string]int64{}
	for use, n := range b {
		if n != 0 {
			m[device.Use(use).String()] = n
		}
	}
	return m
}
