package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/store"
	"zeroth/input/s3"
	"zeroth/input/s3/s3test"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// faulty makes a server fail as networks and servers do, one request in some.
type faulty struct {
	*s3test.Server
	kind string

	mu    sync.Mutex
	draw  *rand.Rand
	lists map[string]*httptest.ResponseRecorder // earlier answers, by URL
	off   bool
}

var faultKinds = []string{"cut", "500", "slow", "stale", "expired"}

// strike answers a request, or leaves it to the server.
func (f *faulty) strike(w http.ResponseWriter, r *http.Request) bool {
	f.mu.Lock()
	hit, off, n := f.draw.IntN(4) == 0, f.off, f.draw.Int64N(s3.PartBytes)
	f.mu.Unlock()
	listing := r.Method == http.MethodGet && r.URL.Query().Has("list-type")
	switch {
	case off:
	case f.kind == "cut" && hit && r.Method == http.MethodPut:
		_, _ = io.CopyN(io.Discard, r.Body, n)
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
func (f *faulty) replay(w http.ResponseWriter, r *http.Request, stale bool) bool {
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

// end ends the faults.
func (f *faulty) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.off = true
}

const remoteRoot = "s3://" + s3test.Bucket + "/run"

// content is the tensor of a step.
func content(step, n int) []byte {
	b := make([]byte, n)
	draw := rand.New(rand.NewPCG(uint64(step), 1))
	for i := 0; i < n; i += 64 {
		b[i] = byte(draw.Uint32())
	}
	return b
}

// saveRemote saves a checkpoint of a tensor of n bytes.
func saveRemote(h *Hold, step, n int) error {
	s, err := Begin(remoteRoot, int64(step), Options{Hold: h})
	if err != nil {
		return err
	}
	defer s.Abort()
	w := s.Writer(0)
	tensor := Tensor{Name: "x", Kind: Master, DType: safetensors.U8, Shape: []int{n}}
	if err := w.Put(tensor, shard.Range{Hi: n}, content(step, n), nil); err != nil {
		return errors.Join(err, w.Abort())
	}
	p, err := w.Finish()
	if err == nil {
		_, err = s.Commit(Commit{Parts: []PartFile{p}, State: []byte("{}")})
	}
	return err
}

// whole returns an error if some folder of a server has COMMIT, but not all files of its manifest.
func whole(s *s3test.Server) error {
	sizes, contents := s.Snapshot()
	for key := range sizes {
		dir, ok := strings.CutSuffix(key, "/"+commitName)
		if !ok {
			continue
		}
		var m struct {
			Files []struct {
				Name  string
				Bytes int64
			}
		}
		b, err := contents(dir + "/" + manifestName)
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

// While requests fail, checkpoints are saved, pruned and, by the runs after crashes, uploaded: no half
// checkpoint is ever visible, and in the end the newest are in object storage, with their bytes.
func TestRemoteFaults(t *testing.T) {
	for i := range nightly.Of(1, 100) {
		kind := faultKinds[i%len(faultKinds)]
		t.Run(fmt.Sprintf("%d-%s", i, kind), func(t *testing.T) { remoteFaults(t, kind, uint64(i)) })
	}
}

func remoteFaults(t *testing.T, kind string, seed uint64) {
	f := &faulty{Server: s3test.Serve(t), kind: kind, draw: rand.New(rand.NewPCG(seed, 2)), lists: map[string]*httptest.ResponseRecorder{}}
	f.Fail(f.strike)
	looks, stop := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	looking.Go(func() {
		for looks.Err() == nil {
			if err := whole(f.Server); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	defer looking.Wait()
	defer stop()
	dir, draw := t.TempDir(), rand.New(rand.NewPCG(seed, 3))
	step := 0
	for life := range 3 {
		h, m := openRemote(t, dir)
		for range 3 {
			step++
			n := 1000
			if draw.IntN(4) == 0 {
				n = s3.PartBytes + 1000
			}
			if err := saveRemote(h, step, n); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Prune(Keep{Last: 2}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(draw.IntN(20)) * time.Millisecond)
		}
		if life == 2 {
			f.end()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := m.Flush(ctx); err != nil {
				t.Error(err)
			}
			cancel()
		}
		if err := errors.Join(h.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	}
	list, err := List(remoteRoot)
	if err != nil {
		t.Fatal(err)
	}
	list = slices.DeleteFunc(list, func(e Entry) bool { return e.Status != Complete })
	if len(list) != 2 || list[0].Step != 8 || list[1].Step != 9 {
		t.Fatalf("%+v", list)
	}
	for _, e := range list {
		c, err := Open(e.Path)
		if err != nil {
			t.Fatal(err)
		}
		n := c.Tensors[0].Shape[0]
		got := make([]byte, n)
		if err := c.Read("x", Master, shard.Range{Hi: n}, got); err != nil || !bytes.Equal(got, content(int(e.Step), n)) {
			t.Errorf("step %d: other bytes, %v", e.Step, err)
		}
		c.Close()
	}
}

// openRemote opens the folder of a run, again if the start fails, as a supervisor would.
func openRemote(t *testing.T, dir string) (*Hold, *store.Mirror) {
	t.Helper()
	for {
		m, err := store.Use(remoteRoot, store.Options{Local: dir})
		if err != nil {
			t.Fatal(err)
		}
		h, err := HoldFolder(store.Files{}, remoteRoot)
		if err == nil {
			return h, m
		}
		t.Log(err)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}
