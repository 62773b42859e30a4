package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of requests.
const (
	mostConnections = 64
	mostPages       = 16 // pages that follow the run, with the token and without each
	mostRequests    = 50 // per second, with the token and without each, except health checks
	mostTraced      = 20 // steps of a trace
	mostSeries      = 2000
	follow          = time.Second // time between updates of a page
)

// Options configures a Server.
type Options struct {
	Listen    string        // "HOST:PORT", or "unix:PATH"
	TokenFile string        // created if missing, and never removed; empty: TokenFile in Folder, created at every start
	Folder    string        // of the run
	Stall     time.Duration // a run without progress for this long is unhealthy
	State     *State

	Save  func() error                                         // requests a checkpoint now
	Trace func(ctx context.Context, steps int) (Traced, error) // waits for a trace of the next steps
}

// Traced writes a trace.
type Traced interface{ Write(io.Writer) error }

// Server serves a run until it is closed.
type Server struct {
	o      Options
	at     net.Listener
	open   bool // reachable from other machines
	token  *token
	http   *http.Server
	end    context.CancelFunc // cancels all requests
	served chan struct{}
	once   sync.Once

	mu        sync.Mutex
	known     budget // for requests with the token
	strangers budget // for all others, so that they cannot use up known
	busy      bool   // a trace is being recorded
	now       func() time.Time
}

// budget is the number of requests that may be answered now.
type budget struct {
	left   float64
	filled time.Time
	pages  int // that follow the run
}

// of returns the budget of a request.
func (s *Server) of(r *http.Request) *budget {
	if s.token.in(r) {
		return &s.known
	}
	return &s.strangers
}

// Open starts listening and serving.
func Open(o Options) (*Server, error) {
	s := &Server{o: o, served: make(chan struct{}), now: time.Now}
	var err error
	if o.TokenFile != "" {
		s.token, err = openToken(o.TokenFile)
	} else {
		s.token, err = newToken(filepath.Join(o.Folder, TokenFile))
	}
	if err != nil {
		return nil, fmt.Errorf("the token: %w", err)
	}
	if s.at, err = listen(o.Listen); err != nil {
		s.token.remove()
		return nil, err
	}
	s.open = !local(s.at.Addr())
	ctx, end := context.WithCancel(context.Background())
	s.end = end
	s.http = &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, c)
		}}
	go func() {
		defer close(s.served)
		_ = s.http.Serve(&connections{Listener: s.at}) // returns on Close
	}()
	return s, nil
}

// Close ends the server and all requests. Pages have a second to receive the end of the run.
func (s *Server) Close() {
	if s == nil {
		return
	}
	s.once.Do(func() {
		s.end()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s.http.Shutdown(ctx) != nil {
			_ = s.http.Close() // clients may not have read everything
		}
		<-s.served
		s.token.remove()
	})
}

// String returns the address of the page and how to open it.
func (s *Server) String() string {
	at := "http://" + named(s.at.Addr().String()) + "/"
	if s.at.Addr().Network() == "unix" {
		at = "unix socket " + s.at.Addr().String()
	}
	if s.open {
		return fmt.Sprintf("%s (token in %s)", at, s.token.file)
	}
	return at
}

// named replaces an address that stands for all addresses of this machine by the machine's name,
// so that others can use it.
func named(address string) string {
	at, err := netip.ParseAddrPort(address)
	if name, unknown := os.Hostname(); err == nil && at.Addr().IsUnspecified() && unknown == nil {
		return net.JoinHostPort(name, strconv.Itoa(int(at.Port())))
	}
	return address
}

// listen listens on an address; a stale socket is replaced.
func listen(address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return net.Listen("tcp", address)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("%s is in use by another process", path)
		}
		_ = os.Remove(path)
	}
	l, err := net.Listen("unix", path)
	if err == nil {
		if err = os.Chmod(path, 0o600); err != nil {
			_ = l.Close()
		}
	}
	return l, err
}

