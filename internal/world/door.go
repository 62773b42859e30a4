package world

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strconv"
	"time"

	"zeroth/collective"
	"zeroth/collective/member"
	"zeroth/collective/rendezvous"
	"zeroth/collective/socket"
)

// A process that comes back asks any process of the run. On each host, one process listens at the ports of process 0
// (the door); if it is lost, another one takes its place. The answer contains where all others accept
// data connections, and what the processes said to each other when they began, so that the newcomer can prepare
// like them, alone.

// request is the question of a process that comes back.
type request struct {
	Place  int  `json:"place"`  // its number in the first world
	Beyond int  `json:"beyond"` // its seat has to be larger
	Looks  bool `json:"looks"`  // it has a seat, and only wants to know who else waits
}

// answer is the answer of a process of the run.
type answer struct {
	Why     string           `json:"why"`  // it cannot join now; empty: it can
	Over    bool             `json:"over"` // nor later
	Session string           `json:"session"`
	Seat    int              `json:"seat"` // of the newcomer
	View    member.View      `json:"view"`
	Seated  []seated         `json:"seated"` // all of the view, and the last ones of other places
	Waiting []seated         `json:"waiting"`
	Said    []entry          `json:"said"`
	Sums    string           `json:"sums"` // see World.addsUp
	Links   collective.Links `json:"links"`
}

// seated is the process of a seat.
type seated struct {
	Seat   int               `json:"seat"`
	Member rendezvous.Member `json:"member"`
}

// entry is what processes have shared, or the facts that they have agreed on.
type entry struct {
	Shared string            `json:"shared"`
	Facts  []rendezvous.Fact `json:"facts"`
	Agreed bool              `json:"agreed"`
}

// mostAnswer is the longest answer or request, in bytes.
const mostAnswer = 16 << 20

