package collective

import (
	"sync"
	"time"
)

// Awake measures for how long this process did not run, because a signal, a frozen container or a
// sleeping machine stopped it: deadlines of peers move by that time. It must be asked at least once
// per Period; a question that comes later than the next one, too, means that nothing ran in between.
type Awake struct {
	Period time.Duration

	mu   sync.Mutex
	last time.Time // of the last question
	lost time.Duration
}

// Lost returns for how long the process did not run since the first call, to within two periods.
func (a *Awake) Lost() time.Duration { return a.lostAt(time.Now()) }

func (a *Awake) lostAt(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if gap := now.Sub(a.last); a.Period > 0 && !a.last.IsZero() && gap > 2*a.Period {
		a.lost += gap - a.Period
	}
	if now.After(a.last) {
		a.last = now
	}
	return a.lost
}
