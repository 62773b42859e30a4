// Package world connects the processes of a job: how they meet, what carries their collectives,
// and which of them is lost. A World is the setup.World of a job with ranks in several processes.
//
// It must not contain training, files of a run, or flags.
//
// Begin with Enter: rendezvous, then Agree and Share while the run is prepared, then Connect,
// which connects all processes (carrier.go): over MPI if mpirun started them; otherwise over Unix
// sockets within a host (host.go) and TCP between hosts.
package world

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"zeroth/collective"
	"zeroth/collective/rendezvous"
	"zeroth/collective/socket"
	"zeroth/internal/input"
	"zeroth/internal/launch"
	"zeroth/internal/setup"
	"zeroth/shard"
)

// Config describes this process and its world.
type Config struct {
	launch.Process
	PerProcess int          // ranks per process
	Listener   net.Listener // where process 0 listens, if its launcher has opened it; else nil
	Transport  string       // "auto", "unix", "tcp" or "mpi"
	Collective string       // "auto", "exact" or "nccl"
	Master     bool         // one rank sums for all
	GPUs       []string     // GPUs that ranks of this process may use, by names that all processes of a machine agree on
	Bind       string       // address that others reach this process at; "" is the one by which it reaches process 0
	Token      []byte       // shared by all processes; nil: the user's token, if no other host can reach the world
	tokenFile  string       // file of Token, if it is the user's
	TLS        *tls.Config  // for control and TCP connections between processes; nil: none
	Insecure   bool         // allow other hosts without a token
	Survive    int          // fewest replicas to go on with when others are lost; 0: the world ends
	Joins      bool         // processes that were lost may come back; with Survive

	Join                 time.Duration // how long processes wait for each other to join, and then to connect; 0 is a minute
	Heartbeat, DeadAfter time.Duration
	Note                 func(string) // receives notices
}

// World is one process's view of a world of several.
type World struct {
	cfg   Config
	star  *rendezvous.Star
	links collective.Links // rates by which groups choose routes
	hosts []int            // (World) numbers of the processes' hosts

	dir       string         // of the Unix socket; removed once all are connected
	listeners []net.Listener // for data, until then

	left  chan struct{} // closed by Close
	hurry chan struct{} // closed when the world ends by a failure
	mu    sync.Mutex
	fails sync.Once      // closes hurry
	net   carrier        // nil before Groups
	over  bool           // wires have ended, or will end once they exist
	by    []string       // (World) the carrier of data to each process, one of Carriers; unused for this one
	mem   *socket.Memory // memory that processes of this host read; nil over MPI
	nccl  string         // NCCL's version and what it registers, if it is used; else ""
	crew  *crew          // of a world that survives losses; else nil

	// of a world in which processes may come back
	here  string             // the address of this host at which the world knows it
	kept  *net.TCPListener   // process 0's, or nil
	door  *rendezvous.Door   // where newcomers ask, or nil; guarded by the crew's mu, as tried
	tried time.Time          // when this process tried to open it last
	doors []*rendezvous.Door // where they connect
	life  context.Context    // until the world is closed
	shuts context.CancelFunc // ends life
}

