//go:build faults && linux

package cluster

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"testing"
	"time"

	"zeroth/checkpoint"
)

// TestDamage flips one bit of the data that one host sends another and corrects TCP's checksum,
// as a faulty switch or network card may. Every process must end with exit code 75 and name both
// ranks, and the resumed run must have the bits of an undisturbed one.
//
//	RUN=TestDamage tests/cluster/faults.sh -seeds 100
func TestDamage(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("hosts are network namespaces, which only root can make here")
	}
	d := &damages{exe: program(t), whole: map[int][]byte{}}
	todo := make(chan uint64)
	var all sync.WaitGroup
	for w := range *worlds {
		n := newNetwork(t, fmt.Sprintf("z%dd%d", os.Getpid()%100000, w), 3)
		all.Go(func() {
			runtime.LockOSThread() // the processes it starts end with it
			for seed := range todo {
				took, err := d.run(t, n, seed)
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
				} else {
					t.Logf("seed %d: named by all after %v", seed, took.Round(time.Millisecond))
				}
			}
		})
	}
	for seed := *first; seed < *first+*seeds; seed++ {
		todo <- seed
	}
	close(todo)
	all.Wait()
}

// damages runs trials of one program and caches the parameters of undisturbed runs.
type damages struct {
	exe   string
	mu    sync.Mutex
	whole map[int][]byte // parameters by number of steps
}

// run runs one trial. It returns the time from the flip until the last process ended.
func (d *damages) run(t *testing.T, n *network, seed uint64) (took time.Duration, err error) {
	rng := rand.New(rand.NewPCG(seed, 23))
	from := rng.IntN(3)
	to := (from + 1 + rng.IntN(2)) % 3
	dir := folder(t)
	defer os.RemoveAll(dir)
	n.set(seed, 0, 0)
	all, err := d.start(n, dir, "--set", fmt.Sprint("zero.stage=", rng.IntN(4)), "--set", fmt.Sprint("checkpoint.async=", rng.IntN(2) == 0))
	if err != nil {
		return 0, err
	}
	defer end(all)
	ckpt := filepath.Join(dir, "run", "ckpt")
	for stop := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		if _, err := checkpoint.Resolve(ckpt, "latest"); err == nil {
			break
		}
		if time.Now().After(stop) {
			return 0, fmt.Errorf("it does not begin to train:\n%s", &all[0].said)
		}
	}
	time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
	flipped := n.flipOne(from, to, rng)
	want := regexp.MustCompile(fmt.Sprintf(`rank %d \("[^"]+"\): a frame from rank %d to rank %d arrived damaged(| during operation \d+ \(.+\)): its CRC32C .*; rank %d is on "`, to, from, to, from))
	for p, proc := range all {
		if !proc.wait(patience) || proc.code() != 75 || !want.MatchString(proc.said.String()) {
			err = fmt.Errorf("process %d: exit code %d, want 75, and %v\n%s", p, proc.code(), want, &proc.said)
		}
	}
	if err != nil {
		return 0, err
	}
	begin := <-flipped
	for _, proc := range all {
		took = max(took, proc.ended.Sub(begin))
	}
	return took, d.resume(t, dir)
}

