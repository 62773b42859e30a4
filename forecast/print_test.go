package forecast

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
)

func printed(t *testing.T, c *spec.Job, l Limits) (*Settings, string) {
	t.Helper()
	f, err := Search(c, l)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := f.Print(&b); err != nil {
		t.Fatal(err)
	}
	return f, b.String()
}

// TestPrinted checks that printed rows have at most 120 columns and use the titles of plan, not
// names of categories. If nothing fits, the advice says how much host memory would help, and with
// that something fits.
func TestPrinted(t *testing.T) {
	nightly.Parallel(t)
	c, err := spec.Draft("", []string{"model={family: llama, layers: 6, heads: 64, kv_heads: 8, width: 8192, ffn: 28672, vocab: 32064, context: 4096}", "parallel.ranks=2", "device=cpu"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := OpenHardware("h100")
	if err != nil {
		t.Fatal(err)
	}
	l := Limits{Ranks: 2, Memory: 24e9, GPU: true, Hardware: h}
	none, text := printed(t, c, l)
	check(t, text)
	_, advice, ok := strings.Cut(text, "--host-memory ")
	var gib int64
	if _, err := fmt.Sscanf(advice, "%dGiB for a machine of 2", &gib); len(none.Fits) > 0 || !ok || err != nil {
		t.Fatalf("%d fit, %v:\n%s", len(none.Fits), err, text)
	}
	l.Host = gib << 30 / 2
	some, text := printed(t, c, l)
	check(t, text)
	if len(some.Fits) == 0 || strings.Contains(text, "--host-memory") {
		t.Errorf("with %d GiB:\n%s", gib, text)
	}
	l.Memory = 1 << 20
	if _, text := printed(t, c, l); strings.Contains(text, "--host-memory") {
		t.Errorf("nothing helps, and there is host memory:\n%s", text)
	}
}

// TestPlanString checks that values of plans print as sizes.
func TestPlanString(t *testing.T) {
	p := &Plan{Model: "GPT-2 1.0M", Allocated: device.Bytes{device.Params: 3 << 20}, Disk: 5 << 30, AtRest: Amounts{Params: 2 << 20, Logits: 1536}}
	if got, want := fmt.Sprint(p), "GPT-2 1.0M: 3.0 MiB per rank, 0 B of host memory, 5.0 GiB of disk; at rest: parameters 2.0 MiB, logits 1.5 KiB"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func check(t *testing.T, text string) {
	t.Helper()
	_, table, _ := strings.Cut(text, "\n\n")
	for line := range strings.Lines(table) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 120 && !strings.HasPrefix(line, "The fastest: ") { // a command to type
			t.Errorf("a row of %d columns: %s", utf8.RuneCountInString(line), line)
		}
	}
	for _, u := range []device.Use{device.Params, device.UnitGrads, device.States} {
		if strings.Contains(text, u.String()+" takes") || strings.Contains(text, "is "+u.String()+",") {
			t.Errorf("names the category %v:\n%s", u, text)
		}
	}
}

// TestPlanOfExperts checks what a plan says about an exchange of experts.
func TestPlanOfExperts(t *testing.T) {
	const exchange, hosts = "experts exchange 2 times the rows of an all-to-all", "experts are exchanged between hosts"
	sets := []string{"model.family=llama", "model.experts={count: 8, per_token: 2, width: 64}", "parallel.ranks=8", "train.batch=32"}
	for n, want := range map[int][2]bool{2: {}, 4: {true, true}} {
		c := spectest.Fitted(t, append(sets, fmt.Sprint("parallel.expert=", n))...)
		p, err := NewPlan(c, Machine{Spread: setup.Spread{Processes: 4, Hosts: 4}})
		if err != nil {
			t.Fatal(err)
		}
		ranks := p.header()[1][1]
		if got := [2]bool{strings.Contains(ranks, exchange), strings.Contains(ranks, hosts)}; got != want {
			t.Errorf("expert %d: %s", n, ranks)
		}
	}
}
