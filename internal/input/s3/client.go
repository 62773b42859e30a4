// Package s3 reads and writes objects of S3 and of servers that speak its protocol. A name is
// s3://BUCKET/KEY. Where the server is, and who asks, comes from the environment, as for Amazon's
// own tools:
//
//	AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL   the server; default Amazon's
//	AWS_REGION, AWS_DEFAULT_REGION          default: asked from the server
//	AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//	AWS_PROFILE, AWS_SHARED_CREDENTIALS_FILE
//	AWS_CA_BUNDLE                           certificates to trust instead of the system's
//	AWS_S3_ADDRESSING_STYLE                 path or virtual; default: virtual at Amazon, else path
//
// Without keys, the roles of a web identity, container or instance are used, then none. Redirects
// are not followed, so that credentials reach no other host.
//
// Uploads carry the CRC32C of each request, which the server compares. Content that arrives is compared
// with what was asked for. Failed requests, and those that move no data for a minute, are repeated with
// growing pauses.
package s3

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"zeroth/internal/input"
)

const scheme = "s3://"

// Is reports whether a name is that of an object rather than a path.
func Is(name string) bool { return strings.HasPrefix(name, scheme) }

// Split returns the bucket and the key of a name, with the slashes of the key as in a clean path.
// Keys with ".." are refused.
func Split(name string) (bucket, key string, err error) {
	bucket, key, _ = strings.Cut(strings.TrimPrefix(name, scheme), "/")
	if !Is(name) || strings.Trim(bucket, ".") == "" || strings.ContainsAny(bucket, "?#@\\ ") || len(key) > 1024 || strings.Contains("/"+key+"/", "/../") {
		return "", "", input.BadInput(fmt.Errorf("%.250q is not a name of objects; want s3://BUCKET/KEY", name))
	}
	return bucket, strings.TrimPrefix(path.Clean("/"+key), "/"), nil
}

// Clean returns a name with the key as Split returns it. It returns any other name unchanged.
func Clean(name string) string {
	bucket, key, err := Split(name)
	if err != nil {
		return name
	}
	return strings.TrimSuffix(scheme+bucket+"/"+key, "/")
}

// Client sends requests to one server. Its methods are safe for concurrent use.
type Client struct {
	core *minio.Core
	host string // of the server
}

var clients struct {
	sync.Mutex
	by map[settings]*Client
}

// settings contains what the environment says about the server.
type settings struct{ endpoint, region, style, bundle string }

// Connect returns the client of the server that the environment names. It sends nothing yet.
func Connect() (*Client, error) {
	env := settings{cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL")), cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")),
		os.Getenv("AWS_S3_ADDRESSING_STYLE"), os.Getenv("AWS_CA_BUNDLE")}
	clients.Lock()
	defer clients.Unlock()
	if c := clients.by[env]; c != nil {
		return c, nil
	}
	c, err := env.connect()
	if err != nil {
		return nil, input.BadInput(err)
	}
	if clients.by == nil {
		clients.by = map[settings]*Client{}
	}
	clients.by[env] = c
	return c, nil
}

func (env settings) connect() (*Client, error) {
	at, err := url.Parse(cmp.Or(env.endpoint, "https://s3.amazonaws.com"))
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" || strings.Trim(at.Path, "/") != "" || at.User != nil {
		return nil, errors.New("AWS_ENDPOINT_URL is not the address of a server; want for example https://storage.example.com")
	}
	lookup, ok := map[string]minio.BucketLookupType{"": minio.BucketLookupAuto, "auto": minio.BucketLookupAuto, "path": minio.BucketLookupPath, "virtual": minio.BucketLookupDNS}[env.style]
	if !ok {
		return nil, fmt.Errorf("AWS_S3_ADDRESSING_STYLE is %.40q; want path or virtual", env.style)
	}
	transport, err := minio.DefaultTransport(at.Scheme == "https")
	if err != nil {
		return nil, err
	}
	if env.bundle != "" {
		pem, err := input.Read(env.bundle, 16<<20)
		if err != nil {
			return nil, fmt.Errorf("AWS_CA_BUNDLE: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("AWS_CA_BUNDLE: %s has no certificates in PEM form", env.bundle)
		}
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	core, err := minio.NewCore(at.Host, &minio.Options{Creds: who(), Secure: at.Scheme == "https", Transport: bounded{transport}, Region: env.region, BucketLookup: lookup, MaxRetries: 6})
	if err != nil {
		return nil, err
	}
	core.SetAppInfo("zeroth", "1")
	return &Client{core, at.Host}, nil
}

// bounded limits the bytes of answers other than the content of objects: they are XML, which needs
// many times its size in memory.
type bounded struct{ http.RoundTripper }

// mostAnswer is the limit of an answer, in bytes. A list of 1000 of the longest keys takes less.
const mostAnswer = 4 << 20

// emptyPages is the key of a context with the number of requests of a list since its last object.
type emptyPages struct{}

// mostEmpty is the limit of that number. Servers may send a page without objects, but not for ever.
const mostEmpty = 1000

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if n, ok := r.Context().Value(emptyPages{}).(*int); ok {
		if *n++; *n > mostEmpty {
			return nil, fmt.Errorf("the server has no object in its last %d answers, and says that more follow", mostEmpty)
		}
	}
	resp, err := b.transfer(r)
	if err != nil {
		return nil, err
	}
	if r.Method != http.MethodGet || r.URL.RawQuery != "" {
		resp.Body = &answer{resp.Body, mostAnswer}
	}
	if resp.StatusCode == http.StatusOK && r.URL.Query().Has("list-type") {
		if resp.Body, err = list(resp.Body); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// stall is how long a request may go without a byte sent or received.
var stall = time.Minute // shorter in tests

// transfer sends a request, which ends if it stalls.
func (b bounded) transfer(r *http.Request) (*http.Response, error) {
	ctx, stop := context.WithCancelCause(r.Context())
	m := moving{ctx, stop, time.AfterFunc(stall, func() { stop(fmt.Errorf("no data sent or received for %v", stall)) })}
	r = r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = moved{r.Body, m}
	}
	resp, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		err = cmp.Or(context.Cause(ctx), err)
		m.end()
		return nil, err
	}
	resp.Body = received{moved{resp.Body, m}}
	return resp, nil
}

