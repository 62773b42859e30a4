package world

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"syscall"

	"zeroth/collective"
	"zeroth/collective/mpi"
	"zeroth/collective/rendezvous"
	"zeroth/collective/socket"
	"zeroth/internal/input"
)

// carrier carries frames between processes.
type carrier interface {
	Wire(group, rank int) collective.Wire
	End(process int) // ends every wire, because that process was lost
	Close()
}

// chooseMPI sets the transport to mpi if it is auto, the launcher is mpirun or mpiexec, this
// binary is built with MPI and the library is found. A job that asks for mpi gets it or an
// error.
func (w *World) chooseMPI() error {
	c := &w.cfg
	auto := c.Transport == "auto" && c.UnderMPI() && mpi.Built
	if !auto && c.Transport != "mpi" {
		return nil
	}
	err := mpi.Open(libraries(c.By))
	if err == nil && c.PerProcess > mpi.MostPerProcess {
		err = fmt.Errorf("over MPI a process can have at most %d ranks, but it has %d", mpi.MostPerProcess, c.PerProcess)
	}
	switch {
	case err == nil:
		c.Transport = "mpi"
		w.note("MPI carries the data: " + mpi.Version())
	case !auto:
		return err
	default:
		w.note(err.Error() + "; sockets carry the data")
	}
	return nil
}

func (w *World) note(text string) {
	if w.cfg.Note != nil {
		w.cfg.Note(text)
	}
}

// libraries returns the library files of the MPI that a launcher belongs to, the likeliest
// first.
func libraries(by string) []string {
	if file := os.Getenv("ZEROTH_MPI"); file != "" {
		return []string{file}
	}
	openMPI, mpich, standard := []string{"libmpi.so.40"}, []string{"libmpi.so.12", "libmpich.so.12"}, []string{"libmpi_abi.so.1"}
	switch by {
	case "Open MPI":
		return append(openMPI, standard...)
	case "PMI":
		return append(mpich, standard...)
	}
	return slices.Concat(openMPI, mpich, standard)
}

// agreeOnCarrier returns an error, on all processes, if only some would use MPI.
func (w *World) agreeOnCarrier(ctx context.Context) error {
	by := "sockets"
	if w.cfg.Transport == "mpi" {
		by = mpi.Version()
	}
	return w.star.Agree(ctx, []rendezvous.Fact{{Name: "the transport of data", Value: by}, {Name: "the summing of gradients", Value: w.addsUp()}})
}

// carry connects all processes.
func (w *World) carry(groups [][]int) (carrier, error) {
	if w.cfg.Transport == "mpi" {
		return w.carryByMPI(groups)
	}
	mem, err := socket.NewMemory()
	if err != nil {
		w.note(err.Error() + "; processes of one host send data instead of reading it directly")
		mem = &socket.Memory{}
	}
	w.mem = mem
	c := socket.Config{Process: w.cfg.Rank, Processes: w.cfg.World, PerProcess: w.cfg.PerProcess, Groups: groups, Hosts: w.hosts, Share: mem, Lost: w.broke}
	if w.crew != nil {
		c.Told, c.Heartbeat, c.DeadAfter = w.told, w.cfg.Heartbeat, w.cfg.DeadAfter
	}
	n := socket.New(c)
	if err := w.connect(n); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// broke reports a broken data connection, so that all processes name the same rank. If data
// arrived damaged, the network is to blame and neither process.
func (w *World) broke(process int, err error) {
	if c := w.crew; c != nil && (!c.gone() || c.isLate()) {
		w.lose(process)
		return
	}
	seat := w.seat()
	if process = w.processOf(process); process < 0 {
		return // it was lost before
	}
	var damaged socket.Damaged
	if errors.As(err, &damaged) {
		w.star.Fail(fmt.Errorf("%w; rank %d is on %s", damaged, damaged.From, strconv.QuoteToGraphic(w.star.Members[w.processOf(damaged.From/w.cfg.PerProcess)].Host)))
		return
	}
	b := rendezvous.Broken{Process: process, Sure: socket.Forged(err)}
	if b.Sure {
		b.Why = "its data connection was closed: " + err.Error()
	} else {
		b.Why = fmt.Sprintf("its data connection to rank %d (%q) broke: %s", seat*w.cfg.PerProcess, w.star.Members[w.cfg.Rank].Host, cause(err))
	}
	w.star.Broke(b)
}

// cause returns the system's error for a connection that broke.
func cause(err error) string {
	if no := syscall.Errno(0); errors.As(err, &no) {
		return no.Error()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "closed at the other end"
	}
	return err.Error()
}

// carryByMPI waits until all processes have started MPI or one of them is lost.
func (w *World) carryByMPI(groups [][]int) (carrier, error) {
	w.shut()
	joined := make(chan error, 1)
	go func() { joined <- mpi.Join(w.cfg.Rank, w.cfg.World) }()
	select {
	case err := <-joined:
		if err != nil {
			return nil, input.BadInput(err) // another launcher or library is wanted, not another try
		}
	case <-w.star.Ended():
		return nil, w.star.Err()
	}
	return overMPI{mpi.New(mpi.Config{Process: w.cfg.Rank, PerProcess: w.cfg.PerProcess, Groups: groups, Hosts: w.hosts, Hurry: w.hurry}), w.hurry}, nil
}

// overMPI is a carrier that uses MPI. It is finalized when all processes have ended normally;
// if one exits without, the launcher ends the others.
type overMPI struct {
	*mpi.Net
	hurry <-chan struct{}
}

func (m overMPI) Close() {
	quiet := m.Net.Close()
	select {
	case <-m.hurry:
	default:
		if quiet {
			mpi.Leave(m.hurry)
		}
	}
}
