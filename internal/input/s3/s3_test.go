package s3_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"zeroth/internal/input"
	"zeroth/internal/input/s3"
	"zeroth/internal/input/s3/s3test"
	"zeroth/tests/nightly"
)

func connect(t *testing.T) *s3.Client {
	c, err := s3.Connect()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func always() error { return nil }

// TestObjects checks that objects in one request and in parts read back as written, in every range,
// although requests fail and connections break.
func TestObjects(t *testing.T) {
	nightly.Long(t)
	server := s3test.Serve(t)
	c, ctx := connect(t), t.Context()
	var n atomic.Int64
	server.Fail(func(w http.ResponseWriter, r *http.Request) bool {
		switch i := n.Add(1); {
		case i%5 == 0:
			http.Error(w, "", http.StatusServiceUnavailable)
			return true
		case i%7 == 0:
			_, _ = io.CopyN(io.Discard, r.Body, 1000)
			panic(http.ErrAbortHandler)
		}
		return false
	})
	for _, size := range []int{0, 10, s3.PartBytes + 12345} {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(rand.Uint32())
		}
		key := fmt.Sprintf("a/%d", size)
		if sums, err := c.Upload(ctx, s3test.Bucket, key, bytes.NewReader(b), int64(size), always); err != nil || len(sums) != max(1, (size+s3.PartBytes-1)/s3.PartBytes) {
			t.Fatalf("%d bytes: %v, %v", size, sums, err)
		}
		got := make([]byte, size/2+1)
		o, err := c.Stat(ctx, s3test.Bucket, key)
		if err != nil {
			t.Fatal(err)
		}
		k, err := c.ReadAt(ctx, s3test.Bucket, o, got, int64(size/2))
		if want := size - size/2; k != want || !bytes.Equal(got[:k], b[size/2:]) || err != io.EOF && k < len(got) {
			t.Fatalf("%d bytes: read %d, want %d, %v", size, k, want, err)
		}
	}
	list, err := c.List(ctx, s3test.Bucket, "a/", 10)
	if err != nil || len(list) != 3 || list[0].Key != "a/0" || list[1].Size != 10 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := c.List(ctx, s3test.Bucket, "a/", 2); err == nil {
		t.Error("a list longer than the limit")
	}
}

// TestConditions checks that Create does not replace an object, and that a missing object gives
// fs.ErrNotExist.
func TestConditions(t *testing.T) {
	s3test.Serve(t)
	c, ctx := connect(t), t.Context()
	if err := c.Create(ctx, s3test.Bucket, "x", []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(ctx, s3test.Bucket, "x", []byte("second")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("created twice: %v", err)
	}
	if b, err := c.ReadFile(ctx, s3test.Bucket, "x", 5); err != nil || string(b) != "first" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := c.ReadFile(ctx, s3test.Bucket, "x", 4); err == nil {
		t.Error("more than the limit was read")
	}
	for range 2 {
		if err := c.Remove(ctx, s3test.Bucket, "x"); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Stat(ctx, s3test.Bucket, "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestReplaced checks that a small object replaced between its description and its content is read
// again, and that repeated replacement, and replacement during a copy, are errors.
func TestReplaced(t *testing.T) {
	server := s3test.Serve(t)
	c, ctx := connect(t), t.Context()
	server.Put(t, "x", []byte("first"))
	list, err := c.List(ctx, s3test.Bucket, "x", 1)
	if err != nil {
		t.Fatal(err)
	}
	left := 1
	server.Fail(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && left > 0 {
			left--
			server.Put(t, "x", fmt.Appendf(nil, "%d left", left))
		}
		return false
	})
	if b, err := c.ReadFile(ctx, s3test.Bucket, "x", 10); err != nil || string(b) != "0 left" {
		t.Errorf("%q, %v", b, err)
	}
	left = 1000
	if _, err := c.ReadFile(ctx, s3test.Bucket, "x", 10); err == nil || !strings.Contains(err.Error(), "replaced") {
		t.Error(err)
	}
	if _, err := c.Fetch(ctx, s3test.Bucket, list[0], func(int64) {}); err == nil || !strings.Contains(err.Error(), "replaced") {
		t.Error(err)
	}
}

// Refused credentials are named, without the secret, and sent to no host that a server redirects to.
func TestSecretsStay(t *testing.T) {
	server := s3test.Serve(t)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another host got %s %s", r.Method, r.Header.Get("Authorization"))
	}))
	defer other.Close()
	c := connect(t)
	for _, code := range []int{http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusForbidden} {
		server.Fail(func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Location", other.URL+r.URL.Path)
			w.WriteHeader(code)
			return true
		})
		err := c.Create(t.Context(), s3test.Bucket, "x", []byte("words"))
		if err == nil || strings.Contains(err.Error(), "very-secret") || errors.Is(err, fs.ErrPermission) != (code == http.StatusForbidden) {
			t.Errorf("status %d: %v", code, err)
		}
	}
}

