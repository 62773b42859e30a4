package collectivetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// RunLinks tests the pipeline links returned by open: the ends of the ranks of a mesh, in rank
// order, which the tests close, and a function that closes their transport afterwards. Ranks in
// another process, which runs the same tests, have no groups.
func RunLinks(t *testing.T, open func(m shard.Mesh) (ranks []collective.Ranks, end func())) {
	tests := []struct {
		name string
		f    func(*testing.T, func(stages int) *ring)
	}{
		{"Streams", testStreams},
		{"LinksStall", testLinksStall},
		{"LinksLost", testLinksLost},
		{"LinksDiverge", testLinksDiverge},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			defer noneLeft(t, goleak.IgnoreCurrent())
			test.f(t, func(stages int) *ring { return newRing(t, stages, open) })
		})
	}
}

// stage is a rank of a pipeline, with a queue for each of its links.
type stage struct {
	collective.Ranks
	rank, size int
	q          [collective.PipelineLinks]*cpu.Queue
	dev        *cpu.Device
}

// ring holds the stages of a pipeline that are in this process.
type ring struct {
	t      *testing.T
	stages []*stage
	end    func()
}

func newRing(t *testing.T, stages int, open func(shard.Mesh) ([]collective.Ranks, func())) *ring {
	ranks, end := open(shard.Mesh{Pipeline: stages})
	m := &ring{t: t, end: end}
	for i, r := range ranks {
		if r.World == nil {
			continue
		}
		s := &stage{Ranks: r, rank: i, size: stages, dev: cpu.NewHost(1)}
		for l := range s.q {
			s.q[l] = s.dev.NewQueue(fmt.Sprint("link ", l))
		}
		m.stages = append(m.stages, s)
	}
	return m
}

// must runs f on every stage concurrently and ends the ring. A stage that fails closes its groups
// and fails the test.
func (m *ring) must(f func(s *stage) error) {
	m.t.Helper()
	defer m.end()
	defer func() {
		for _, s := range m.stages {
			s.close(m.t)
		}
	}()
	errs := atOnce(m.t, len(m.stages), func(i int) error {
		err := f(m.stages[i])
		if err != nil {
			m.stages[i].Close()
		}
		return err
	})
	for i, err := range errs {
		if err != nil {
			m.t.Errorf("stage %d of %d: %v", m.stages[i].rank, m.stages[i].size, err)
		}
	}
}

func (s *stage) close(t *testing.T) {
	if err := s.Close(); err != nil {
		t.Errorf("close stage %d: %v", s.rank, err)
	}
	for _, q := range s.q {
		q.Close()
	}
	s.dev.Close()
}

// sends reports whether the stage sends on a link.
func sends(l collective.Link) bool { return l == collective.ToNext || l == collective.ToPrevious }

// peer returns the stage at the other end of a link.
func (s *stage) peer(l collective.Link) int {
	if l == collective.ToNext || l == collective.FromNext {
		return (s.rank + 1) % s.size
	}
	return (s.rank + s.size - 1) % s.size
}

// issue sends or receives on a link.
func (s *stage) issue(l collective.Link, b device.Buffer) { s.Links[l].Broadcast(s.q[l], b) }

