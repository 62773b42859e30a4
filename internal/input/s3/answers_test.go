package s3

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"zeroth/internal/input/s3/s3test"
	"zeroth/tests/nightly"
)

// quick shortens pauses and limits of time.
func quick(t *testing.T) {
	a, b, c := firstPause, minio.DefaultRetryUnit, minio.DefaultRetryCap
	t.Cleanup(func() { firstPause, minio.DefaultRetryUnit, minio.DefaultRetryCap = a, b, c })
	firstPause, minio.DefaultRetryUnit, minio.DefaultRetryCap = time.Millisecond, time.Millisecond, time.Millisecond
}

// answered lets the server answer a request, and returns what it did.
func answered(server *s3test.Server, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	server.Inner.ServeHTTP(w, r)
	return w
}

// send sends a header and a body of any length.
func send(w http.ResponseWriter, from *httptest.ResponseRecorder, body []byte) {
	for key, values := range from.Header() {
		w.Header()[key] = values
	}
	w.Header().Del("Content-Length")
	w.WriteHeader(from.Code)
	_ = http.NewResponseController(w).Flush() // no Content-Length
	_, _ = w.Write(body)                      // the client may hang up
}

// TestAnswers checks that content is compared with what was asked for: a server or proxy that ignores
// Range, sends another range, too little, too much, or another version, is an error, unless it does so once.
func TestAnswers(t *testing.T) {
	nightly.Long(t)
	quick(t)
	content := make([]byte, PartBytes+100)
	for i := range content {
		content[i] = byte(i % 251)
	}
	whole := func(w http.ResponseWriter, r *http.Request, server *s3test.Server) bool {
		r.Header.Del("Range")
		return false
	}
	shifted := func(w http.ResponseWriter, r *http.Request, server *s3test.Server) bool {
		r.Header.Set("Range", strings.Replace(r.Header.Get("Range"), strconv.Itoa(PartBytes)+"-", "0-", 1))
		return false
	}
	for _, x := range []struct {
		name, want string // "": no error
		times      int64
		fault      func(w http.ResponseWriter, r *http.Request, server *s3test.Server) bool
	}{
		{"all, always", "ignores Range", 1000, whole},
		{"all, once", "", 1, whole},
		{"another range", fmt.Sprintf("sent the bytes 0-%d", len(content)-1), 1000, shifted},
		{"another range, once", "", 2, shifted},
		{"no range", "the range", 1000, func(w http.ResponseWriter, r *http.Request, server *s3test.Server) bool {
			a := answered(server, r)
			a.Header().Set("Content-Range", "pages 1-2")
			send(w, a, a.Body.Bytes())
			return true
		}},
		{"short", "unexpected EOF", 1000, func(w http.ResponseWriter, r *http.Request, server *s3test.Server) bool {
			a := answered(server, r)
			send(w, a, a.Body.Bytes()[:10])
			return true
		}},
		{"short, once", "", 2, func(w http.ResponseWriter, r *http.Request, server *s3test.Server) bool {
			a := answered(server, r)
			send(w, a, a.Body.Bytes()[:10])
			return true
		}},
		{"long", "more than", 1000, func(w http.ResponseWriter, r *http.Request, server *s3test.Server) bool {
			a := answered(server, r)
			send(w, a, append(a.Body.Bytes(), "and more"...))
			return true
		}},
		{"shorter by now", "replaced", 1000, func(w http.ResponseWriter, r *http.Request, server *s3test.Server) bool {
			server.Put(t, "x", content[:5])
			r.Header.Del("If-Match")
			return false
		}},
		{"another version", "replaced", 1000, func(w http.ResponseWriter, r *http.Request, server *s3test.Server) bool {
			server.Put(t, "x", append(content[1:], 'x'))
			r.Header.Del("If-Match")
			return false
		}},
		{"another version without ETags", "replaced", 1000, func(w http.ResponseWriter, r *http.Request, server *s3test.Server) bool {
			server.Put(t, "x", append(content, content...))
			r.Header.Del("If-Match")
			a := answered(server, r)
			a.Header().Del("ETag")
			send(w, a, a.Body.Bytes())
			return true
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			server := s3test.Serve(t)
			server.Put(t, "x", content)
			c, err := Connect()
			if err != nil {
				t.Fatal(err)
			}
			o, err := c.Stat(t.Context(), s3test.Bucket, "x")
			if err != nil {
				t.Fatal(err)
			}
			var n atomic.Int64
			server.Fail(func(w http.ResponseWriter, r *http.Request) bool {
				return r.Method == http.MethodGet && n.Add(1) <= x.times && x.fault(w, r, server)
			})
			path, err := c.Fetch(t.Context(), s3test.Bucket, o, func(int64) {})
			got, _ := os.ReadFile(path)
			if x.want == "" && (err != nil || !bytes.Equal(got, content)) || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want) || path != "") {
				t.Errorf("%d bytes, %v; want %q", len(got), err, x.want)
			}
		})
	}
}

