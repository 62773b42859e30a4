package socket

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"
	"time"

	"zeroth/collective"
)

// A Net outlives the groups that it was made with: when processes are lost, Halt ends the wires of
// an epoch and Reform opens those of the next one, over the same connections. Processes agree in
// between by words, which need no groups.

// groupBits is the number of bits of a group's number; the ones above count epochs, modulo 256. Frames of
// an earlier epoch find ports that have ended, as long as those are kept: for keptEpochs.
const groupBits, keptEpochs = 24, 16

// Reform opens the wires of the groups of an epoch. The wires of earlier ones must have ended. host returns the
// number of a process's host.
func (n *Net) Reform(epoch int, groups [][]int, host func(process int) int) {
	if len(groups) >= 1<<groupBits {
		panic(fmt.Sprintf("socket: %d groups", len(groups)))
	}
	if n.unread(0) {
		for _, l := range n.connected() {
			if !l.hears() {
				l.theirs.close()
			}
		}
	}
	next := maps.Clone(n.ports())
	maps.DeleteFunc(next, func(e end, _ *port) bool { return (epoch-e.group>>groupBits)&255 > keptEpochs })
	n.base = epoch & 255 << groupBits
	for g, names := range groups {
		for r, name := range names {
			if n.processOf(name) == n.cfg.Process {
				p := newPort(n, n.base+g, r, names)
				for _, name := range names {
					p.hosts = append(p.hosts, host(n.processOf(name)))
				}
				next[end{n.base + g, r}] = p
			}
		}
	}
	n.now.Store(&next)
}

// Halt ends every wire because of the loss of a process, but keeps the connections.
func (n *Net) Halt(process int) {
	for _, p := range n.ports() {
		p.abandon(n.lost(process), true)
	}
}

// WordLen is the maximum length of a word in bytes.
const WordLen = 64 << 10

// Tell sends a word to a process, if it is connected. The word must not change afterwards.
func (n *Net) Tell(process int, channel uint32, word []byte) {
	if len(word) > WordLen {
		panic(fmt.Sprintf("socket: a word of %d bytes", len(word)))
	}
	n.mu.Lock()
	l := n.links[process]
	n.mu.Unlock()
	if l != nil {
		l.push(out{kind: kindWord, reason: word, channel: channel})
	}
}

func (l *link) readWord(h header) error {
	word := make([]byte, h.n)
	if _, err := io.ReadFull(l.in, word); err != nil {
		return err
	}
	if l.sums {
		sum, err := l.in.Peek(sumLen)
		if err == nil {
			err = compare(update(0, word), sum)
		}
		if _, wrong := l.in.Discard(len(sum)); err != nil || wrong != nil {
			return l.damaged(errors.Join(err, wrong), header{})
		}
	}
	if h.n > 0 {
		l.net.cfg.Told(l.process, h.channel, word)
	}
	return nil
}

// beat keeps the connections alive, and closes those of silent processes. It ignores the time in
// which this process was stopped.
func (n *Net) beat() {
	awake := collective.Awake{Period: n.cfg.Heartbeat / 4}
	t := time.NewTicker(awake.Period)
	defer t.Stop()
	asleep := map[*link]time.Duration{} // awake.Lost when the link was silent for less than a period
	for i := 1; ; i++ {
		select {
		case <-t.C:
		case <-n.stopped:
			return
		}
		lost := awake.Lost()
		for _, l := range n.connected() {
			silent := time.Since(time.Unix(0, l.heard.Load()))
			if silent < n.cfg.Heartbeat {
				asleep[l] = lost
			}
			if silent-(lost-asleep[l]) > n.cfg.DeadAfter {
				l.fail(fmt.Errorf("silent for %v", n.cfg.DeadAfter))
			} else if i%4 == 0 {
				l.push(out{kind: kindWord})
			}
		}
	}
}

// Conn is a connection to a process that is carried by words of a channel. Its owner passes it the
// words of the process, and ends it when the process is lost.
type Conn struct {
	net.Conn // for the user, who closes it
	far      net.Conn
	words    chan []byte
	over     chan struct{}
	once     sync.Once
}

// Conn opens this end of a connection to a process.
func (n *Net) Conn(process int, channel uint32) *Conn {
	near, far := net.Pipe()
	c := &Conn{Conn: near, far: far, words: make(chan []byte, 256), over: make(chan struct{})}
	go func() { // ends with either end of the pipe
		b := make([]byte, WordLen)
		for {
			k, err := far.Read(b)
			if err != nil {
				return
			}
			n.Tell(process, channel, bytes.Clone(b[:k]))
		}
	}()
	go func() {
		for {
			select {
			case w := <-c.words:
				_, _ = far.Write(w) // an error means that the user has closed it
			case <-c.over:
				return
			}
		}
	}()
	return c
}

// Put passes a word on to the user. A user that does not read loses the connection.
func (c *Conn) Put(word []byte) {
	select {
	case c.words <- word:
	default:
		c.End()
	}
}

// End ends the connection for the user.
func (c *Conn) End() {
	c.once.Do(func() { close(c.over) })
	_ = c.far.Close()
}
