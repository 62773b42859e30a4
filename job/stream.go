package job

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"zeroth/collective"
	"zeroth/job/build"
	"zeroth/zero"
)

// stream brings the parameters of ranks in other processes to rank 0, round by
// round: in each every rank has a piece of its own, or nothing any more; it ends
// with the round in which nobody has. So memory is bounded, by mostRound.
type stream struct {
	rank  *build.Rank
	write func(name string, lo int, src []float32) error // takes the pieces, on rank 0
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
			if err := s.take(b); err != nil {
				return false, err
			}
		}
	}
	return more, nil
}

// send gives the rank's parameters away.
func (s *stream) send() error {
	most := max(1, mostRound/4/s.rank.Groups.World.Size())
	err := s.rank.Trainer.Each(zero.Master, zero.Staging(), func(p zero.Part, src []float32) error {
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

func (s *stream) take(b []byte) error {
	if len(b) < 2 {
		return errors.New("a piece of a parameter without a name")
	}
	n := int(binary.LittleEndian.Uint16(b))
	if b = b[2:]; len(b) < n+8 || (len(b)-n-8)%4 != 0 {
		return errors.New("a piece of a parameter that is cut short")
	}
	src := make([]float32, (len(b)-n-8)/4)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(src))), 4*len(src)), b[n+8:])
	return s.write(string(b[:n]), int(binary.LittleEndian.Uint64(b[n:])), src)
}
