package job

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"zeroth/collective"
	"zeroth/job/config"
	"zeroth/job/setup"
	"zeroth/shard"
	"zeroth/zero"
)

// stream brings the parameters of ranks in other processes to rank 0, round by
// round: in each every rank has a piece of its own, or nothing any more; it ends
// with the round in which nobody has. So memory is bounded, by mostRound.
type stream struct {
	rank *setup.Rank
	want map[string]shard.Param                 // by name: what is brought
	take func(p zero.Part, src []float32) error // takes the pieces, on rank 0
}

// collect brings the parameters whose names which takes to the process of rank 0, where
// take has their parts, from any goroutine. Other processes give theirs away.
func collect(c *config.Config, ranks []*setup.Rank, which func(name string) bool, take func(zero.Part, []float32) error) error {
	want := map[string]shard.Param{}
	for _, p := range config.Parameters(c) {
		if which(p.Name) {
			want[p.Name] = p
		}
	}
	return setup.Together(ranks, func(r *setup.Rank) error {
		s := &stream{r, want, take}
		if ranks[0].Rank > 0 {
			return s.send()
		}
		err := s.each(take)
		if err != nil || len(ranks) == c.Parallel.Ranks {
			return err
		}
		return s.receive()
	})
}

// each goes through the rank's own parts.
func (s *stream) each(take func(zero.Part, []float32) error) error {
	return s.rank.Trainer.Each(zero.Master, zero.Staging(), func(p zero.Part, src []float32) error {
		if _, ok := s.want[p.Param.Name]; !ok {
			return nil
		}
		return take(p, src)
	})
}

// mostRound is the bytes of a round, of all ranks.
const mostRound = 64 << 20

// round tells all ranks this one's piece and whether anybody had one.
func (s *stream) round(mine []byte) (more bool, err error) {
	all, err := collective.GatherBytes(s.rank.Groups.World, s.rank.Queues[1], mine)
	if err != nil {
		return false, err
	}
	for _, b := range all {
		if len(b) == 0 {
			continue
		}
		more = true
		if s.rank.Rank == 0 {
			if err := s.unpack(b); err != nil {
				return false, err
			}
		}
	}
	return more, nil
}

// send gives the rank's parameters away.
func (s *stream) send() error {
	most := max(1, mostRound/4/s.rank.Groups.World.Size())
	err := s.each(func(p zero.Part, src []float32) error {
		for lo := 0; lo < len(src); lo += most {
			if _, err := s.round(piece(p.Param.Name, p.At.Lo+lo, src[lo:min(lo+most, len(src))])); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.receive()
}

// receive takes part until all is there.
func (s *stream) receive() error {
	for {
		if more, err := s.round(nil); err != nil || !more {
			return err
		}
	}
}

// piece is elements from lo on of a parameter: length of the name uint16, name, lo
// uint64, float32 elements; little-endian.
func piece(name string, lo int, src []float32) []byte {
	b := binary.LittleEndian.AppendUint16(nil, uint16(len(name)))
	b = append(b, name...)
	b = binary.LittleEndian.AppendUint64(b, uint64(lo))
	return append(b, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(src))), 4*len(src))...)
}

// unpack takes another rank's piece.
func (s *stream) unpack(b []byte) error {
	if len(b) < 2 {
		return errors.New("a piece of a parameter without a name")
	}
	n := int(binary.LittleEndian.Uint16(b))
	if b = b[2:]; len(b) < n+8 || (len(b)-n-8)%4 != 0 {
		return errors.New("a piece of a parameter that is cut short")
	}
	src := make([]float32, (len(b)-n-8)/4)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(src))), 4*len(src)), b[n+8:])
	p, lo := s.want[string(b[:n])], binary.LittleEndian.Uint64(b[n:])
	if size := uint64(p.Numel()); p.Name == "" || lo > size || uint64(len(src)) > size-lo {
		return fmt.Errorf("a piece of %.100q, elements %d to %d, which this job has not", b[:n], lo, lo+uint64(len(src)))
	}
	return s.take(zero.Part{Param: p, Kind: zero.Master, At: shard.Range{Lo: int(lo), Hi: int(lo) + len(src)}}, src)
}
