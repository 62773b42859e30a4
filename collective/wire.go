package collective

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"zeroth/device"
)

// Wire is one rank's end of point-to-point connections to the other ranks of a
// group, whatever carries them. What a rank sends to another arrives in order.
// Everything is posted and returns at once; Poll tells what has come of it. One
// goroutine at a time posts and polls; Abort and Ended may be called by any.
type Wire interface {
	Rank() int
	Size() int
	// Name is what errors call rank r.
	Name(r int) int
	// Host is the number of the host of rank r: ranks of equal numbers reach each
	// other without a network.
	Host(r int) int
	// Note sends a few bytes, which are copied. A peer that does not poll may be
	// sent at most NotesAhead of them.
	Note(to int, n Note)
	// Send posts a frame for which rank to has posted memory of the same length:
	// how it knows is the group's business. b is read until Poll tells that it
	// was Sent.
	Send(to int, b []byte)
	// Recv posts memory for the next frame from a rank. It is written until Poll
	// tells that it was Received.
	Recv(from int, b []byte)
	// Done gives back the oldest memory of a peer's that Received has lent. That of an
	// operation which fails is given back by Poll.
	Done(from int)
	// Poll waits for the next event. Once the wire has ended it returns why, and
	// then nothing that was posted is read or written any more.
	Poll() (Event, error)
	// Abort ends the wire and tells every peer, to whom this rank then has Left.
	// It returns at once; only the first reason counts.
	Abort(why error)
	// Ended is the reason of the end, nil while the wire is open.
	Ended() error
}

// Lender is a Wire whose peers may read memory of this rank's where it is.
type Lender interface {
	Wire
	// NoteLending is Note, with b beside it if the peer can read b where it is: then it
	// is true, and b is read until Poll tells that it was Sent. Of what was lent to a
	// peer, it must have been Sent before more is.
	NoteLending(to int, n Note, b []byte) bool
	// Borrow is what the last note taken of a peer lends, until Done; nothing that was
	// posted for the peer is posted any more. It is nil where the peer has left since.
	Borrow(from int) []byte
}

// Note is a message of fixed length.
type Note [NoteLen]byte

const (
	// NoteLen is the bytes of a Note.
	NoteLen = 80
	// NotesAhead is how many notes a rank may have to take from each peer: the
	// call of an operation, a credit for each chunk in flight, and two of an
	// agreement on the next one.
	NotesAhead = 3 + window
)

// EventKind is what an Event tells.
type EventKind uint8

const (
	Noted    EventKind = iota // a note has come
	Sent                      // the oldest frame posted to the peer is out, or was used where it is
	Received                  // the oldest memory posted for the peer is filled, or its frame is lent
	Left                      // the peer has ended the wire, or is lost; nothing comes from it after this
)

// Event is what Poll tells of a peer.
type Event struct {
	Kind  EventKind
	Peer  int
	Note  Note   // of Noted
	Lends bool   // of Noted: the peer lends memory, for Borrow
	Lent  []byte // of Received: where the frame is, in memory of the peer's, until Done; nil: in the memory that was posted
	Why   error  // of Left
}

const (
	noteCall   = 1 // of an operation
	noteCredit = 2 // the sender has memory for one more chunk
)

// encode is the call as a note: kind, operation, type, 1 byte of zero, chunk
// bytes uint32, seq uint64, n uint64, label; little-endian.
func (c call) encode(n *Note, chunkBytes int) {
	n[0], n[1], n[2] = noteCall, byte(c.op), byte(c.t)
	binary.LittleEndian.PutUint32(n[4:], uint32(chunkBytes))
	binary.LittleEndian.PutUint64(n[8:], uint64(c.seq))
	binary.LittleEndian.PutUint64(n[16:], uint64(c.n))
	copy(n[24:], c.label[:])
}

// decodeCall reads what encode wrote; that a rank, by its name, has written anything
// else is an error.
func decodeCall(n *Note, name int) (c call, err error) {
	if op(n[1]) >= ops || device.DType(n[2]) > device.I64 {
		return c, fmt.Errorf("collective: rank %d calls an operation %d of type %d, which is none: it is not of this version", name, n[1], n[2])
	}
	c.op, c.t = op(n[1]), device.DType(n[2])
	c.seq, c.n = int(binary.LittleEndian.Uint64(n[8:])), int(binary.LittleEndian.Uint64(n[16:]))
	copy(c.label[:], n[24:])
	return c, nil
}

// ReasonLen is the most bytes of a reason on a wire.
const ReasonLen = 4096

// EncodeReason is why a group ended, as bytes for its peers; DecodeReason makes
// an equal error of them. Long reasons are cut.
func EncodeReason(why error) []byte {
	var late ErrLate
	var lost ErrPeerLost
	var diverged ErrDiverged
	switch {
	case errors.As(why, &diverged):
		return append([]byte{'d'}, diverged[:min(len(diverged), ReasonLen-1)]...)
	case errors.As(why, &late):
		if b, err := json.Marshal(late); err == nil && len(b) < ReasonLen {
			return append([]byte{'t'}, b...)
		}
	case errors.As(why, &lost):
		return binary.LittleEndian.AppendUint32([]byte{'r'}, uint32(lost.Rank))
	}
	text := why.Error()
	return append([]byte{'e'}, text[:min(len(text), ReasonLen-1)]...)
}

// DecodeReason is the error that EncodeReason was given, as far as callers
// branch on it.
func DecodeReason(b []byte) error {
	var late ErrLate
	switch {
	case len(b) == 5 && b[0] == 'r':
		return ErrPeerLost{int(binary.LittleEndian.Uint32(b[1:]))}
	case len(b) > 1 && b[0] == 't' && json.Unmarshal(b[1:], &late) == nil:
		return late
	case len(b) > 1 && b[0] == 'd':
		return ErrDiverged(b[1:])
	case len(b) > 1 && b[0] == 'e':
		return errors.New(string(b[1:]))
	}
	return errors.New("collective: a peer ended the group without a reason")
}