// TestLists checks that lists which are none, repeat or never end are errors, and that an answer to a
// write must be one of object storage.
func TestLists(t *testing.T) {
	quick(t)
	server := s3test.Serve(t)
	c, err := Connect()
	if err != nil {
		t.Fatal(err)
	}
	page := func(more bool, keys ...string) string {
		out := fmt.Sprintf("<ListBucketResult><IsTruncated>%v</IsTruncated><NextContinuationToken>t</NextContinuationToken>", more)
		for _, k := range keys {
			out += "<Contents><Key>" + k + "</Key><Size>5</Size><ETag>\"1\"</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
		}
		return out + "</ListBucketResult>"
	}
	for _, x := range []struct {
		page func(i int) string // i-th answer
		want string
	}{
		{func(int) string { return page(true, "a", "b", "c") }, "again: its pages repeat"},
		{func(i int) string { return page(i < 2, "a", fmt.Sprint("b", i)) }, `"a" twice`},
		{func(int) string { return page(true) }, "no object in its last 1000 answers"},
		{func(int) string { return page(false, "a", "z") }, "does not begin with that"},
		{func(int) string { return "<html><body>Please log in</body></html>" }, "is not a list of objects"},
		{func(int) string { return "" }, "is not a list of objects"},
	} {
		i, prefix := 0, ""
		if strings.Contains(x.want, "begin") {
			prefix = "a"
		}
		server.Fail(func(w http.ResponseWriter, r *http.Request) bool {
			_, _ = io.WriteString(w, x.page(i))
			i++
			return true
		})
		if list, err := c.List(t.Context(), s3test.Bucket, prefix, 1_000_000); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%d objects, %v; want %q", len(list), err, x.want)
		}
	}
	server.Fail(func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body)
		return r.Method == http.MethodPut
	})
	_, err = c.Upload(t.Context(), s3test.Bucket, "large", bytes.NewReader(make([]byte, PartBytes+1)), PartBytes+1, func() error { return nil })
	for _, err := range []error{err, c.Write(t.Context(), s3test.Bucket, "x", []byte("words"))} {
		if err == nil || !strings.Contains(err.Error(), "not from object storage") {
			t.Errorf("%v", err)
		}
	}
}

// TestStalls checks that transfers in which nothing moves are repeated, and end if that does not help.
func TestStalls(t *testing.T) {
	nightly.Long(t)
	quick(t)
	defer func(d time.Duration) { stall = d }(stall)
	stall = time.Second
	server := s3test.Serve(t)
	ended := make(chan struct{})
	defer close(ended)
	content := bytes.Repeat([]byte("bits"), PartBytes/4)
	server.Put(t, "x", content)
	c, err := Connect()
	if err != nil {
		t.Fatal(err)
	}
	o, err := c.Stat(t.Context(), s3test.Bucket, "x")
	if err != nil {
		t.Fatal(err)
	}
	hang := func(method string, times int64) {
		var n atomic.Int64
		server.Fail(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != method || n.Add(1) > times {
				return false
			}
			if method == http.MethodGet {
				a := answered(server, r)
				send(w, a, a.Body.Bytes()[:PartBytes/8])
				_ = http.NewResponseController(w).Flush()
			}
			select {
			case <-ended:
			case <-r.Context().Done():
			}
			return true
		})
	}
	hang(http.MethodGet, 1)
	path, err := c.Fetch(t.Context(), s3test.Bucket, o, func(int64) {})
	if got, wrong := os.ReadFile(path); err != nil || wrong != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	hang(http.MethodPut, 1)
	_, err = c.Upload(t.Context(), s3test.Bucket, "y", bytes.NewReader(content), int64(len(content)), func() error { return nil })
	if o, wrong := c.Stat(t.Context(), s3test.Bucket, "y"); err != nil || wrong != nil || o.Size != int64(len(content)) {
		t.Errorf("%+v, %v, %v", o, err, wrong)
	}
	stall = 50 * time.Millisecond
	hang(http.MethodHead, 1000)
	if _, err := c.Stat(t.Context(), s3test.Bucket, "y"); err == nil || !strings.Contains(err.Error(), "no data sent or received for 50ms") {
		t.Error(err)
	}
}
