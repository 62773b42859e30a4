package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"zeroth/checkpoint/vfs"
	"zeroth/internal/input"
	"zeroth/internal/input/s3"
	"zeroth/internal/input/s3/s3test"
	"zeroth/tests/nightly"
)

const root = "s3://" + s3test.Bucket + "/a"

func use(t *testing.T, o Options) *Mirror {
	t.Helper()
	if o.Local == "" {
		o.Local = t.TempDir()
	}
	o.Note = func(s string) { t.Log(s) }
	m, err := Use(root, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func begin(t *testing.T, m *Mirror) {
	t.Helper()
	if err := m.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.Start()
}

// save commits a folder as a save does.
func save(t *testing.T, name, seq string) {
	t.Helper()
	f, tmp := Files{}, vfs.Join(root, ".tmp-"+name+"-0123456789abcdef")
	if err := f.Mkdir(tmp); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"data-00000-000.safetensors": "tensors", manifestName: `{"files": [{"name": "data-00000-000.safetensors", "bytes": 7}]}`, commitName: "zeroth-checkpoint 1 seq " + seq + " step 1\n"} {
		if err := vfs.WriteFile(f, vfs.Join(tmp, file), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Rename(tmp, vfs.Join(root, name)); err != nil {
		t.Fatal(err)
	}
}

func flush(t *testing.T, m *Mirror) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := m.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	in, err := Files{}.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range in {
		if e.Name != ".lock" && e.Name != ownerName {
			out = append(out, e.Name)
		}
	}
	return out
}

func mine(keys []string) []string {
	return slices.DeleteFunc(keys, func(k string) bool { return strings.HasPrefix(k, "a/"+leasePrefix) })
}

// TestMirror checks that a saved checkpoint is visible on disk at once and uploaded with COMMIT
// last, that older copies are deleted from the disk, and that a deletion deletes COMMIT first.
func TestMirror(t *testing.T) {
	server := s3test.Serve(t)
	m := use(t, Options{})
	begin(t, m)
	server.Seen()
	save(t, "step-00000001", "1")
	flush(t, m)
	puts := slices.DeleteFunc(server.Seen(), func(s string) bool { return !strings.HasPrefix(s, "PUT /runs/a/step") })
	if len(puts) != 3 || puts[2] != "PUT /runs/a/step-00000001/COMMIT" {
		t.Errorf("%q", puts)
	}
	save(t, "step-00000002", "2")
	flush(t, m)
	if _, err := os.Stat(filepath.Join(m.local, "step-00000001")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the older copy is on disk (%v)", err)
	}
	if got := names(t, root); !slices.Equal(got, []string{"step-00000001", "step-00000002"}) {
		t.Errorf("%q", got)
	}
	if b, err := vfs.ReadFile(Files{}, root+"/step-00000001/data-00000-000.safetensors", 100); err != nil || string(b) != "tensors" {
		t.Errorf("%q, %v", b, err)
	}
	server.Seen()
	if err := (Files{}).Rename(root+"/step-00000001", root+"/.trash-step-00000001-0123456789abcdef"); err != nil {
		t.Fatal(err)
	}
	if got := names(t, root); !slices.Equal(got, []string{"step-00000002"}) {
		t.Errorf("%q", got)
	}
	flush(t, m)
	deletes := slices.DeleteFunc(server.Seen(), func(s string) bool { return !strings.HasPrefix(s, "DELETE /runs/a/step") })
	if len(deletes) != 3 || deletes[0] != "DELETE /runs/a/step-00000001/COMMIT" || len(mine(server.Keys(t))) != 3 {
		t.Errorf("%q, %q", deletes, server.Keys(t))
	}
}

// TestAltered checks that a checkpoint altered on disk is uploaded once, never committed, and
// reported at the end, and that later ones are uploaded, except those that refer to an altered
// base.
func TestAltered(t *testing.T) {
	for bad, after := range map[string]int{"step-00000001": 1, "base-0123456789abcdef": 0} {
		t.Run(bad, func(t *testing.T) {
			server := s3test.Serve(t)
			m := use(t, Options{})
			if err := m.Begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			save(t, bad, "1")
			save(t, "step-00000002", "2")
			listed := `{"files": [{"name": "data-00000-000.safetensors", "bytes": 7, "crc32c": "01234567"}]}`
			if err := os.WriteFile(filepath.Join(m.local, bad, manifestName), []byte(listed), 0o666); err != nil {
				t.Fatal(err)
			}
			m.Start()
			for range 3 {
				if err := m.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), bad+"/data-00000-000.safetensors") || !strings.Contains(err.Error(), "delete the folder there") {
					t.Errorf("%v", err)
				}
			}
			commits := slices.DeleteFunc(server.Keys(t), func(k string) bool { return !strings.HasSuffix(k, commitName) })
			puts := slices.DeleteFunc(server.Seen(), func(s string) bool { return !strings.HasPrefix(s, "PUT /runs/a/"+bad+"/data") })
			if len(commits) != after || slices.Contains(commits, "a/"+bad+"/"+commitName) || len(puts) != 1 {
				t.Errorf("committed %q, requests %q", commits, puts)
			}
			if err := os.RemoveAll(filepath.Join(m.local, bad)); err != nil {
				t.Fatal(err)
			}
			flush(t, m)
			if commits := slices.DeleteFunc(server.Keys(t), func(k string) bool { return !strings.HasSuffix(k, commitName) }); len(commits) != 1 {
				t.Errorf("without the folder, committed %q", commits)
			}
		})
	}
}