// local reports whether only this machine reaches an address.
func local(a net.Addr) bool {
	if a.Network() == "unix" {
		return true
	}
	at, err := netip.ParseAddrPort(a.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// access is the permission that a request needs.
type access int

const (
	anyone access = iota // anyone: the response is only yes or no
	reader               // the token, unless the server is local
	holder               // the token
)

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, who access, f http.HandlerFunc) { mux.Handle(pattern, s.guard(who, f)) }
	handle("GET /healthz", anyone, s.health)
	handle("GET /{$}", reader, s.page)
	handle("GET /metrics", reader, promhttp.HandlerFor(s.o.State.hist.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}).ServeHTTP)
	handle("GET /api/run", reader, s.run)
	handle("GET /api/series", reader, s.series)
	handle("GET /api/events", reader, s.events)
	handle("POST /login", anyone, s.login)
	handle("POST /api/checkpoint", holder, s.save)
	handle("POST /api/trace", holder, s.trace)
	for path, f := range map[string]http.HandlerFunc{"": pprof.Index, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} { // no cmdline: arguments may contain secrets
		handle("GET /debug/pprof/"+path, holder, long(f))
	}
	return http.NewCrossOriginProtection().Handler(mux)
}

// guard limits the rate and the duration of requests that need who. A flood of unauthenticated
// requests or health checks does not slow down authenticated ones.
func (s *Server) guard(who access, f http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(30 * time.Second))
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		from := s.of(r)
		in := from == &s.known
		if s.open && !in {
			h.Set("Connection", "close")
		}
		r.Body = http.MaxBytesReader(w, r.Body, 4096)
		switch {
		case r.URL.Path != "/healthz" && !s.spend(from):
			refuse(w, http.StatusTooManyRequests, "too many requests")
		case !s.open && r.URL.Path != "/healthz" && !localHost(r.Host):
			refuse(w, http.StatusForbidden, "this server answers to localhost")
		case !in && (who == holder || who == reader && s.open):
			s.ask(w, r)
		default:
			if who != anyone {
				keep(r, in)
			}
			f(w, r)
		}
	})
}

// localHost reports whether the Host of a request names this machine. A foreign name that
// resolves to this machine (DNS rebinding) does not.
func localHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	at, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && at.Unmap().IsLoopback()
}

// spend uses one request of a budget, and returns false if none is left.
func (s *Server) spend(b *budget) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	b.left = min(mostRequests, b.left+mostRequests*now.Sub(b.filled).Seconds()) // initially full
	b.filled = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

func refuse(w http.ResponseWriter, code int, why string) { http.Error(w, why, code) }