// each runs f for every link concurrently.
func (s *stage) each(f func(l collective.Link) error) error {
	var errs [collective.PipelineLinks]error
	var all sync.WaitGroup
	for l := range collective.PipelineLinks {
		all.Go(func() {
			if err := f(l); err != nil {
				errs[l] = fmt.Errorf("link %d, with stage %d: %w", l, s.peer(l), err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs[:]...)
}

// meet performs operations on all links, which must succeed.
func (s *stage) meet(times int) error {
	return s.each(func(l collective.Link) error {
		for range times {
			s.issue(l, device.OfF32(make([]float32, 96)))
		}
		return s.q[l].Wait()
	})
}

// message returns message i of a link, of random type, length and contents, which both ends know.
func (s *stage) message(l collective.Link, i int) device.Buffer {
	from := s.rank
	if !sends(l) {
		from = s.peer(l)
	}
	rng := rand.New(rand.NewPCG(uint64(l/2), uint64(from)<<32|uint64(i)))
	n := append(parts, rng.IntN(5000))[rng.IntN(len(parts)+1)]
	if i == 7 && from == 0 {
		n = 300_007 // several chunks of a wire, and part of one
	}
	b := newGuarded(types[rng.IntN(len(types))], n).Buffer
	fill(b, rng, false)
	return b
}

// testStreams makes each stage send and receive on all of its links concurrently, issuing
// everything before waiting: bytes must arrive unchanged and in order.
func testStreams(t *testing.T, open func(int) *ring) {
	const messages = 30
	for stages := 2; stages <= 4; stages++ {
		open(stages).must(func(s *stage) error {
			var want [collective.PipelineLinks][messages]device.Buffer
			var got [collective.PipelineLinks][messages]guarded
			for i := range messages {
				for l := range collective.PipelineLinks {
					want[l][i] = s.message(l, i)
					got[l][i] = newGuarded(want[l][i].Type, want[l][i].N)
					if sends(l) {
						copy(got[l][i].Raw(), want[l][i].Raw())
					}
				}
			}
			for i := range messages {
				for l := range collective.PipelineLinks {
					s.issue(l, got[l][i].Buffer)
				}
			}
			return s.each(func(l collective.Link) error {
				if err := s.q[l].Wait(); err != nil {
					return err
				}
				for i, b := range got[l] {
					if err := errors.Join(difference(b.Buffer, want[l][i]), b.damage()); err != nil {
						return fmt.Errorf("message %d: %w", i, err)
					}
				}
				return nil
			})
		})
	}
}

// testLinksStall makes stage 2 of 3 arrive late at all of its links, with a deadline. The other two
// have sent to it and wait to receive at the same time; those links must fail and name it, while
// the links between the two work.
func testLinksStall(t *testing.T, open func(int) *ring) {
	nightly.Long(t)
	const limit, victim = time.Second, 2
	want := regexp.MustCompile(`^operation 3 \(broadcast of 96 fp32\): rank [01] waited 1s for rank 2$`)
	m := open(3)
	for _, s := range m.stages {
		for l := range s.Links {
			s.Links[l] = collective.Watchdog(s.Links[l], limit)
		}
	}
	m.must(func(s *stage) error {
		if err := s.meet(3); err != nil {
			return err
		}
		if s.rank == victim {
			time.Sleep(2 * limit)
		}
		return s.each(func(l collective.Link) error {
			s.issue(l, device.OfF32(make([]float32, 96)))
			err := s.q[l].Wait()
			if s.rank != victim && s.peer(l) != victim {
				return err
			}
			if s.rank == victim && err == nil { // over wires, it sends to a peer that has called and left
				s.issue(l, device.OfF32(make([]float32, 96)))
				err = s.q[l].Wait()
			}
			if !errors.As(err, new(collective.ErrLate)) || !want.MatchString(err.Error()) {
				return fmt.Errorf("error %v\nwant %v", err, want)
			}
			return nil
		})
	})
}

// testLinksLost closes the groups of a stage while the others send and receive, or wait for it. All
// ends of all links must fail and name it, also on stages without a link to it.
func testLinksLost(t *testing.T, open func(int) *ring) {
	const stages = 4
	rng := rand.New(rand.NewPCG(5, 1))
	for i := range 2 * stages {
		victim, silent, n, wait := i%stages, i < stages, rng.IntN(3000), time.Duration(rng.IntN(1000))*time.Microsecond
		open(stages).must(func(s *stage) error {
			if err := s.meet(1); err != nil {
				return err
			}
			if s.rank == victim {
				closed := time.AfterFunc(wait, func() { s.Ranks.Close() })
				defer closed.Stop()
			}
			return s.each(func(l collective.Link) error {
				b := newGuarded(device.F32, n).Buffer
				if s.rank == victim && silent {
					time.Sleep(wait)
				}
				var err error
				for err == nil {
					s.issue(l, b)
					err = s.q[l].Wait()
				}
				return errors.Join(lost(s.rank, victim, err), s.Ranks.Close())
			})
		})
	}
}

// testLinksDiverge makes stages 1 and 2 of 4 disagree on a message: both ends must get the error
// and, when they close, the stages that wait for them.
func testLinksDiverge(t *testing.T, open func(int) *ring) {
	tests := []struct {
		sent, received int
		micro          string // of the sender's label
		want           string
	}{
		{100, 96, "0", "operation 1: rank 1 calls broadcast of 100 fp32, rank 2 broadcast of 96 fp32"},
		{0, 1, "0", "operation 1: rank 1 calls broadcast of 0 fp32, rank 2 broadcast of 1 fp32"},
		{96, 96, "1", "operation 1: rank 1 calls broadcast of 96 fp32 (micro-batch 1: activations), rank 2 broadcast of 96 fp32 (micro-batch 0: activations)"},
	}
	for _, test := range tests {
		open(4).must(func(s *stage) error {
			if err := s.meet(1); err != nil {
				return err
			}
			l, n, micro := collective.FromPrevious, 96, "0"
			switch s.rank {
			case 1:
				l, n, micro = collective.ToNext, test.sent, test.micro
			case 2:
				n = test.received
			}
			s.q[l].Label("micro-batch " + micro + ": activations")
			s.issue(l, device.OfF32(make([]float32, n)))
			err := s.q[l].Wait()
			var diverged collective.ErrDiverged
			if !errors.As(err, &diverged) || string(diverged) != test.want {
				return fmt.Errorf("error %v\nwant %s", err, test.want)
			}
			return s.Close()
		})
	}
}