// TestPrunedWhileCommitted checks that a checkpoint pruned while its COMMIT is being written, with
// or without an answer, never exists in part.
func TestPrunedWhileCommitted(t *testing.T) {
	for _, refused := range []bool{false, true} {
		server := s3test.Serve(t)
		m := use(t, Options{})
		begin(t, m)
		server.Fail(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/step-00000001/COMMIT") {
				if err := server.Whole(); err != nil {
					t.Error(err)
				}
				return false
			}
			if err := (Files{}).Rename(root+"/step-00000001", root+"/.trash-step-00000001-0123456789abcdef"); err != nil {
				t.Error(err)
			}
			if refused {
				server.Inner.ServeHTTP(httptest.NewRecorder(), r)
				w.WriteHeader(http.StatusForbidden)
			}
			return refused
		})
		save(t, "step-00000001", "1")
		flush(t, m)
		server.Fail(nil)
		if keys := mine(server.Keys(t)); len(keys) != 0 {
			t.Errorf("refused %v: %q", refused, keys)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A folder without COMMIT is temporary for everyone, and its objects can be deleted.
func TestHalf(t *testing.T) {
	server := s3test.Serve(t)
	server.Put(t, "a/step-00000001/data-00000-000.safetensors", []byte("half"))
	server.Put(t, "a/base-0123/state.json", []byte("half"))
	want := []string{".tmp-step-00000001" + nobody, ".trash-base-0123" + nobody}
	if got := names(t, root); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if _, err := (Files{}).Stat(root + "/step-00000001"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half a checkpoint is found (%v)", err)
	}
	lock, err := Files{}.Lock(root + "/.lock")
	if err != nil {
		t.Fatal(err)
	}
	if err := (Files{}).Rename(root+"/"+want[0], root+"/.trash-"+want[0]+"-0123456789abcdef"); err != nil {
		t.Error(err)
	}
	if err := (Files{}).Remove(root + "/" + want[1] + "/state.json"); err != nil {
		t.Error(err)
	}
	if err := lock.Close(); err != nil || len(mine(server.Keys(t))) != 0 {
		t.Errorf("%v, %q", err, server.Keys(t))
	}
}

// TestNetworkLoss checks that saves continue without the network and are uploaded in order when it
// returns, and that after a crash another process of the host uploads the rest.
func TestNetworkLoss(t *testing.T) {
	server := s3test.Serve(t)
	dir := t.TempDir()
	m := use(t, Options{Local: dir})
	begin(t, m)
	server.Fail(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
	save(t, "base-0123", "1")
	save(t, "step-00000001", "1")
	save(t, "step-00000002", "2")
	if got := names(t, root); len(got) != 3 {
		t.Errorf("%q", got)
	}
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if err := m.Flush(ctx); err == nil || !strings.Contains(err.Error(), dir) {
		t.Error(err)
	}
	m.stop() // a crash
	m.work.Wait()
	m.lease = nil
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	server.Fail(nil)
	server.Seen()
	m = use(t, Options{Local: dir})
	begin(t, m)
	flush(t, m)
	var commits []string
	for _, s := range server.Seen() {
		if strings.HasPrefix(s, "PUT") && strings.HasSuffix(s, commitName) {
			commits = append(commits, s)
		}
	}
	if want := []string{"PUT /runs/a/base-0123/COMMIT", "PUT /runs/a/step-00000001/COMMIT", "PUT /runs/a/step-00000002/COMMIT"}; !slices.Equal(commits, want) {
		t.Errorf("%q", commits)
	}
}

// apart makes the folders of two hosts, each with its own part of a checkpoint.
func apart(t *testing.T, crc string) (hosts [2]string) {
	t.Helper()
	mark := "zeroth-checkpoint 1 seq 1 step 1\n"
	manifest := `{"files": [{"name": "data-00000-000.safetensors", "bytes": 4}, {"name": "data-00001-000.safetensors", "bytes": 5, "crc32c": "` + crc + `"}]}`
	for i, data := range []string{"host", "other"} {
		hosts[i] = t.TempDir()
		dir := filepath.Join(hosts[i], "step-00000001")
		err := os.Mkdir(dir, 0o777)
		for name, text := range map[string]string{"data-0000" + string(rune('0'+i)) + "-000.safetensors": data, manifestName: manifest, commitName: mark} {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return hosts
}

// follow begins the mirror of a host that leaves COMMIT to another.
func follow(t *testing.T, local string) *Mirror {
	t.Helper()
	m, err := newMirror(root)
	if err != nil {
		t.Fatal(err)
	}
	m.Options, m.local = Options{Apart: true, Follow: true, Note: func(s string) { t.Log(s) }}, local
	begin(t, m)
	t.Cleanup(func() { m.stop(); m.work.Wait() })
	return m
}

// TestApart checks that hosts that share nothing commit when all have uploaded.
func TestApart(t *testing.T) {
	server := s3test.Serve(t)
	hosts := apart(t, "b938dae4")
	m := use(t, Options{Local: hosts[0], Apart: true})
	begin(t, m)
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if err := m.Flush(ctx); err == nil || slices.Contains(server.Keys(t), "a/step-00000001/COMMIT") {
		t.Errorf("committed without the other host: %v", err)
	}
	other := follow(t, hosts[1])
	flush(t, m)
	flush(t, other)
	if keys := mine(server.Keys(t)); len(keys) != 4 {
		t.Errorf("%q", keys)
	}
}

// TestApartDamage checks that a part altered on a host's disk is not uploaded, so the leader cannot
// commit it, and that a part deleted after its upload is uploaded again.
func TestApartDamage(t *testing.T) {
	const part, commit = "a/step-00000001/data-00001-000.safetensors", "a/step-00000001/COMMIT"
	server := s3test.Serve(t)
	other := follow(t, apart(t, "364b3fb7")[1])
	if err := other.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "the disk has altered it") || slices.Contains(server.Keys(t), part) {
		t.Errorf("%v, %q", err, server.Keys(t))
	}
	hosts := apart(t, "b938dae4")
	other = follow(t, hosts[1])
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if err := other.Flush(ctx); err == nil {
		t.Error("there is no leader")
	}
	if err := other.c.Remove(t.Context(), s3test.Bucket, part); err != nil {
		t.Fatal(err)
	}
	m := use(t, Options{Local: hosts[0], Apart: true})
	begin(t, m)
	flush(t, m)
	flush(t, other)
	if keys := server.Keys(t); !slices.Contains(keys, part) || !slices.Contains(keys, commit) {
		t.Errorf("%q", keys)
	}
}

// TestLease checks that a second holder is refused if the first renews its lease meanwhile, and
// takes over if it expires, of which the first is informed.
func TestLease(t *testing.T) {
	nightly.Long(t)
	defer func(a, b time.Duration) { term, poll = a, b }(term, poll)
	term, poll = time.Hour, time.Millisecond
	s3test.Serve(t)
	m := use(t, Options{})
	begin(t, m)
	second, err := newMirror(root)
	if err != nil {
		t.Fatal(err)
	}
	second.Note, second.local = func(s string) { t.Log(s) }, t.TempDir()
	done := make(chan error)
	go func() { done <- second.Begin(t.Context()) }()
	for waiting := true; waiting; {
		if err := m.lease.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err = <-done:
			waiting = false
		default:
		}
	}
	var held *vfs.Locked
	if !errors.As(err, &held) || held.PID != os.Getpid() {
		t.Fatalf("two holders: %v", err)
	}
	term = 0
	begin(t, second)
	if err := m.lease.renew(t.Context()); !errors.As(err, new(*taken)) {
		t.Errorf("renewed: %v", err)
	}
	if err := second.lease.release(); err != nil {
		t.Error(err)
	}
	second.stop()
	second.work.Wait()
}

// Servers that ignore conditions are refused.
func TestProbe(t *testing.T) {
	server := s3test.Serve(t)
	server.Fail(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		w.Header().Set("ETag", `"1"`)
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		server.Put(t, strings.TrimPrefix(r.URL.Path, "/runs/"), b)
		return true
	})
	m := use(t, Options{})
	if err := m.Begin(t.Context()); !input.IsInput(err) || !strings.Contains(err.Error(), "If-None-Match") {
		t.Error(err)
	}
	if keys := server.Keys(t); len(keys) != 0 {
		t.Errorf("%q", keys)
	}
}

// TestOther checks that names on disk are passed to the machine's file system, and that objects are
// not written in place.
func TestOther(t *testing.T) {
	server := s3test.Serve(t)
	server.Put(t, "x", []byte("words"))
	dir := t.TempDir()
	if err := vfs.WriteFile(Files{}, filepath.Join(dir, "a"), []byte("b")); err != nil {
		t.Error(err)
	}
	if _, err := (Files{}).Create("s3://runs/y"); err == nil {
		t.Error("an object was created")
	}
	f, err := Files{}.Open("s3://runs/x")
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	if n, err := f.ReadAt(b, 2); n != 3 || err != io.EOF || string(b[:3]) != "rds" {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := f.WriteAt(b, 0); err == nil {
		t.Error("an object was written to")
	}
	server.Put(t, "x", []byte("other"))
	if n, err := f.ReadAt(b, 2); err == io.EOF || !strings.Contains(fmt.Sprint(err), "replaced") {
		t.Errorf("of another version %d bytes, %v", n, err)
	}
}

// TestRefused checks that a finished run ends, with the folder on disk in its error, if the server goes on
// refusing requests, and that it goes on, with notices, if the server only fails.
func TestRefused(t *testing.T) {
	nightly.Long(t)
	a, b, c, d, e := mostRefused, noteEvery, pause, minio.DefaultRetryUnit, minio.DefaultRetryCap
	defer func() { mostRefused, noteEvery, pause, minio.DefaultRetryUnit, minio.DefaultRetryCap = a, b, c, d, e }()
	mostRefused, noteEvery, pause = 50*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
	minio.DefaultRetryUnit, minio.DefaultRetryCap = time.Millisecond, time.Millisecond
	for code, body := range map[int]string{401: "", 403: "", 404: "NoSuchBucket", 405: "", 400: "XMinioAdminBucketQuotaExceeded", 507: "XMinioStorageFull", 503: "", 429: ""} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			server := s3test.Serve(t)
			m := use(t, Options{})
			waits := make(chan string, 1000)
			m.Note = func(s string) { waits <- s }
			begin(t, m)
			server.Fail(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPut {
					return false
				}
				w.WriteHeader(code)
				fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", body)
				return true
			})
			save(t, "step-00000001", "1")
			transient := code == 503 || code == 429
			if !transient {
				if err := m.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), m.local) || input.IsInput(err) {
					t.Error(err)
				}
				return
			}
			done := make(chan error)
			go func() { done <- m.Flush(t.Context()) }()
			for still := 0; still < 1; {
				if strings.HasPrefix(<-waits, "still waiting for uploads to "+root+": ") {
					still++
				}
			}
			server.Fail(nil)
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCommandWithoutServer checks that a command ends if the server goes on failing, and does not name its
// temporary folder.
func TestCommandWithoutServer(t *testing.T) {
	defer func(a, b, c time.Duration) { mostRefused, minio.DefaultRetryUnit, minio.DefaultRetryCap = a, b, c }(mostRefused, minio.DefaultRetryUnit, minio.DefaultRetryCap)
	mostRefused, minio.DefaultRetryUnit, minio.DefaultRetryCap = 50*time.Millisecond, time.Millisecond, time.Millisecond
	server := s3test.Serve(t)
	server.Put(t, "a/step-00000001/COMMIT", []byte("zeroth-checkpoint 1 seq 1 step 1\n"))
	lock, err := Files{}.Lock(root + "/.lock")
	if err != nil {
		t.Fatal(err)
	}
	server.Fail(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
	if err := (Files{}).Rename(root+"/step-00000001", root+"/.trash-step-00000001-0123456789abcdef"); err != nil {
		t.Error(err)
	}
	if err := lock.Close(); err == nil || !strings.Contains(err.Error(), "run the command again") || strings.Contains(err.Error(), "zeroth-s3-") {
		t.Error(err)
	}
}

// TestExpiredWhy checks that a lease that the server refuses to renew expires with its answer.
func TestExpiredWhy(t *testing.T) {
	defer func(d time.Duration) { term = d }(term)
	term = 0
	s3test.Serve(t)
	m := use(t, Options{})
	begin(t, m)
	m.lease.mu.Lock()
	m.lease.failed = fs.ErrPermission
	m.lease.mu.Unlock()
	if err := m.gate(); !s3.Lasting(err) {
		t.Error(err)
	}
}
