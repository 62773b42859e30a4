// Package mpi carries collective.Wire over an MPI library that is opened when the
// program runs: Open MPI 4 and 5, the MPICH family (MPICH, Intel MPI, MVAPICH), and any
// of the standard ABI of MPI 5.
// It is built with -tags mpi, by a C compiler and without an MPI; else Open says so.
//
// Only messages from one process to another are used, never MPI's collectives,
// whose sums have an order of their own: sums are those of package collective, so
// MPI gives the bits that sockets give. A tag tells apart, between two processes,
// groups, ranks of a process, and two kinds of message:
//
//	control  kind uint8 (1 note, 2 left), length uint32, frames uint64, then length bytes (little-endian):
//	         a collective.Note, or why the rank ended its wire; frames is then how many it has sent to the peer
//	data     a frame, for which the receiver has posted memory of that length
//
// MPI cannot take back what is sent. So a rank that ends its wire goes on, beside
// whatever else its process does, until every peer has left as well and all that
// they have sent has come, into memory of nobody's. MPI does not tell of a process
// that is lost: whoever finds that out calls End.
package mpi