// start starts a process with one rank on each host.
func (d *damages) start(n *network, dir string, args ...string) (all []*process, err error) {
	for i, host := range n.hosts {
		env := []string{"ZEROTH_TOKEN=a token of sixteen bytes and more", "ZEROTH_WORLD_SIZE=3", fmt.Sprint("ZEROTH_RANK=", i), "ZEROTH_ADDR=" + address(0) + ":29400", "GOMAXPROCS=1"}
		p, err := run(dir, env, "ip", append([]string{"netns", "exec", host, d.exe, "train", "job.yaml", "--out", "run", "--set", "parallel.transport=tcp", "--set", "parallel.ranks=3", "--set", fmt.Sprint("parallel.dead_after=", *silent)}, args...)...)
		if err != nil {
			end(all)
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// resume resumes from the last checkpoint for five steps in one process and compares the
// parameters.
func (d *damages) resume(t *testing.T, dir string) error {
	list, err := checkpoint.List(filepath.Join(dir, "run", "ckpt"))
	newest, ok := checkpoint.Newest(list)
	if err != nil || !ok {
		return fmt.Errorf("no checkpoint: %v", err)
	}
	steps := int(newest.Step) + 5
	got, err := d.train(dir, steps, "--resume", "latest")
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.whole[steps] == nil {
		if d.whole[steps], err = d.train(folder(t), steps, "--set", "checkpoint.every=0"); err != nil {
			return err
		}
	}
	if !bytes.Equal(got, d.whole[steps]) {
		return fmt.Errorf("other parameters after %d steps than of a run that nobody disturbed", steps)
	}
	return nil
}

// train returns the parameters after a run of one process.
func (d *damages) train(dir string, steps int, args ...string) ([]byte, error) {
	p, err := run(dir, nil, d.exe, append([]string{"train", "job.yaml", "--out", "run", "--set", "parallel.transport=auto", "--set", "parallel.ranks=3", "--set", fmt.Sprint("train.steps=", steps)}, args...)...)
	if err != nil {
		return nil, err
	}
	if !p.wait(patience) || p.code() != 0 {
		return nil, fmt.Errorf("%q: exit code %d\n%s", args, p.code(), &p.said)
	}
	return os.ReadFile(filepath.Join(dir, "run", "model", "model.safetensors"))
}

// flipOne flips one bit of the next data that one host sends another. The channel receives the
// time of the flip.
func (h *hub) flipOne(from, to int, rng *rand.Rand) <-chan time.Time {
	flipped := make(chan time.Time, 1)
	next := map[uint32]uint32{} // by ports: the next sequence number
	h.mu.Lock()
	defer h.mu.Unlock()
	h.change = func(at, dest int, b []byte) {
		s, ok := segmentOf(b)
		if at != from || dest != to || !ok || s.control() || len(flipped) > 0 {
			return
		}
		if seq, seen := next[s.ports()]; seen && seq == s.seq() { // otherwise it may be a retransmission
			s.flip(rng.IntN(len(s.payload())), rng.IntN(8))
			flipped <- time.Now()
		}
		next[s.ports()] = s.seq() + uint32(len(s.payload()))
	}
	return flipped
}

// segment is a TCP segment with a payload, from the TCP header on.
type segment []byte

// segmentOf returns the TCP segment of an Ethernet frame with IPv4.
func segmentOf(b []byte) (segment, bool) {
	const ethernet = 14
	if len(b) < ethernet+20 || binary.BigEndian.Uint16(b[12:]) != 0x0800 || b[ethernet+9] != 6 {
		return nil, false
	}
	ip := b[ethernet:]
	header, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	if total > len(ip) || header+20 > total {
		return nil, false
	}
	s := segment(ip[header:total])
	return s, int(s[12]>>4)*4 < len(s)
}

func (s segment) ports() uint32   { return binary.BigEndian.Uint32(s) }
func (s segment) seq() uint32     { return binary.BigEndian.Uint32(s[4:]) }
func (s segment) payload() []byte { return s[int(s[12]>>4)*4:] }

// control reports whether the segment belongs to a control connection to process 0.
func (s segment) control() bool {
	const port = 29400
	return s.ports()>>16 == port || s.ports()&0xffff == port
}

// flip flips a bit of the payload and updates the checksum (RFC 1624).
func (s segment) flip(i, bit int) {
	at := len(s) - len(s.payload()) + i
	word := func() uint32 {
		if at|1 == len(s) { // the last byte of an odd length
			return uint32(s[at]) << 8
		}
		return uint32(binary.BigEndian.Uint16(s[at&^1:]))
	}
	was := word()
	s[at] ^= 1 << bit
	sum := uint32(^binary.BigEndian.Uint16(s[16:])) + (^was & 0xffff) + word()
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(s[16:], ^uint16(sum))
}
