package job

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"zeroth/collective"
	"zeroth/fsdp"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/shard"
	"zeroth/zero"
)

// stream sends the parameters of ranks in other processes to rank 0 in rounds. In each round
// every rank sends one piece or nothing; the stream ends after a round without pieces. A round
// has at most mostRound bytes, which bounds the memory.
type stream struct {
	rank *setup.Rank
	want map[string]shard.Param                 // by name: what is brought
	take func(p zero.Part, src []float32) error // takes the pieces, on rank 0
}

// collect sends the parameters selected by which to the process of rank 0, which calls take
// for each part, decoded, from any goroutine.
func collect(c *spec.Job, ranks []*setup.Rank, which func(name string) bool, take func(zero.Part, []float32) error) error {
	var codes hf.Decoder
	put := func(p zero.Part, src []float32) error {
		if p.Param.Codes != nil {
			return codes.Put(p, src, take)
		}
		return take(p, src)
	}
	want := map[string]shard.Param{}
	for _, p := range spec.Parameters(c) {
		if which(p.Name) {
			want[p.Name] = fsdp.Stored(p)
		}
	}
	return setup.Together(ranks, func(r *setup.Rank) error {
		s := &stream{r, want, put}
		if ranks[0].Rank > 0 {
			return s.send()
		}
		err := s.each(put)
		if err != nil || len(ranks) == c.Parallel.Ranks {
			return err
		}
		return s.receive()
	})
}

// each calls take for the rank's own parts, as ranges of whole parameters.
func (s *stream) each(take func(zero.Part, []float32) error) error {
	return s.rank.Trainer.Each(zero.Master, zero.Staging(), func(p zero.Part, src []float32) error {
		param, ok := s.want[p.Param.Name]
		if !ok {
			return nil
		}
		for tensor, own := range p.Param.Runs(p.At) {
			if err := take(zero.Part{Param: param, Kind: p.Kind, At: tensor}, src[own.Lo-p.At.Lo:own.Hi-p.At.Lo]); err != nil {
				return err
			}
		}
		return nil
	})
}

// mostRound is the size of a round over all ranks, in bytes.
const mostRound = 64 << 20

// round exchanges a piece and reports whether any rank had one.
func (s *stream) round(mine []byte) (more bool, err error) {
	all, err := collective.GatherBytes(s.rank.Groups.World, s.rank.Queues[setup.Comm], mine)
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

// send sends the rank's parameters.
func (s *stream) send() error {
	most := mostRound / s.rank.Groups.World.Size()
	var pieces []byte
	give := func() error {
		_, err := s.round(pieces)
		pieces = pieces[:0]
		return err
	}
	err := s.each(func(p zero.Part, src []float32) error {
		for lo := 0; lo < len(src); {
			n := min(len(src)-lo, max(1, (most-len(pieces))/4))
			pieces = appendPiece(pieces, p.Param.Name, p.At.Lo+lo, src[lo:lo+n])
			if lo += n; len(pieces) < most {
				continue
			}
			if err := give(); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && len(pieces) > 0 {
		err = give()
	}
	if err != nil {
		return err
	}
	return s.receive()
}

// receive takes part in rounds until no rank has a piece left.
func (s *stream) receive() error {
	for {
		if more, err := s.round(nil); err != nil || !more {
			return err
		}
	}
}

// appendPiece appends elements from lo on of a parameter: length of the name uint16, name, lo
// uint64, count uint32, float32 elements; little-endian.
func appendPiece(b []byte, name string, lo int, src []float32) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(len(name)))
	b = append(b, name...)
	b = binary.LittleEndian.AppendUint64(b, uint64(lo))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(src)))
	return append(b, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(src))), 4*len(src))...)
}

// unpack reads another rank's pieces.
func (s *stream) unpack(b []byte) error {
	for len(b) > 0 {
		rest, err := s.unpackOne(b)
		if err != nil {
			return err
		}
		b = rest
	}
	return nil
}

// unpackOne reads the first piece and returns the rest.
func (s *stream) unpackOne(b []byte) (rest []byte, err error) {
	if len(b) < 2 {
		return nil, errors.New("a piece of a parameter without a name")
	}
	const numbers = 8 + 4
	n := int(binary.LittleEndian.Uint16(b))
	if b = b[2:]; len(b) < n+numbers {
		return nil, errors.New("a truncated piece of a parameter")
	}
	name, lo, count := string(b[:n]), binary.LittleEndian.Uint64(b[n:]), int(binary.LittleEndian.Uint32(b[n+8:]))
	if b = b[n+numbers:]; len(b) < 4*count {
		return nil, errors.New("a truncated piece of a parameter")
	}
	src := make([]float32, count)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(src))), 4*count), b)
	p := s.want[name]
	if size := uint64(p.Numel()); p.Name == "" || lo > size || uint64(count) > size-lo {
		return nil, fmt.Errorf("a piece of %.100q, elements %d to %d, which this job does not have", name, lo, lo+uint64(count))
	}
	return b[4*count:], s.take(zero.Part{Param: p, Kind: zero.Master, At: shard.Range{Lo: int(lo), Hi: int(lo) + count}}, src)
}
