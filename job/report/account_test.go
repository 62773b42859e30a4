package report

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job/spec/spectest"
)

// accounted opens the ranks of a small job and returns them with a function that takes their
// account.
func accounted(t *testing.T) ([]*setup.Rank, func() *Account) {
	t.Helper()
	c := spectest.Fitted(t, "device=cpu", "zero.offload.optimizer=host")
	j := setup.Local(c)
	ranks, err := setup.Open(j)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { setup.CloseAll(ranks) })
	return ranks, func() *Account { return NewAccount(j, 3, ranks) }
}

// TestSurplusIsReported checks that memory beyond the plan is reported by rank and category, on the
// device and in host memory.
func TestSurplusIsReported(t *testing.T) {
	ranks, account := accounted(t)
	if more := account().surplus(); len(more) > 0 {
		t.Errorf("as planned, but %v", more)
	}
	before := account().Held()
	leak, err := ranks[1].Device.Alloc(device.F32, 1000, device.Staging)
	if err != nil {
		t.Fatal(err)
	}
	leaked, err := ranks[2].Host.Alloc(device.F32, 10, device.Grads)
	if err != nil {
		t.Fatal(err)
	}
	a := account()
	want := "rank 1 holds +4000 bytes of offload_staging, rank 2 holds +40 bytes of grads in host memory"
	if got := strings.Join(a.surplus(), ", "); got != want || !strings.Contains(a.String(), "planned, but "+want) {
		t.Errorf("got %s\nof %s", got, a)
	}
	if got := a.Held() - before; got != 4040 {
		t.Errorf("the ranks hold %d bytes more, want 4040", got)
	}
	ranks[1].Device.Free(leak)
	ranks[2].Host.Free(leaked)
}

// TestLeakIsUnattributed checks that memory allocated outside the ranks' allocators counts as
// unattributed.
func TestLeakIsUnattributed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system does not tell what is resident")
	}
	_, account := accounted(t)
	before := account()
	const leak = 200 << 20 // enough to raise the peak, whatever other tests have allocated
	kept := make([]byte, leak)
	for i := 0; i < len(kept); i += 4096 {
		kept[i] = 1
	}
	after := account()
	runtime.KeepAlive(kept)
	if got := after.Unattributed() - before.Unattributed(); got < leak/2 || got > 6*leak { // the race detector needs shadow memory
		t.Errorf("%d MiB leaked, %d MiB more unattributed", leak>>20, got>>20)
	}
	if after.Process.Go-before.Process.Go < leak/2 || after.Process.Files <= 0 {
		t.Errorf("process %+v, before %+v", after.Process, before.Process)
	}
}

// TestAccountLine checks the numbers of an account in metrics.jsonl.
func TestAccountLine(t *testing.T) {
	_, account := accounted(t)
	a := account()
	a.Process = Process{Peak: a.Held() + 7, Go: 5, Files: 3}
	var memory struct {
		Planned struct{ Device, Host map[string]int64 }
		Ranks   []struct {
			Rank     int
			Peak     map[string]int64
			HostPeak map[string]int64 `json:"host_peak"`
		}
		Process map[string]int64
	}
	read := func() string {
		raw, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &memory); err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	if raw := read(); len(memory.Ranks) != 0 || memory.Process["unattributed"] != 7 || memory.Process["peak_rss"] != a.Process.Peak || len(raw) > 600 {
		t.Errorf("%d bytes: %s", len(raw), raw)
	}
	for use := range device.Uses {
		if got := memory.Planned.Device[use.String()]; got != a.Ranks[0].Device.Peak[use] {
			t.Errorf("%v: %d bytes, held are %d", use, got, a.Ranks[0].Device.Peak[use])
		}
	}
	a.Ranks[2].Device.Peak[device.Grads]++
	if raw := read(); len(memory.Ranks) != 1 || memory.Ranks[0].Rank != 2 || memory.Ranks[0].Peak["grads"] != a.Ranks[2].Device.Peak[device.Grads] {
		t.Errorf("of a rank that holds more: %s", raw)
	}
	if a.Process = (Process{}); strings.Contains(a.String(), "unattributed") {
		t.Errorf("of a system that does not tell: %s", a)
	}
}

// TestUnattributedIsNeverNegative checks that no number is negative if allocated memory was never
// written and is therefore not resident.
func TestUnattributedIsNeverNegative(t *testing.T) {
	a := &Account{Step: 3, Ranks: []Held{{}}, Process: Process{Peak: 1 << 20, Go: 1 << 19}}
	a.Ranks[0].Device.Peak[0], a.Ranks[0].Planned.Device[0] = 1<<30, 1<<30
	raw, err := json.Marshal(a)
	if got := a.String() + string(raw); err != nil || strings.Contains(got, "-") || !strings.Contains(got, ", 0 B unattributed") || !strings.Contains(got, `"unattributed":0,`) {
		t.Errorf("%v\n%s", err, got)
	}
}
