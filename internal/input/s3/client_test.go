package s3

import (
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zeroth/internal/input"
	"zeroth/internal/input/s3/s3test"
)

// TestAddresses checks that the host's name contains the bucket at Amazon and if the environment
// asks for it.
func TestAddresses(t *testing.T) {
	for _, e := range s3test.Environment("", t.TempDir()) {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	for _, x := range []struct{ endpoint, style, want string }{
		{"", "", "https://bucket.s3.dualstack.us-east-1.amazonaws.com/k/x"},
		{"", "path", "https://s3.dualstack.us-east-1.amazonaws.com/bucket/k/x"},
		{"https://storage.example.com", "", "https://storage.example.com/bucket/k/x"},
		{"http://storage.example.com:9000/", "auto", "http://storage.example.com:9000/bucket/k/x"},
		{"http://storage.example.com:9000", "virtual", "http://bucket.storage.example.com:9000/k/x"},
	} {
		t.Setenv("AWS_ENDPOINT_URL_S3", x.endpoint)
		t.Setenv("AWS_S3_ADDRESSING_STYLE", x.style)
		c, err := Connect()
		if err != nil {
			t.Fatal(err)
		}
		u, err := c.core.PresignedGetObject(t.Context(), "bucket", "k/x", time.Minute, nil)
		if err != nil {
			t.Fatal(err)
		}
		if u.RawQuery = ""; u.String() != x.want {
			t.Errorf("%+v: %s", x, u)
		}
	}
}

// The credentials are those of the profile that the environment names, in the file that it names.
func TestProfile(t *testing.T) {
	server := s3test.Serve(t)
	file := filepath.Join(t.TempDir(), "credentials")
	text := "[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n\n[lab]\naws_access_key_id = tester\naws_secret_access_key = very-secret\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SHARED_CREDENTIALS_FILE": file, "AWS_PROFILE": "lab"} {
		t.Setenv(name, value)
	}
	who := ""
	server.Fail(func(_ http.ResponseWriter, r *http.Request) bool { who = r.Header.Get("Authorization"); return false })
	c, err := Connect()
	if err == nil {
		err = c.Write(t.Context(), s3test.Bucket, "x", []byte("words"))
	}
	if err != nil || !strings.Contains(who, "Credential=tester/") {
		t.Errorf("%v, %s", err, who)
	}
}

// TestPrivateAuthority checks that a server with a certificate of a private authority is trusted if
// the environment names it, and that the error otherwise explains how.
func TestPrivateAuthority(t *testing.T) {
	quick(t)
	server := s3test.Serve(t)
	private := httptest.NewUnstartedServer(server.Inner)
	private.Config.ErrorLog = log.New(io.Discard, "", 0)
	private.StartTLS()
	defer private.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: private.Certificate().Raw}), 0o666); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", private.URL)
	for _, bundle := range []string{file, ""} {
		t.Setenv("AWS_CA_BUNDLE", bundle)
		c, err := Connect()
		if err == nil {
			_, err = c.Stat(t.Context(), s3test.Bucket, "x")
		}
		if bundle == "" && (!input.IsInput(err) || !strings.Contains(err.Error(), "AWS_CA_BUNDLE")) || bundle != "" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", bundle, err)
		}
	}
}
