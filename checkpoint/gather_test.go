package checkpoint

import (
	"errors"
	"sync"
)

// gather exchanges messages between goroutines that act as ranks.
type gather struct {
	wg    sync.WaitGroup
	mu    sync.Mutex
	cond  *sync.Cond
	world int
	round int
	words [][]byte
	last  [][]byte // of the last round
	n     int
	dead  bool
}

var errDead = errors.New("a peer is dead")

func newGather(world int) *gather {
	g := &gather{world: world, words: make([][]byte, world)}
	g.cond = sync.NewCond(&g.mu)
	return g
}

func (g *gather) rank(r int) Rank {
	return Rank{Rank: r, World: g.world, Gather: func(mine []byte) ([][]byte, error) { return g.move(r, mine) }}
}

func (g *gather) move(r int, mine []byte) ([][]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	round := g.round
	g.words[r] = mine
	if g.n++; g.n == g.world {
		g.last, g.words, g.n = g.words, make([][]byte, g.world), 0
		g.round++
		g.cond.Broadcast()
	}
	for g.round == round && !g.dead {
		g.cond.Wait()
	}
	if g.round == round {
		return nil, errDead
	}
	return g.last, nil
}

// die makes a rank fail instead of joining its next gather.
func (g *gather) die() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead = true
	g.cond.Broadcast()
}
