//go:build campaign && linux

package campaign

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zeroth/tests/nightly"
)

var (
	seed     = flag.Uint64("seed", 1, "of all cases")
	deadline = flag.Duration("deadline", 10*time.Second, "of a process; more on a machine that others use")
	keep     = flag.Bool("keep", false, "leave the folders of cases that failed")
	given    = flag.String("program", "", "the `file` to try, instead of one built from this tree")
	tell     = flag.Bool("tell", false, "say what every case ran, with -v")
	record   = flag.String("record", "", "write the counts into the tables of a `page`")

	mutations = flag.Int("mutations", 1200, "damaged checkpoints")
	kills     = flag.Int("kills", 320, "times a run is to be killed; some are done before")
	signals   = flag.Int("signals", 320, "times a run is asked to stop")
	stops     = flag.Int("stops", 600, "times a command that does not train is asked to stop")
	faults    = flag.Int("faults", 1600, "system calls that fail, are late, or are the last")
	scene     = flag.String("scene", "", "try only faults of commands with this in their names")
	fuzzing   = flag.Duration("fuzzing", 0, "of each fuzz target")
)

// scratch is the folder of all trials, on a disk and outside the repository; program is the
// binary under test.
var scratch, program string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(campaign(m))
}

func campaign(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "campaign-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if !*keep {
		defer os.RemoveAll(scratch)
	}
	if program = *given; program == "" {
		program = filepath.Join(scratch, "zeroth")
		build := exec.Command("go", "build", "-o", program, "../../cmd/zeroth")
		build.Stdout, build.Stderr = os.Stdout, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "the program does not build:", err)
			return 1
		}
	}
	code := m.Run()
	if err := report(os.Stdout, *record); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// trial is one case, with its own folder, random numbers and list of commands.
type trial struct {
	*testing.T
	rng    *rand.Rand
	number int
	dir    string // current folder of its processes; nothing next to it may change
	kind   string // kind of case, for the table
	ran    []string
	counts *tally
	files  int // file descriptors that its processes may have; 0: as this one
}

// count returns how many of n cases run: a twentieth by default.
func count(n int) int { return nightly.Of(max(1, n/20), n) }

// trials runs n cases as subtests named by their numbers, in parallel. Cases cycle through the
// kinds, and one returns how a case ended.
func trials(t *testing.T, n int, kinds []string, one func(x *trial) (outcome string)) {
	h := fnv.New64a()
	h.Write([]byte(t.Name()))
	stream, counts := h.Sum64(), tallyOf(t.Name())
	for i := range n {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			x := &trial{T: t, rng: rand.New(rand.NewPCG(*seed, stream+uint64(i))), number: i, kind: kinds[i%len(kinds)], counts: counts}
			x.open()
			defer x.close()
			counts.ended(x.kind, one(x))
		})
	}
}

// open creates the trial's folder, next to a folder that must not be touched.
func (x *trial) open() {
	base := filepath.Join(scratch, fmt.Sprintf("%s-%d", strings.ReplaceAll(x.Name(), "/", "-"), x.number))
	x.dir = filepath.Join(base, "here")
	if err := os.MkdirAll(x.dir, 0o777); err != nil {
		x.Fatal(err)
	}
	plant(x, x.outside())
}

// outside returns the folder next to the trial's that nothing may change.
func (x *trial) outside() string { return filepath.Join(filepath.Dir(x.dir), "outside") }

// close removes the trial's files. If the trial failed, it prints the commands and how to repeat
// it.
func (x *trial) close() {
	base := filepath.Dir(x.dir)
	if !x.Failed() {
		if *tell {
			x.Logf("%s\n%s", x.kind, strings.Join(x.ran, "\n"))
		}
		os.RemoveAll(base)
		return
	}
	x.counts.count(x.kind, failure, 1)
	where := ""
	if *keep {
		where = "\nleft in " + x.dir
	} else {
		os.RemoveAll(base)
	}
	name, _, _ := strings.Cut(x.Name(), "/")
	x.Logf("%s\n%s\nagain: go test -tags campaign ./tests/campaign -run '%s/^%d$' -seed %d -keep%s", x.kind, strings.Join(x.ran, "\n"), name, x.number, *seed, where)
}

// pick returns a random element.
func pick[T any](rng *rand.Rand, of []T) T { return of[rng.IntN(len(of))] }
