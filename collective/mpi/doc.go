// Package mpi implements collective.Wire over an MPI library that is loaded at run time: Open MPI 4
// and 5, the MPICH family (MPICH, Intel MPI, MVAPICH), and libraries with the standard ABI of MPI
// 5. Building with -tags mpi needs a C compiler but no MPI; without that tag, Open returns an
// error.
//
// Only point-to-point messages are used, never MPI's collectives, which sum in an order of their
// own: sums are those of package collective, so MPI gives the same bits as sockets. Between two
// processes, tags distinguish groups, the ranks of a process, and two kinds of messages:
//
//	control  kind uint8 (1 note, 2 left), length uint32, frames uint64, then length bytes (little-endian):
//	         a collective.Note, or why the rank ended its wire; frames is then the number of frames sent to the peer
//	data     a frame, for which the receiver has posted memory of that length
//
// MPI cannot revoke a sent message. So a rank that ends its wire continues in the background until
// every peer has ended, too, and all of their messages have arrived in scratch memory. MPI does not
// report lost processes: the process that detects a loss must call End.
package mpi