// TestDamagedCopy checks that a copy that was altered is copied again, and one that was only touched is
// not; a link in its place is refused.
func TestDamagedCopy(t *testing.T) {
	server := s3test.Serve(t)
	c := connect(t)
	server.Put(t, "x", []byte("some words"))
	list, err := c.List(t.Context(), s3test.Bucket, "x", 1)
	if err != nil {
		t.Fatal(err)
	}
	fetch := func() (path string, err error) {
		return c.Fetch(t.Context(), s3test.Bucket, list[0], func(int64) {})
	}
	path, err := fetch()
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "x")
	for i, damage := range []func() error{
		func() error { return os.WriteFile(path, []byte("some wordz"), 0o666) },
		func() error { return os.Truncate(path, 3) },
		func() error { return os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)) },
		func() error {
			return os.WriteFile(strings.Replace(path, "/files/", "/etags/", 1), []byte("old"), 0o666)
		},
		func() error { return os.Remove(path) },
		func() error { return errors.Join(os.Rename(path, other), os.Symlink(other, path)) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		server.Seen()
		_, err := fetch()
		b, wrong := os.ReadFile(path)
		if i == 5 && (err == nil || !strings.Contains(err.Error(), "it is a link")) || i < 5 && (err != nil || wrong != nil || string(b) != "some words" || (len(server.Seen()) == 0) != (i == 2)) {
			t.Errorf("damage %d: %q, %v, %v", i, b, err, wrong)
		}
	}
}

