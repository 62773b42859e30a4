// Package rendezvous implements the control plane of a job with several processes: a star of short
// messages to process 0, separate from the data. Processes join, learn each other's addresses,
// verify that they run the same job, and are notified when one of them is lost, silent or has
// failed.
//
// A connecting process first proves knowledge of the job's token in a challenge, then the accepting
// side does. The messages have fixed lengths; C dials, S accepts:
//
//	C → S  "ZEROTH-3", process uint32 (little-endian), 4 zero bytes, 32 random bytes
//	S → C  32 random bytes
//	C → S  HMAC-SHA256(token, "client" 0 context 0 both messages above)
//	S → C  1 (welcome) or 0 (refused), HMAC-SHA256(token, "server" 0 ...)
//
// The context names the connection's purpose, so that an answer cannot be reused for another
// purpose. Unauthenticated peers cannot cause allocations; only a fixed number of them is served at
// once, each for at most five seconds.
//
// Then follow frames: kind uint32, length uint32, and that many bytes of JSON. Each kind has a
// maximum length; unknown fields are errors.
package rendezvous