// ask answers a request without the token: a browser gets a form for it.
func (s *Server) ask(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="zeroth"`)
	if r.URL.Path != "/" {
		refuse(w, http.StatusUnauthorized, "the run's token is required, as Authorization: Bearer TOKEN")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; frame-ancestors 'none'")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = io.WriteString(w, loginPage)
}

const loginPage = `<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>zeroth</title>
<form method="post" action="login"><label>Token of the run <input name="token" type="password" autofocus autocomplete="off"></label> <button>Show</button></form></html>
`

// login exchanges the token for a cookie.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	if !s.token.is(strings.TrimSpace(r.PostFormValue("token"))) {
		refuse(w, http.StatusUnauthorized, "this is not the run's token")
		return
	}
	http.SetCookie(w, &http.Cookie{Name: s.token.cookie, Value: s.token.value, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, "./", http.StatusSeeOther)
}

// long removes the time limit for a profile.
func long(f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(5 * time.Minute))
		w.Header().Del("Content-Security-Policy") // its pages have inline styles and links
		f(w, r)
	}
}

// health answers 200, or 503 if nothing has happened for too long.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if s.o.State.Idle() > s.o.Stall {
		refuse(w, http.StatusServiceUnavailable, "stalled")
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", pagePolicy)
	_, _ = io.WriteString(w, livePage)
}

func (s *Server) run(w http.ResponseWriter, _ *http.Request) {
	doc, _ := s.o.State.Doc()
	writeJSON(w, doc)
}

// mostSteps is the largest step that a request can name.
const mostSteps = 1 << 40

// wholes returns the whole numbers from lo to hi in parameters of a request, or refuses it. Where there is no
// parameter it returns the number of the list.
func wholes(w http.ResponseWriter, r *http.Request, lo, hi int, names []string, list ...int) ([]int, bool) {
	for i, name := range names {
		text := r.URL.Query().Get(name)
		if text == "" {
			continue
		}
		x, err := strconv.Atoi(text)
		if err != nil || x < lo || x > hi {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("%s: want a whole number from %d to %d", name, lo, hi))
			return nil, false
		}
		list[i] = x
	}
	return list, true
}

// series answers with the numbers of ?from= (exclusive) to ?to= in at most ?points=.
func (s *Server) series(w http.ResponseWriter, r *http.Request) {
	n, ok := wholes(w, r, 0, mostSteps, []string{"from", "to", "points"}, 0, mostSteps, 1000)
	if ok && n[0] > n[1] {
		refuse(w, http.StatusBadRequest, "from: want a step before to")
	} else if ok {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(s.o.State.Series(n[0], n[1], min(max(1, n[2]), mostSeries)))
	}
}

// events follows the run as server-sent events, one a second at most, and one at its end.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	b := s.of(r)
	if !s.enter(b) {
		refuse(w, http.StatusServiceUnavailable, fmt.Sprintf("%d pages already follow this run", mostPages))
		return
	}
	defer s.leave(b)
	after, ok := wholes(w, r, 0, mostSteps, []string{"after"}, 0)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	f := follower{state: s.o.State, step: after[0], eval: after[0] - 1} // an evaluation of the page's last step may have ended since
	tick := time.NewTicker(follow)
	defer tick.Stop()
	for quiet, last := 0, false; ; {
		text := f.next()
		if quiet++; text != "" || quiet >= 15 { // or a comment that keeps the connection alive
			quiet = 0
			_ = out.SetWriteDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.WriteString(w, text+":\n\n"); err != nil || out.Flush() != nil {
				return
			}
		}
		if last {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			last = true
		}
	}
}

func (s *Server) enter(b *budget) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.pages == mostPages {
		return false
	}
	b.pages++
	return true
}

func (s *Server) leave(b *budget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.pages--
}

// save requests a checkpoint.
func (s *Server) save(w http.ResponseWriter, _ *http.Request) {
	if err := s.o.Save(); err != nil {
		refuse(w, http.StatusConflict, err.Error())
		return
	}
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, "a checkpoint will be written after the current step\n")
}

// trace answers with a trace of the next ?steps=, for ui.perfetto.dev.
func (s *Server) trace(w http.ResponseWriter, r *http.Request) {
	steps, ok := wholes(w, r, 1, mostTraced, []string{"steps"}, 3)
	if !ok {
		return
	}
	if !s.only(true) {
		refuse(w, http.StatusConflict, "another trace is being written")
		return
	}
	defer s.only(false)
	out := http.NewResponseController(w)
	_ = out.SetWriteDeadline(time.Now().Add(time.Hour))
	t, err := s.o.Trace(r.Context(), steps[0])
	if err != nil {
		if errors.Is(err, context.Canceled) {
			refuse(w, http.StatusServiceUnavailable, "the run ended before the trace")
			return
		}
		refuse(w, http.StatusConflict, err.Error())
		return
	}
	_ = out.SetWriteDeadline(time.Now().Add(5 * time.Minute))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Disposition", `attachment; filename="trace.json"`)
	_ = t.Write(w)
}

// only marks the beginning or the end of a request that must be the only one.
func (s *Server) only(begin bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if begin && s.busy {
		return false
	}
	s.busy = begin
	return true
}

// connections is a listener with a bounded number of open connections. When it is full, a new one
// replaces the oldest of those that have sent least: nothing, requests without the token, the token. Thus
// clients that send nothing shut out no others, and clients without the token none with it.
type connections struct {
	net.Listener
	mu   sync.Mutex
	open []*connection // in order of arrival
}

// connection is one of connections.
type connection struct {
	net.Conn
	of   *connections
	sent int // 1: an accepted request without the token, 2: one with it
}

func (l *connections) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, of: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) == mostConnections {
		worst := slices.MinFunc(l.open, func(a, b *connection) int { return a.sent - b.sent })
		if worst.sent == 2 {
			worst = c
		}
		_ = worst.Conn.Close()
		l.open = slices.DeleteFunc(l.open, func(x *connection) bool { return x == worst })
	}
	if len(l.open) < mostConnections {
		l.open = append(l.open, c)
	}
	return c, nil
}

func (c *connection) Close() error {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.open = slices.DeleteFunc(c.of.open, func(x *connection) bool { return x == c })
	return c.Conn.Close()
}

// keep protects the connection of a request from being replaced by others that have sent less.
func keep(r *http.Request, token bool) {
	c := r.Context().Value(connectionKey{}).(*connection)
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.sent = 1
	if token {
		c.sent = 2
	}
}

// connectionKey is the key of a request's connection in its context.
type connectionKey struct{}
