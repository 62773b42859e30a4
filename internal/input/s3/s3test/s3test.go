// Package s3test serves object storage for tests, with faults: from the memory of this process or,
// if ZEROTH_VERSITYGW is the path of a versitygw, by that program from a folder.
package s3test

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
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

// Server is object storage.
type Server struct {
	*httptest.Server
	Inner   http.Handler // without faults
	objects objects
	mu      sync.Mutex
	fault   func(w http.ResponseWriter, r *http.Request) bool
	seen    []string
}

// objects accesses the objects of the bucket.
type objects interface {
	put(key string, b []byte) error
	// sizes returns the sizes in bytes of all objects at an instant.
	sizes() (map[string]int64, error)
	// get returns the content of an object, nil if there is none.
	get(key string) ([]byte, error)
}

// Serve starts a server and points the environment at it, and local copies at an empty folder.
func Serve(t testing.TB) *Server {
	s := Start(t)
	for _, e := range Environment(s.URL, t.TempDir()) {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	return s
}

// Start starts a server, which processes find with its Environment.
func Start(t testing.TB) *Server {
	s := &Server{}
	if gateway := os.Getenv("ZEROTH_VERSITYGW"); gateway != "" {
		s.Inner, s.objects = startGateway(t, gateway)
	} else {
		s.Inner, s.objects = inMemory(t)
	}
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
	if err := s.objects.put(key, b); err != nil {
		t.Fatal(err)
	}
}

// Snapshot returns the sizes of all objects at an instant, by key, and a function that returns the content
// of one, nil if there is none any more.
func (s *Server) Snapshot() (sizes map[string]int64, content func(key string) ([]byte, error)) {
	sizes, err := s.objects.sizes()
	if err != nil {
		panic(err) // it is of this machine
	}
	return sizes, s.objects.get
}

// Keys returns the keys of all objects, sorted.
func (s *Server) Keys(t testing.TB) []string {
	sizes, err := s.objects.sizes()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(sizes))
}

// memory is object storage in this process.
type memory struct{ gofakes3.Backend }

func inMemory(t testing.TB) (http.Handler, objects) {
	m := memory{s3mem.New()}
	if err := m.CreateBucket(Bucket); err != nil {
		t.Fatal(err)
	}
	return gofakes3.New(m, gofakes3.WithoutVersioning()).Server(), m
}

func (m memory) put(key string, b []byte) error {
	_, err := m.PutObject(Bucket, key, map[string]string{"Last-Modified": time.Now().UTC().Format(http.TimeFormat)}, bytes.NewReader(b), int64(len(b)), nil)
	return err
}

func (m memory) sizes() (map[string]int64, error) {
	list, err := m.ListBucket(Bucket, nil, gofakes3.ListBucketPage{})
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, o := range list.Contents {
		sizes[o.Key] = o.Size
	}
	return sizes, nil
}

func (m memory) get(key string) ([]byte, error) {
	o, err := m.GetObject(Bucket, key, nil)
	if err != nil {
		return nil, nil
	}
	defer o.Contents.Close()
	return io.ReadAll(o.Contents)
}