// put writes a value to a connection, and get reads one.
func put(c net.Conn, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = c.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

func get(c net.Conn, v any) error {
	var n [4]byte
	if _, err := io.ReadFull(c, n[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(n[:]) > mostAnswer {
		return errors.New("an answer that is too long")
	}
	body := make([]byte, binary.LittleEndian.Uint32(n[:]))
	if _, err := io.ReadFull(c, body); err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// doorTime limits an answer.
const doorTime = 5 * time.Second

// openDoor listens at the ports of process 0, unless another process of this host does. The caller holds the crew's
// mu.
func (w *World) openDoor() {
	if w.door != nil || time.Since(w.tried) < time.Second {
		return
	}
	w.tried = time.Now()
	var ln net.Listener
	if w.kept != nil && w.kept.SetDeadline(time.Time{}) == nil {
		ln = w.kept
	}
	for _, port := range w.cfg.Ports {
		if ln == nil {
			ln, _ = net.Listen("tcp", net.JoinHostPort(w.here, strconv.Itoa(port))) // another process does
		}
	}
	if ln == nil {
		return
	}
	w.door = rendezvous.NewDoor(rendezvous.Over(ln, w.cfg.TLS), w.cfg.Token, w.joinName(), w.crew.places, nil)
	go w.serve(w.door)
}

// joinName is the purpose of connections to a door.
func (w *World) joinName() string { return "join " + w.cfg.Run }

// serve answers newcomers until the world is closed.
func (w *World) serve(d *rendezvous.Door) {
	for {
		g, err := d.Next(w.life)
		if err != nil {
			return
		}
		go func() {
			defer g.Close()
			_ = g.SetDeadline(time.Now().Add(doorTime))
			var q request
			if get(g, &q) == nil {
				_ = put(g, w.crew.answer(q)) // it asks again
			}
		}()
	}
}

// answer answers a newcomer.
func (c *crew) answer(q request) (a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.try != nil:
		return answer{Why: "this process has not joined either"}
	case q.Place < 0 || q.Place >= c.places:
		return answer{Why: fmt.Sprintf("there is no process %d in a world of %d", q.Place, c.places), Over: true}
	case c.left:
		return answer{Why: "the run has done its last step", Over: true}
	case !c.admits || c.machine == nil:
		return answer{Why: "the run does not train yet"}
	}
	a.View = c.machine.View()
	if at := slices.IndexFunc(a.View.Nodes, func(s int) bool { return s%c.places == q.Place && !c.machine.Lost(s) }); at >= 0 {
		return answer{Why: fmt.Sprintf("process %d has not been lost", q.Place)}
	}
	for seat, m := range c.members {
		c.highest = max(c.highest, seat)
		switch s := (seated{seat, m}); {
		case c.knocking[seat]:
			a.Waiting = append(a.Waiting, s)
		default:
			a.Seated = append(a.Seated, s)
		}
	}
	if !q.Looks {
		c.highest = (max(c.highest, q.Beyond)/c.places+1)*c.places + q.Place
	}
	a.Session, a.Seat, a.Said, a.Sums, a.Links = c.session, c.highest, c.said, c.w.addsUp(), c.w.links
	return a
}

// record remembers what all processes have said to each other, for newcomers.
func (c *crew) record(e entry) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.admits {
		c.said = append(c.said, e)
	}
}

// factsOf returns a digest of what processes have said.
func factsOf(said []entry) string {
	body, err := json.Marshal(said)
	if err != nil {
		panic(err) // strings
	}
	return fmt.Sprintf("%x", sha256.Sum256(body))
}

// lobby is the channel on which newcomers introduce themselves.
const lobby = math.MaxUint32

// introduction is the first word of a newcomer to each process, and the answer to it.
type introduction struct {
	Member rendezvous.Member `json:"member"`
	Facts  string            `json:"facts"` // digest of what its processes have agreed on
	Answer bool              `json:"answer"`
	Why    string            `json:"why"` // of an answer: why the newcomer is refused
}

// admitLate adds the connections of newcomers.
func (w *World) admitLate(d *rendezvous.Door) {
	for {
		g, err := d.Next(w.life)
		if err != nil {
			return
		}
		w.mu.Lock()
		n, _ := w.net.(*socket.Net)
		w.mu.Unlock()
		if n == nil || g.Process < w.crew.places {
			_ = g.Close() // a process of the first world has its connection
			continue
		}
		giveUpAfter(g.Conn, w.cfg.DeadAfter)
		n.AddNew(g.Process, g.Conn)
	}
}

// hearIntroduction processes a word of the lobby.
func (c *crew) hearIntroduction(seat int, word []byte) {
	var i introduction
	if err := json.Unmarshal(word, &i); err != nil {
		c.w.note(fmt.Sprintf("process %d introduces itself unreadably: %v", seat%c.places, err))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.w.net.(*socket.Net)
	if i.Answer {
		c.try.hear(seat, i.Why)
		return
	}
	reply := introduction{Answer: true, Why: c.objection(seat, i)}
	if reply.Why == "" {
		c.members[seat], c.knocking[seat] = i.Member, true
		c.try.hear(seat, "")
	} else {
		c.w.note(fmt.Sprintf("process %d cannot join: %s", seat%c.places, reply.Why))
	}
	n.Tell(seat, lobby, must(reply))
}

func must(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // it consists of strings and numbers
	}
	return body
}

// objection says why a newcomer cannot join, or returns "".
func (c *crew) objection(seat int, i introduction) string {
	said := c.said
	if c.try != nil {
		said = c.try.said
	}
	switch {
	case c.left:
		return "the run has done its last step"
	case seat < c.places || i.Member.Process != seat%c.places:
		return "it claims the place of another process"
	case i.Facts != factsOf(said):
		return "its job, data or version is another"
	}
	return ""
}

// hold limits how long a view with newcomers may take: if it lasts, because one of them is slow, they are given
// up.
func (c *crew) hold(v member.View, most time.Duration, over func(now member.View) bool) {
	if len(v.Guests) == 0 || slices.Contains(v.Guests, c.seat) {
		return
	}
	time.AfterFunc(most, func() {
		c.mu.Lock()
		done := c.machine == nil || over(c.machine.View())
		c.mu.Unlock()
		for _, g := range v.Guests {
			if !done {
				c.w.note(fmt.Sprintf("process %d has not joined within %v: going on without it", g%c.places, most))
				c.w.lose(g)
			}
		}
	})
}

// keptListener is process 0's, which remains open after all processes have joined.
type keptListener struct{ *net.TCPListener }

// Close ends Accept.
func (l keptListener) Close() error { return l.SetDeadline(time.Unix(1, 0)) }

// keep returns a listener that openDoor can use after it is closed, if newcomers may join.
func (w *World) keep(ln net.Listener) net.Listener {
	t, ok := ln.(*net.TCPListener)
	if !ok || !w.cfg.Joins {
		return ln
	}
	w.kept = t
	return keptListener{t}
}

// admit lets newcomers connect.
func (w *World) admit(doors []*rendezvous.Door) {
	w.doors = doors
	for _, d := range doors {
		go w.admitLate(d)
	}
}

// closeDoors ends what newcomers need.
func (w *World) closeDoors() {
	if w.crew != nil {
		w.crew.mu.Lock()
		door := w.door
		w.crew.mu.Unlock()
		if door != nil {
			door.Close()
		}
	}
	for _, d := range w.doors {
		d.Close()
	}
	if w.kept != nil {
		_ = w.kept.Close()
	}
}
