// Package s3test serves object storage in this process, with faults, for tests.
package s3test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// Bucket exists on every server.
const Bucket = "runs"

// Server is object storage in memory.
type Server struct {
	*httptest.Server
	Inner   http.Handler // without faults
	backend gofakes3.Backend
	mu      sync.Mutex
	fault   func(w http.ResponseWriter, r *http.Request) bool
	seen    []string
}

// Serve starts a server and points the environment at it, and local copies at an empty folder.
func Serve(t testing.TB) *Server {
	s := &Server{backend: s3mem.New()}
	if err := s.backend.CreateBucket(Bucket); err != nil {
		t.Fatal(err)
	}
	s.Inner = gofakes3.New(s.backend, gofakes3.WithoutVersioning()).Server()
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		fault := s.fault
		s.seen = append(s.seen, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
		if fault == nil || !fault(w, r) {
			s.Inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	for _, e := range Environment(s.URL, t.TempDir()) {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	return s
}

// Environment returns the variables for a server at an address, with local copies in a folder.
func Environment(address, cache string) []string {
	return []string{"AWS_ENDPOINT_URL_S3=" + address, "AWS_ENDPOINT_URL=", "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=tester", "AWS_SECRET_ACCESS_KEY=very-secret",
		"AWS_SESSION_TOKEN=", "AWS_PROFILE=", "AWS_CA_BUNDLE=", "AWS_S3_ADDRESSING_STYLE=", "AWS_EC2_METADATA_DISABLED=true", "XDG_CACHE_HOME=" + cache}
}

// Fail makes f see every request first. If f returns true it has answered. nil ends that.
func (s *Server) Fail(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Seen returns the requests since the last call, as method and path.
func (s *Server) Seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

// Put stores an object.
func (s *Server) Put(t testing.TB, key string, b []byte) {
	if _, err := s.backend.PutObject(Bucket, key, map[string]string{"Last-Modified": time.Now().UTC().Format(http.TimeFormat)}, bytes.NewReader(b), int64(len(b)), nil); err != nil {
		t.Fatal(err)
	}
}

// Snapshot returns the sizes of all objects at an instant, by key, and a function that returns the content
// of one, nil if there is none any more.
func (s *Server) Snapshot() (sizes map[string]int64, content func(key string) ([]byte, error)) {
	sizes = map[string]int64{}
	list, err := s.backend.ListBucket(Bucket, nil, gofakes3.ListBucketPage{})
	if err != nil {
		panic(err) // it is in memory
	}
	for _, o := range list.Contents {
		sizes[o.Key] = o.Size
	}
	return sizes, func(key string) ([]byte, error) {
		o, err := s.backend.GetObject(Bucket, key, nil)
		if err != nil {
			return nil, nil
		}
		defer o.Contents.Close()
		return io.ReadAll(o.Contents)
	}
}

// Keys returns the keys of all objects, sorted.
func (s *Server) Keys(t testing.TB) (keys []string) {
	list, err := s.backend.ListBucket(Bucket, nil, gofakes3.ListBucketPage{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list.Contents {
		keys = append(keys, o.Key)
	}
	slices.Sort(keys)
	return keys
}