// moving ends a request when rest runs out, which every byte restarts.
type moving struct {
	ctx  context.Context
	stop context.CancelCauseFunc
	rest *time.Timer
}

func (m moving) end() {
	m.rest.Stop()
	m.stop(nil)
}

// moved is the body of a request.
type moved struct {
	io.ReadCloser
	moving
}

func (b moved) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.rest.Reset(stall)
	if err != nil && err != io.EOF {
		err = cmp.Or(context.Cause(b.ctx), err)
	}
	return n, err
}

// received is the body of an answer. Close ends the request.
type received struct{ moved }

func (b received) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// list returns the body of a list, or an error if it begins like something else: a page of a proxy would
// otherwise be an empty list.
func list(body io.ReadCloser) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(body, 1024)
	begin, err := in.Peek(1024)
	if err != io.EOF && err != nil || !bytes.Contains(begin, []byte("ListBucketResult")) {
		return nil, errors.Join(fmt.Errorf("the answer is not a list of objects but %.60q; check AWS_ENDPOINT_URL and proxies", begin), body.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{in, body}, nil
}

// answer is the body of an answer, of which left bytes may be read.
type answer struct {
	io.ReadCloser
	left int
}

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if a.left -= n; a.left < 0 {
		return 0, fmt.Errorf("the server's answer is longer than %d bytes", mostAnswer)
	}
	return n, err
}

// who returns the credentials, from the first source that has some.
func who() *credentials.Credentials {
	from := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	if os.Getenv("AWS_EC2_METADATA_DISABLED") != "true" {
		from = append(from, &credentials.IAM{Client: &http.Client{Timeout: 5 * time.Second}})
	}
	return credentials.NewChainCredentials(from)
}

// explain turns the server's answer on an object into an error, or the cause of the end of ctx. errors.Is
// finds fs.ErrNotExist, fs.ErrExist (a condition failed) and fs.ErrPermission.
func explain(ctx context.Context, op, bucket, key string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch r, untrusted := minio.ToErrorResponse(err), (*tls.CertificateVerificationError)(nil); {
	case errors.As(err, &untrusted):
		err = input.BadInput(fmt.Errorf("%w; set AWS_CA_BUNDLE to a file with the certificate of its authority", untrusted))
	case r.Code == "NoSuchKey" || r.Code == "NotFound" || r.StatusCode == http.StatusNotFound && r.Code != "NoSuchBucket" && r.Code != "NoSuchUpload":
		err = fs.ErrNotExist
	case r.Code == "NoSuchBucket":
		err = input.BadInput(errors.New("the bucket does not exist"))
	case r.StatusCode == http.StatusPreconditionFailed || r.Code == "PreconditionFailed":
		err = fs.ErrExist
	case r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusUnauthorized:
		err = refused{cmp.Or(r.Code, "AccessDenied"), r.Message}
	}
	return &fs.PathError{Op: op, Path: scheme + bucket + "/" + key, Err: err}
}

// Lasting reports whether an error is an answer that the same request will get again: refused credentials,
// a missing bucket, a full quota.
func Lasting(err error) bool {
	if r, ok := errors.AsType[minio.ErrorResponse](err); ok {
		again := []int{http.StatusRequestTimeout, http.StatusConflict, http.StatusPreconditionFailed, http.StatusTooEarly, http.StatusTooManyRequests, 499}
		return r.StatusCode == http.StatusInsufficientStorage || r.StatusCode/100 == 4 && !slices.Contains(again, r.StatusCode)
	}
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || input.IsInput(err)
}

// refused is the server's answer to credentials.
type refused struct{ code, message string }

func (r refused) Error() string {
	return fmt.Sprintf("the server refuses the credentials: %s: %.200s; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", r.code, r.message)
}

// Is reports whether target is fs.ErrPermission.
func (r refused) Is(target error) bool { return target == fs.ErrPermission }
