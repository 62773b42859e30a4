package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"zeroth/collective/rendezvous"
	"zeroth/collective/socket"
)

// connect dials the processes before this one and accepts those after it. If it takes too long, the
// error is rendezvous.Missing.
func (w *World) connect(n *socket.Net) (err error) {
	late := fmt.Errorf("not connected within %v (parallel.join)", w.cfg.Join)
	ctx, cancel := context.WithTimeoutCause(context.Background(), w.cfg.Join, late)
	defer cancel()
	about := "data " + w.star.Session
	doors := w.newDoors(about)
	defer func() {
		if err == nil && w.cfg.Joins {
			w.admit(doors)
			return
		}
		for _, d := range doors {
			d.Close()
		}
		w.shut()
	}()
	ended := w.star.Ended()
	go func() {
		select {
		case <-ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	guests := make(chan rendezvous.Guest)
	for _, door := range doors {
		go func() {
			for {
				g, err := door.Next(ctx)
				if err != nil {
					return
				}
				select {
				case guests <- g:
				case <-ctx.Done():
					_ = g.Close()
					return
				}
			}
		}()
	}
	for p := range w.cfg.Rank {
		c, err := w.dial(ctx, p, about)
		if err != nil {
			return w.because(missing(fmt.Errorf("process %d: %w", p, err), late))
		}
		w.add(n, p, c)
	}
	return w.because(missing(w.accept(ctx, n, guests, doors), late))
}

// newDoors accepts connections for data.
func (w *World) newDoors(about string) (doors []*rendezvous.Door) {
	for _, ln := range w.listeners {
		if ln.Addr().Network() == "tcp" {
			ln = rendezvous.Over(ln, w.cfg.TLS)
		}
		doors = append(doors, rendezvous.NewDoor(ln, w.cfg.Token, about, w.cfg.World, nil))
	}
	return doors
}

// missing converts an error caused by late to rendezvous.Missing.
func missing(err, late error) error {
	if errors.Is(err, late) {
		return rendezvous.Missing(err.Error())
	}
	return err
}

// accept accepts the connections of the processes after this one.
func (w *World) accept(ctx context.Context, n *socket.Net, guests chan rendezvous.Guest, doors []*rendezvous.Door) error {
	have := make([]bool, w.cfg.World)
	for missing := w.cfg.World - 1 - w.cfg.Rank; missing > 0; {
		select {
		case g := <-guests:
			if g.Process <= w.cfg.Rank || g.Process >= w.cfg.World || have[g.Process] {
				_ = g.Close() // a process with the token claims a rank that is already connected
				continue
			}
			w.add(n, g.Process, g.Conn)
			have[g.Process] = true
			missing--
		case <-ctx.Done():
			trouble := ""
			for _, d := range doors {
				trouble = cmp.Or(trouble, d.Trouble())
			}
			return fmt.Errorf("process %d: %w%s", slices.Index(have[w.cfg.Rank+1:], false)+w.cfg.Rank+1, context.Cause(ctx), trouble)
		}
	}
	return nil
}

func (w *World) add(n *socket.Net, process int, c net.Conn) {
	w.by[process] = c.LocalAddr().Network()
	giveUpAfter(c, w.cfg.DeadAfter)
	n.Add(process, c)
}

// because returns the error with which the world ended, if it has, because that explains err.
func (w *World) because(err error) error {
	if why := w.star.Err(); err != nil && why != nil {
		return why
	}
	return err
}

// dial connects to a process over its Unix socket if that exists, else over TCP.
func (w *World) dial(ctx context.Context, p int, about string) (net.Conn, error) {
	return w.dialMember(ctx, rendezvous.Caller{Process: w.cfg.Rank, Token: w.cfg.Token}, w.star.Members[p], w.SameHost(p, w.cfg.Rank), about)
}

// dialMember connects to a process.
func (w *World) dialMember(ctx context.Context, caller rendezvous.Caller, it rendezvous.Member, near bool, about string) (net.Conn, error) {
	p := it.Process
	if it.Unix != "" && near {
		c, err := w.dialUnix(ctx, caller, it.Unix, about)
		if err == nil || it.TCP == "" || errors.Is(err, rendezvous.ErrRefused) {
			return c, err
		}
		w.note(fmt.Sprintf("process %d is on this host, but its Unix socket cannot be reached, so TCP carries data to it: %v", p, err))
	}
	if it.TCP == "" {
		return nil, fmt.Errorf("it is on host %q, which Unix sockets cannot reach; want parallel.transport: auto or tcp", it.Host)
	}
	caller.TLS = w.cfg.TLS
	return caller.Dial(ctx, "tcp", []string{it.TCP}, about)
}

// dialUnix connects to a Unix socket. It fails soon if the socket cannot be reached or its
// process refuses this one, as from another user namespace.
func (w *World) dialUnix(ctx context.Context, caller rendezvous.Caller, addr, about string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", addr)
	if err != nil {
		return nil, err
	}
	_ = c.Close() // this was only a test
	ctx, cancel := context.WithTimeoutCause(ctx, w.cfg.Join/4, errors.New("it accepts no connections from here"))
	defer cancel()
	return caller.Dial(ctx, "unix", []string{addr}, about)
}