// Enter joins the world and waits until all processes have joined.
func Enter(ctx context.Context, cfg Config) (*World, error) {
	cfg.Join = cmp.Or(cfg.Join, time.Minute)
	w := &World{cfg: cfg, links: collective.Usual, by: make([]string, cfg.World), left: make(chan struct{}), hurry: make(chan struct{})}
	w.life, w.shuts = context.WithCancel(context.Background())
	err := cfg.Safe(ctx)
	if err == nil && len(cfg.Back) > 0 && !cfg.Joins {
		err = input.BadInput(errors.New("ZEROTH_JOIN is set, but processes that come back cannot join this job: want faults.join: true, or unset it"))
	}
	if err == nil {
		if err = w.cfg.useToken(); err != nil {
			err = input.BadInput(err)
		}
	}
	if err == nil {
		err = w.chooseMPI()
	}
	if err == nil && len(cfg.Back) > 0 {
		if err = w.enterLate(ctx); err != nil {
			w.shut()
			return nil, fmt.Errorf("process %d of %d: %w", cfg.Rank, cfg.World, err)
		}
		return w, nil
	}
	if err == nil && cfg.Rank == 0 && cfg.Listener == nil {
		w.cfg.Listener, err = w.listen(ctx)
	}
	if err != nil {
		return nil, err
	}
	w.cfg.Listener = w.keep(w.cfg.Listener)
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	w.star, err = rendezvous.Join(ctx, rendezvous.Config{
		Processes: cfg.World, PerProcess: cfg.PerProcess, Addrs: cfg.Addrs(), Listener: w.cfg.Listener, Run: cfg.Run, Token: w.cfg.Token, Hint: w.cfg.tokenHint(), TLS: cfg.TLS,
		Wait: cfg.Join, Heartbeat: cfg.Heartbeat, DeadAfter: cfg.DeadAfter, Note: cfg.Note, Open: w.open,
		Me: rendezvous.Member{Process: cfg.Rank, Host: host, Boot: bootID(), Sees: sees(folder()), Pid: pid(), GPUs: cfg.GPUs},
	})
	if err != nil {
		w.shut()
		if errors.As(err, new(rendezvous.Missing)) && ctx.Err() == nil {
			err = rendezvous.Missing(err.Error() + cfg.advice())
		}
		if err = fmt.Errorf("process %d of %d: %w", cfg.Rank, cfg.World, err); rendezvous.Wrong(err) {
			err = input.BadInput(err)
		}
		return nil, err
	}
	w.hosts = numbers(w.star.Members)
	if cfg.Survive > 0 {
		w.crew = newCrew(w, w.star.Members, w.star.Session)
	}
	go w.follow(w.star, seats(cfg.World))
	w.noteContainers()
	if err = unreachable(w.star.Members); err != nil {
		err = input.BadInput(err) // all processes detect it
	} else if err = w.chooseNCCL(); err != nil {
		w.Fail(err)
	} else {
		err = w.agreeOnCarrier(ctx)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// Safe returns an error for a world that others could join, because it is not confined to this
// host and has no token or one that can be guessed, and for addresses that belong to no host.
func (c Config) Safe(ctx context.Context) error {
	for _, host := range []string{c.Host, c.Bind} {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			return fmt.Errorf("%s stands for all addresses of a host, so others cannot connect to it; name one address: that of process 0 in --addr, ZEROTH_ADDR or the launcher's variable, that of this host in parallel.bind", host)
		}
	}
	if n := len(c.Token); n > 0 && n < 16 {
		return fmt.Errorf("the token has %d bytes; want at least 16 random ones, such as from: openssl rand -hex 32", n)
	}
	if len(c.Token) > 0 || c.Insecure || c.TLS != nil {
		return nil
	}
	hosts := []string{c.Host}
	if c.Bind != "" {
		hosts = append(hosts, c.Bind)
	}
	for _, host := range hosts {
		ips, err := new(net.Resolver).LookupIPAddr(ctx, host)
		if err != nil {
			return fmt.Errorf("the job has no token, and it is unknown whether only this host can reach %s: %w%s", host, err, c.advice())
		}
		if slices.ContainsFunc(ips, func(a net.IPAddr) bool { return !a.IP.IsLoopback() }) {
			return fmt.Errorf("process 0 at %s can be reached from other hosts, but the job has no token: set ZEROTH_TOKEN, ZEROTH_TOKEN_FILE or parallel.token_file to the same secret everywhere, or use --insecure", host)
		}
	}
	return nil
}

// listen opens the address where process 0 waits for the others. Its name may not resolve yet:
// Kubernetes publishes it some seconds after the pod starts.
func (w *World) listen(ctx context.Context) (net.Listener, error) {
	end := time.Now().Add(w.cfg.Join)
	for noted := false; ; noted = true {
		ln, err := w.listenOnce()
		var unknown *net.DNSError
		switch {
		case err == nil:
			return ln, nil
		case !errors.As(err, &unknown):
			return nil, input.BadInput(err)
		case time.Now().After(end):
			return nil, rendezvous.Missing(err.Error() + w.cfg.advice())
		}
		if !noted {
			w.note("waiting until the name of process 0 resolves: " + unknown.Error() + w.cfg.advice())
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		}
	}
}

func (w *World) listenOnce() (net.Listener, error) {
	host := w.cfg.Host
	if w.cfg.Bind != "" {
		host = w.cfg.Bind
	}
	var wrong []error
	for _, port := range w.cfg.Ports {
		ln, err := net.Listen("tcp", net.JoinHostPort(host, fmt.Sprint(port)))
		if err == nil {
			return ln, nil
		}
		wrong = append(wrong, err)
	}
	err := errors.Join(wrong...)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("process 0 cannot listen: %w; another process 0 may be running there: end it, or use another port", err)
	}
	return nil, fmt.Errorf("process 0 cannot listen: %w; the others connect to %s: if that is another machine's address, start process 0 there; parallel.bind sets the address to listen at", err, w.cfg.Host)
}