// Fetch copies an object once per version.
func TestFetch(t *testing.T) {
	nightly.Long(t)
	server := s3test.Serve(t)
	c := connect(t)
	content := bytes.Repeat([]byte("words"), s3.PartBytes/4)
	for range 2 {
		server.Put(t, "in/a.txt", content)
		for again := range 2 {
			list, err := c.List(t.Context(), s3test.Bucket, "in/", 10)
			if err != nil {
				t.Fatal(err)
			}
			server.Seen()
			var moved atomic.Int64
			path, err := c.Fetch(t.Context(), s3test.Bucket, list[0], func(n int64) { moved.Add(n) })
			if err != nil || moved.Load() != int64(len(content)) {
				t.Fatalf("%d bytes, %v", moved.Load(), err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			if seen := server.Seen(); (len(seen) == 0) != (again == 1) {
				t.Errorf("fetch %d: %v", again, seen)
			}
		}
		content = content[:len(content)-1]
	}
}

// TestRoom checks that Room refuses copies that do not fit the disk, but not copies that exist or
// are being made.
func TestRoom(t *testing.T) {
	server := s3test.Serve(t)
	c := connect(t)
	free, err := input.Space(t.TempDir())
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	server.Put(t, "in/a", []byte("words"))
	list, err := c.List(t.Context(), s3test.Bucket, "in/", 10)
	if err != nil {
		t.Fatal(err)
	}
	large := list[0]
	large.Size = free + 1<<30
	for _, x := range []struct {
		objects []s3.Object
		fits    bool
	}{{nil, true}, {list, true}, {[]s3.Object{large}, false}, {append(list, large), false}} {
		err := c.Room(map[string][]s3.Object{s3test.Bucket: x.objects})
		if (err == nil) != x.fits || err != nil && (!input.IsInput(err) || !strings.Contains(err.Error(), "XDG_CACHE_HOME") || !strings.Contains(err.Error(), os.Getenv("XDG_CACHE_HOME"))) {
			t.Errorf("%+v: %v", x.objects, err)
		}
	}
	path, err := c.Fetch(t.Context(), s3test.Bucket, list[0], func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	mark, err := os.OpenFile(strings.Replace(path, "/files/", "/etags/", 1), os.O_RDWR, 0)
	if err == nil {
		defer mark.Close()
		at := time.Now().Truncate(time.Second)
		err = errors.Join(os.Truncate(path, large.Size), os.Chtimes(path, at, at), os.WriteFile(mark.Name(), fmt.Appendf(nil, "%s %d %d 00000000\n", large.ETag, large.Size, at.UnixNano()), 0o666))
	}
	if err = errors.Join(err, c.Room(map[string][]s3.Object{s3test.Bucket: {large}})); err != nil {
		t.Errorf("a copy exists: %v", err)
	}
	if err := errors.Join(os.Truncate(path, 0), input.Lock(mark), c.Room(map[string][]s3.Object{s3test.Bucket: {large}})); err != nil {
		t.Errorf("a copy is being made: %v", err)
	}
}

// TestHostileAnswers checks that answers without a size, with a negative size, or without end are
// errors before memory is allocated.
func TestHostileAnswers(t *testing.T) {
	nightly.Long(t)
	server := s3test.Serve(t)
	c := connect(t)
	list := `<ListBucketResult><Contents><Key>a</Key><Size>-5</Size><ETag>"1"</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>`
	for _, test := range []struct {
		want string
		body func(w io.Writer) error
		call func() error
	}{
		{"a: the server's answer has no size", nil, func() error { _, err := c.ReadFile(t.Context(), s3test.Bucket, "a", 100); return err }},
		{"a: the server's answer has no size", func(w io.Writer) error { _, err := io.WriteString(w, list); return err }, func() error { _, err := c.List(t.Context(), s3test.Bucket, "", 10); return err }},
		{"longer than 4194304 bytes", func(w io.Writer) error {
			_, err := io.WriteString(w, "<ListBucketResult>"+strings.Repeat("<Contents/>", 1<<20))
			return err
		}, func() error { _, err := c.List(t.Context(), s3test.Bucket, "", 10); return err }},
	} {
		server.Fail(func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
			w.WriteHeader(http.StatusOK)
			if test.body != nil {
				_ = test.body(w) // the client may hang up
			}
			return true
		})
		if err := test.call(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]string{"s3://b/a/c": "b a/c", "s3://b//a/./c/": "b a/c", "s3://b": "b "} {
		if bucket, key, err := s3.Split(name); err != nil || bucket+" "+key != want {
			t.Errorf("%s: %s %s, %v", name, bucket, key, err)
		}
	}
	for _, name := range []string{"s3://", "s3:///a", "s3://b/../c", "s3://../c", "b/a", "s3://u@h/a", "s3://b/" + strings.Repeat("x", 2000)} {
		if _, _, err := s3.Split(name); !input.IsInput(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for key, value := range map[string]string{"AWS_ENDPOINT_URL_S3": "storage.example.com", "AWS_S3_ADDRESSING_STYLE": "host", "AWS_CA_BUNDLE": "none.pem"} {
		t.Run(key, func(t *testing.T) {
			t.Setenv(key, value)
			if _, err := s3.Connect(); !input.IsInput(err) || !strings.Contains(err.Error(), strings.TrimSuffix(key, "_S3")) {
				t.Errorf("%v", err)
			}
		})
	}
}
