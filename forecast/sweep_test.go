package forecast

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"zeroth/config"
	"zeroth/internal/input"
	"zeroth/job/jobtest"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
)

// extremes returns values of a key at and near its bounds, nil for text.
func extremes(k config.Key) []string {
	var lo, hi int
	switch n, _ := fmt.Sscanf(k.Value, "a whole number from %d to %d", &lo, &hi); {
	case n == 2:
		return []string{strconv.Itoa(lo), strconv.Itoa(lo + 1), strconv.Itoa(hi), strconv.Itoa(hi - 1), strconv.Itoa(hi/8*5 + 1)}
	case strings.HasPrefix(k.Value, "a whole number"), strings.Contains(k.Value, "any 64-bit"):
		return []string{"-1", "1", "0", "65536", "18446744073709551615"}
	case strings.HasPrefix(k.Value, "two numbers"):
		return []string{"[0, 0]", "[0.9999999999999999, 0.9999999999999999]"}
	case strings.Contains(k.Value, "unit"):
		return []string{"1ms", "1B", "1000000h", "1TiB", "9223372036854775807ns"}
	case strings.HasPrefix(k.Value, "a list of whole"):
		return []string{"[1]", "[10000, 10000]"}
	case strings.Contains(k.Value, "number"), strings.Contains(k.Value, "fraction"):
		return []string{"0", "5e-324", "1e-300", "0.5", "0.9999999999999999", "1", "1.7976931348623157e308"}
	case strings.HasPrefix(k.Value, "text, in"), strings.HasPrefix(k.Value, "a path"), strings.HasPrefix(k.Value, "a list"), strings.HasPrefix(k.Value, "a date"):
		return nil
	case k.Value == "true or false":
		return []string{"true", "false"}
	}
	return strings.Split(strings.Replace(k.Value, " or ", ", ", 1), ", ")
}

// TestExtremesOfKeys checks that a job with keys at their bounds, alone and several at once, is planned or refused
// shortly: no combination panics.
func TestExtremesOfKeys(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, jobtest.Least)
	type set struct{ key, value string }
	var all, mesh []set
	for _, name := range config.Keys() {
		k, _ := config.Explain(name)
		for _, v := range extremes(k) {
			all = append(all, set{name, v})
			if strings.HasPrefix(name, "parallel.") || strings.HasPrefix(name, "train.") || strings.HasPrefix(name, "model.") || strings.HasPrefix(name, "pipeline.") {
				mesh = append(mesh, set{name, v})
			}
		}
	}
	loaded := 0
	try := func(sets ...set) {
		var args []string
		for _, s := range sets {
			args = append(args, s.key+"="+s.value)
		}
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("%q: panic: %v", args, p)
			}
		}()
		c, err := spec.Load("job.yaml", args)
		if err == nil {
			loaded++
		}
		if err == nil && c.Model.Layers < 1000 { // others take minutes
			_, err = NewPlan(c, Machine{GPU: true, Memory: config.MostMemory})
		}
		if err != nil && (!input.IsInput(err) || len(err.Error()) > 20_000) {
			t.Errorf("%q: %d bytes: %.300v", args, len(err.Error()), err)
		}
	}
	for i, s := range all {
		if nightly.Every(3, i) || strings.HasPrefix(s.key, "parallel.") {
			try(s)
			try(s, set{"model.family", "llama"})
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range nightly.Of(150, 10_000) {
		from := [][]set{all, mesh}[r.IntN(2)]
		sets := make([]set, 2+r.IntN(4))
		for i := range sets {
			sets[i] = from[r.IntN(len(from))]
		}
		try(sets...)
	}
	t.Logf("%d planned", loaded)
}
