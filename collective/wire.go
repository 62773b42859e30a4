package collective

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"zeroth/device"
)

// Wire is one rank's end of point-to-point connections to the other ranks of a group, over any
// transport. Messages from one rank to another arrive in order. All methods but Poll return at
// once; Poll reports their completion. Only one goroutine at a time may post and poll; Abort and
// Ended may be called from any.
type Wire interface {
	Rank() int
	Size() int
	// Name returns the number of rank r in errors.
	Name(r int) int
	// Host returns the number of rank r's host: ranks with equal numbers communicate without a
	// network.
	Host(r int) int
	// Note sends a short message, which is copied. At most NotesAhead may be outstanding to a peer
	// that does not poll.
	Note(to int, n Note)
	// Send posts a frame for which rank to has posted memory of the same length; the group ensures
	// that. b is read until Poll reports Sent.
	Send(to int, b []byte)
	// Recv posts memory for the next frame from a rank. It is written until Poll reports Received.
	Recv(from int, b []byte)
	// Done returns the oldest memory that a peer has lent with Received. If an operation fails,
	// Poll returns the memory it borrowed.
	Done(from int)
	// Poll waits for the next event. Once the wire has ended, Poll returns the reason, and posted
	// memory is no longer accessed.
	Poll() (Event, error)
	// Abort ends the wire; every peer then receives Left. It returns at once, and only the first
	// reason counts.
	Abort(why error)
	// Ended returns the reason of the end, or nil while the wire is open.
	Ended() error
}

// Lender is a Wire whose peers can read this rank's memory directly.
type Lender interface {
	Wire
	// NoteLending is Note and, if the peer can read b directly, lends it b and returns true. Then b
	// is read until Poll reports Sent; only then may more be lent to the peer.
	NoteLending(to int, n Note, b []byte) bool
	// Borrow returns the memory lent with the last note received from a peer, until Done; memory
	// posted for the peer is withdrawn. It returns nil if the peer has left since.
	Borrow(from int) []byte
}

// Note is a message of fixed length.
type Note [NoteLen]byte

const (
	// NoteLen is the length of a Note in bytes.
	NoteLen = 80
	// NotesAhead is the maximum number of notes that a rank may have to receive from each peer: the
	// call of an operation, a credit for each chunk in flight, and two for an agreement on the next
	// operation.
	NotesAhead = 3 + window
)

// EventKind is the kind of an Event.
type EventKind uint8

const (
	Noted    EventKind = iota // a note has arrived
	Sent                      // the oldest frame posted to the peer was sent or, if lent, read
	Received                  // the oldest memory posted for the peer is filled, or its frame is lent
	Left                      // the peer has ended the wire or is lost; it is the peer's last event
)

// Event is reported by Poll.
type Event struct {
	Kind  EventKind
	Peer  int
	Note  Note   // for Noted
	Lends bool   // for Noted: the peer lends memory, see Borrow
	Lent  []byte // for Received: the frame in the peer's memory, until Done; nil if it is in the posted memory
	Why   error  // for Left
}

const (
	noteCall   = 1 // call of an operation
	noteCredit = 2 // the sender has memory for one more chunk
)

// encode writes the call as a note: kind, operation, type, 1 zero byte, chunk bytes uint32, seq
// uint64, n uint64, label; little-endian.
func (c call) encode(n *Note, chunkBytes int) {
	n[0], n[1], n[2] = noteCall, byte(c.op), byte(c.t)
	binary.LittleEndian.PutUint32(n[4:], uint32(chunkBytes))
	binary.LittleEndian.PutUint64(n[8:], uint64(c.seq))
	binary.LittleEndian.PutUint64(n[16:], uint64(c.n))
	copy(n[24:], c.label[:])
}

// decodeCall reads a call written by encode. It returns an error that names the sender if the note
// is invalid.
func decodeCall(n *Note, name int) (c call, err error) {
	if Op(n[1]) >= ops || device.DType(n[2]) > device.I64 {
		return c, fmt.Errorf("collective: rank %d calls unknown operation %d of type %d; all processes must run the same version", name, n[1], n[2])
	}
	c.op, c.t = Op(n[1]), device.DType(n[2])
	c.seq, c.n = int(binary.LittleEndian.Uint64(n[8:])), int(binary.LittleEndian.Uint64(n[16:]))
	copy(c.label[:], n[24:])
	return c, nil
}

// ReasonLen is the maximum length of an encoded reason in bytes.
const ReasonLen = 4096

// EncodeReason encodes why a group ended, for its peers. It truncates long reasons.
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

// DecodeReason decodes a reason. Errors of types that callers distinguish are equal to the
// original.
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