// open opens the addresses where other processes connect for data: a Unix socket in a folder
// of this user, and TCP at the address by which the world knows this host.
func (w *World) open(local net.Addr, me *rendezvous.Member) error {
	if w.cfg.Transport == "mpi" {
		return nil
	}
	if w.here = w.cfg.Bind; w.here == "" {
		w.here, _, _ = net.SplitHostPort(local.String())
	}
	if w.cfg.Transport != "tcp" {
		err := w.openUnix(me)
		if err != nil && w.cfg.Transport != "auto" {
			return err
		} else if err != nil {
			w.note(err.Error() + ": TCP carries data to and from this process")
		}
	}
	if w.cfg.Transport == "unix" {
		return nil
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(w.here, "0"))
	if err != nil {
		return fmt.Errorf("data connections: %w", err)
	}
	w.listeners = append(w.listeners, ln)
	me.TCP = ln.Addr().String()
	return nil
}

func (w *World) openUnix(me *rendezvous.Member) (err error) {
	removeDead(folder())
	if w.dir, err = os.MkdirTemp(folder(), socketFolder); err != nil { // mode 0700
		return fmt.Errorf("no Unix socket: %w", err)
	}
	ln, err := net.Listen("unix", filepath.Join(w.dir, socketName))
	if err != nil {
		return fmt.Errorf("no Unix socket: %w", err)
	}
	w.listeners = append(w.listeners, ln)
	me.Unix = ln.Addr().String()
	return nil
}

// shut closes the listeners.
func (w *World) shut() {
	for _, ln := range w.listeners {
		_ = ln.Close() // closing twice is fine
	}
	if w.dir != "" {
		_ = os.RemoveAll(w.dir) // fails only if the folder has disappeared
	}
	if w.cfg.Listener != nil {
		_ = w.cfg.Listener.Close()
	}
	w.closeDoors()
}

// hearsay is how long the reason for the end of a world may take to reach a process.
const hearsay = 2 * time.Second

