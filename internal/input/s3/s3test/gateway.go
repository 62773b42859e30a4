package s3test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// gateway is a process of versitygw, in which every object is a file.
type gateway struct {
	bucket string // folder
	client *minio.Client
}

// startGateway starts versitygw on a socket and returns a proxy of it.
func startGateway(t testing.TB, path string) (http.Handler, objects) {
	dir := t.TempDir()
	g := &gateway{bucket: filepath.Join(dir, "root", Bucket)}
	if err := os.MkdirAll(g.bucket, 0o777); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(path, "--quiet", "--port", socket, "--access", "tester", "--secret", "very-secret", "posix", filepath.Dir(g.bucket))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if c, err := dial(t.Context(), "", ""); err == nil {
			c.Close()
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("versitygw does not answer: %s", said.String())
		}
	}
	transport := &http.Transport{DialContext: dial}
	t.Cleanup(transport.CloseIdleConnections)
	var err error
	if g.client, err = minio.New("gateway", &minio.Options{Creds: credentials.NewStaticV4("tester", "very-secret", ""), Transport: transport, Region: "us-east-1"}); err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "gateway"})
	proxy.Transport = transport
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // the client ended it
	return proxy, g
}

func (g *gateway) put(key string, b []byte) error {
	_, err := g.client.PutObject(context.Background(), Bucket, key, bytes.NewReader(b), int64(len(b)), minio.PutObjectOptions{})
	return err
}

// sizes walks the files until two walks agree. A file that is missing in both, while a younger one is in
// both, is missing between them.
func (g *gateway) sizes() (map[string]int64, error) {
	var last map[string]int64
	for {
		now, err := g.walk()
		if err != nil || last != nil && maps.Equal(last, now) {
			return now, err
		}
		last = now
	}
}

func (g *gateway) walk() (map[string]int64, error) {
	sizes := map[string]int64{}
	return sizes, filepath.WalkDir(g.bucket, func(name string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			if err == nil && strings.HasPrefix(e.Name(), ".sgwtmp") {
				err = fs.SkipDir
			}
			return err
		}
		i, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		key, err := filepath.Rel(g.bucket, name)
		sizes[filepath.ToSlash(key)] = i.Size()
		return err
	})
}

func (g *gateway) get(key string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(g.bucket, filepath.FromSlash(key)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}
