// Package rendezvous is the control plane of a job in several processes: a star
// of small messages to process 0, apart from the data. Processes join it, learn
// where the others are, find out whether all mean the same job, and hear when one
// of them is lost, silent or has failed.
//
// Whoever connects proves first that it knows the job's token, by a challenge;
// then the other side does. Messages of fixed length, in this order; C dials, S
// accepts:
//
//	C → S  "ZEROTH-3" or it is no client, process uint32 (little-endian), 4 bytes of zero, 32 random bytes
//	S → C  32 random bytes
//	C → S  HMAC-SHA256(token, "client" 0 context 0 both of the above)
//	S → C  1 (welcome) or 0 (refused), HMAC-SHA256(token, "server" 0 ...)
//
// The context names what the connection is for, so that an answer given in one
// place is of no use in another. Nothing is allocated by what an unknown peer
// says, at most a fixed number of them are heard at once, each for five seconds.
//
// After it frames: kind uint32, length uint32, that many bytes of JSON. Each kind
// has a most length; unknown fields are errors.
package rendezvous