// follow closes every wire of this process when the world has ended, so that no operation
// waits for a lost process. It names one process; others, such as its
// host's, may be lost with it.
func (w *World) follow(star *rendezvous.Star, seats []int) {
	select {
	case <-star.Ended():
	case <-w.left:
		return
	}
	lost := lostOf(star)
	if w.crew != nil && !lost.After && w.crew.mourn(lost, seats) {
		return
	}
	w.Depart() // wires that end lose nobody for whom others would go on
	w.rush()
	if lost.After { // over the wires, ranks learn for whom each of them has waited
		select {
		case <-time.After(hearsay):
		case <-w.left:
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.net != nil {
		w.net.End(seats[lost.Process])
	}
}

// lostOf returns the process whose loss ended a star.
func lostOf(star *rendezvous.Star) (lost rendezvous.Lost) {
	_ = errors.As(star.Err(), &lost) // always succeeds
	return lost
}

// rush releases everyone who is waiting for another process.
func (w *World) rush() { w.fails.Do(func() { close(w.hurry) }) }

// Members returns all processes.
func (w *World) Members() []rendezvous.Member { return w.star.Members }

// Carriers lists the possible carriers of data between two processes.
var Carriers = []string{"unix", "tcp", "mpi"}

// Carrier returns the carrier of data to another process. Connect must have been called.
func (w *World) Carrier(process int) string {
	if w.cfg.Transport == "mpi" {
		return "mpi"
	}
	return w.by[process]
}

// Wire returns a wire between all ranks, in addition to the groups, for a rank of this
// process. Connect must have been called, and Saves must not be.
func (w *World) Wire(rank int) collective.Wire { return w.net.Wire(collective.SavesGroup, rank) }

// Self implements setup.World.
func (w *World) Self() setup.Self {
	s := setup.Self{Process: w.process(), Session: w.star.Session, At: w.placement(), Ended: w.star.Ended(), Dump: w.star.Dump, Dumps: w.star.Dumps()}
	for _, m := range w.star.Members {
		s.Hosts = append(s.Hosts, slices.Repeat([]string{m.Host}, w.cfg.PerProcess)...)
	}
	return s
}

// process returns this process's number. One that has not joined yet is not the first.
func (w *World) process() int {
	if w.crew.isLate() {
		return max(1, w.cfg.Rank)
	}
	return w.cfg.Rank
}

// Agree returns an error, the same on all processes, if they state different facts.
func (w *World) Agree(ctx context.Context, facts []rendezvous.Fact) error {
	c := w.crew
	if c.isLate() {
		return c.try.agree(facts)
	}
	err := w.star.Agree(ctx, facts)
	if err == nil {
		c.record(entry{Facts: facts, Agreed: true})
	}
	return err
}

// Share returns the value of mine on process 0.
func (w *World) Share(ctx context.Context, mine string) (string, error) {
	c := w.crew
	if c.isLate() {
		return c.try.share()
	}
	text, err := w.star.Share(ctx, mine)
	if err == nil {
		c.record(entry{Shared: text})
	}
	return text, err
}

// Fail notifies the other processes why this one ends, unless it ends because another one was lost,
// which they notice themselves.
func (w *World) Fail(err error) {
	w.rush()
	switch {
	case knownToAll(err):
		w.star.After(err)
	case !errors.Is(err, collective.ErrClosed):
		w.star.Fail(err)
	}
}

// knownToAll reports whether every rank that is not stuck gets the error, too: it names ranks that
// ended a group, or all ranks agreed on it (Common).
func knownToAll(err error) bool {
	return errors.As(err, new(interface{ Common() })) || errors.As(err, new(collective.ErrLate)) || errors.As(err, new(collective.ErrDiverged))
}

// Explain adds to an error the known cause: which process was lost, and how.
func (w *World) Explain(err error) error {
	if !errors.Is(err, collective.ErrClosed) || knownToAll(err) || errors.As(err, new(setup.Left)) {
		return err
	}
	select {
	case <-w.star.Ended():
	case <-time.After(hearsay):
		var lost collective.ErrPeerLost
		if !errors.As(err, &lost) {
			return err
		}
		process := w.processAt(lost.Rank / w.cfg.PerProcess)
		if process < 0 {
			return err // the world goes on without it
		}
		w.star.Lose(process, "connection lost") // process 0 may have missed it: the ranks noticed it on their data connections
	}
	return fmt.Errorf("%w: %w", err, w.star.Err())
}

// Close leaves the world. Its groups must be closed.
func (w *World) Close() {
	w.shuts()
	w.shut()
	w.star.Done()
	w.mu.Lock()
	n := w.net
	w.mu.Unlock()
	if n != nil {
		n.Close()
	}
	if w.crew != nil {
		w.crew.close()
	}
	if w.mem != nil {
		_ = w.mem.Close() // nobody uses it any more
	}
	close(w.left)
	w.star.Close()
}

// Connect connects all processes.
func (w *World) Connect(m shard.Mesh) (*setup.Connection, error) {
	if w.crew.isLate() {
		return w.apart(m), nil
	}
	n, err := w.carry(collective.MeshGroups(m))
	if err != nil {
		return nil, fmt.Errorf("connecting the processes: %w", err)
	}
	if w.crew != nil {
		w.crew.begin(m)
	}
	w.mu.Lock()
	w.net = n
	if w.over {
		n.End(w.seatOf(lostOf(w.star).Process))
	}
	w.mu.Unlock()
	c := w.connection(m)
	if err := w.useLinks(c.Groups); err != nil {
		return nil, w.because(err)
	}
	return c, nil
}

// connection returns the groups of the ranks of this process.
func (w *World) connection(m shard.Mesh) *setup.Connection {
	c := &setup.Connection{Saves: w.saves, OnLate: w.onLate}
	for _, r := range w.localRanks() {
		c.Groups = append(c.Groups, collective.WiredWorld(m, r, w.net.Wire))
	}
	if w.mem != nil {
		c.Memory = w.mem
	}
	return c
}

// localRanks returns the ranks of this process.
func (w *World) localRanks() (ranks []int) {
	for i := range w.cfg.PerProcess {
		ranks = append(ranks, w.cfg.Rank*w.cfg.PerProcess+i)
	}
	return ranks
}

// onLate connects the ranks' recorders, which ask which ranks all wait for, and answers for
// them.
func (w *World) onLate(recs []*collective.Recorder) {
	star := w.star
	star.Answer(func() []collective.Wait { return collective.Waits(recs, w.seat()*w.cfg.PerProcess) })
	collective.OnLate(recs, func() string {
		star.Dump() // now: some launchers kill all processes once one has failed
		return star.Ask()
	})
}

// saves returns the group for saving checkpoints.
func (w *World) saves() (all []collective.Group) {
	for _, r := range w.localRanks() {
		g := collective.NewWired(w.net.Wire(collective.SavesGroup, r))
		collective.UseLinks(g, w.links)
		all = append(all, g)
	}
	return all
}
