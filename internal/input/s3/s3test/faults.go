package s3test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// Faults makes a server fail as networks and servers do, one request in four.
type Faults struct {
	*Server
	kind string

	mu    sync.Mutex
	draw  *rand.Rand
	lists map[string]*httptest.ResponseRecorder // earlier answers, by URL
	off   bool
}

// Kinds lists the kinds of faults: connections that break while a request is sent, or before its
// answer, errors of the server, slow answers, lists that are older than the last change, and
// credentials that are refused.
var Kinds = []string{"cut", "lost", "500", "slow", "stale", "expired"}

// Disturb makes a server fail until End. The requests that fail are drawn with a seed.
func (s *Server) Disturb(kind string, seed uint64) *Faults {
	f := &Faults{Server: s, kind: kind, draw: rand.New(rand.NewPCG(seed, 2)), lists: map[string]*httptest.ResponseRecorder{}}
	s.Fail(f.strike)
	return f
}

// mostCut is the greatest number of bytes of a request that arrive before its connection breaks.
const mostCut = 16 << 20

// strike answers a request, or leaves it to the server.
func (f *Faults) strike(w http.ResponseWriter, r *http.Request) bool {
	f.mu.Lock()
	hit, off, n := f.draw.IntN(4) == 0, f.off, f.draw.Int64N(mostCut)
	f.mu.Unlock()
	listing := r.Method == http.MethodGet && r.URL.Query().Has("list-type")
	switch {
	case off:
	case f.kind == "cut" && hit && r.Method == http.MethodPut:
		_, _ = io.CopyN(io.Discard, r.Body, n)
		panic(http.ErrAbortHandler)
	case f.kind == "lost" && hit:
		f.Inner.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case f.kind == "500" && hit:
		w.WriteHeader(http.StatusInternalServerError)
		return true
	case f.kind == "slow" && hit:
		time.Sleep(20 * time.Millisecond)
	case f.kind == "expired" && hit:
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>")
		return true
	case f.kind == "stale" && listing:
		return f.replay(w, r, hit)
	}
	return false
}

// replay answers a listing as it was the last time.
func (f *Faults) replay(w http.ResponseWriter, r *http.Request, stale bool) bool {
	f.mu.Lock()
	old := f.lists[r.URL.String()]
	f.mu.Unlock()
	now := httptest.NewRecorder()
	f.Inner.ServeHTTP(now, r)
	f.mu.Lock()
	f.lists[r.URL.String()] = now
	f.mu.Unlock()
	if !stale || old == nil {
		old = now
	}
	for key, values := range old.Header() {
		w.Header()[key] = values
	}
	w.WriteHeader(old.Code)
	_, _ = w.Write(old.Body.Bytes())
	return true
}

// End ends the faults.
func (f *Faults) End() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.off = true
}

// Whole returns an error if some folder of checkpoints has COMMIT, but not all files of its manifest.
func (s *Server) Whole() error {
	sizes, contents := s.Snapshot()
	for key := range sizes {
		dir, ok := strings.CutSuffix(key, "/"+"COMMIT")
		if !ok {
			continue
		}
		var m struct {
			Files []struct {
				Name  string
				Bytes int64
			}
		}
		if _, ok := sizes[dir+"/MANIFEST.json"]; !ok {
			return fmt.Errorf("%s is committed, but has no manifest", dir)
		}
		b, err := contents(dir + "/MANIFEST.json")
		if err == nil && len(b) > 0 {
			err = json.Unmarshal(b, &m)
		}
		if err != nil || len(b) == 0 {
			continue // deleted since
		}
		for _, f := range m.Files {
			if size, ok := sizes[dir+"/"+f.Name]; !ok || size != f.Bytes {
				return fmt.Errorf("%s is committed, but %s has %d bytes, want %d", dir, f.Name, size, f.Bytes)
			}
		}
	}
	return nil
}

// Watch calls Whole again and again until stop is called.
func (s *Server) Watch(t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := s.Whole(); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
