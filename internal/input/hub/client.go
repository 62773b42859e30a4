package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"zeroth/internal/input"
)

// client talks to a Hub.
type client struct {
	http     *http.Client
	endpoint *url.URL
	from     string // where the token comes from, "" without one
	note     func(string)
}

// bearer adds the token to requests to the endpoint itself. Redirects lead to other hosts, which do
// not get it.
type bearer struct {
	*http.Transport
	endpoint *url.URL
	token    string
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" && r.URL.Scheme == b.endpoint.Scheme && r.URL.Host == b.endpoint.Host {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.Transport.RoundTrip(r)
}

// stall is how long a server may be silent.
var stall = 30 * time.Second // shorter in tests

func newClient(note func(string)) (*client, error) {
	address := strings.TrimRight(os.Getenv("HF_ENDPOINT"), "/")
	if address == "" {
		address = "https://huggingface.co"
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
		return nil, input.BadInput(errors.New("HF_ENDPOINT is not the address of a server, such as https://huggingface.co"))
	}
	t, from, err := token()
	if err != nil {
		return nil, err
	}
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.ResponseHeaderTimeout, tr.DisableCompression = stall, true // sizes and ranges are those of the file
	return &client{&http.Client{Transport: bearer{tr, u, t}}, u, from, note}, nil
}

func (c *client) close() { c.http.CloseIdleConnections() }

// page returns the address of a model's page.
func (c *client) page(m model) string { return c.endpoint.JoinPath(m.repo).String() }

// pause is the time before the second try.
var pause = time.Second // shorter in tests

// longestPause limits what a server can ask for. The Hub counts requests over five minutes.
const longestPause = 5 * time.Minute

// retry calls f until it succeeds, fails for good, or fails several times without progress.
func (c *client) retry(ctx context.Context, f func() (progress bool, err error)) error {
	note := func(err error, wait time.Duration) { c.note(fmt.Sprintf("%v; trying again in %v", err, wait)) }
	return input.Pauses{First: pause, Longest: longestPause, Note: note}.Retry(ctx, f)
}

// get requests a path of the endpoint, from an offset on.
func (c *client) get(ctx context.Context, m model, at *url.URL, offset int64) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", "zeroth")
	r.Header.Set("Accept-Encoding", "identity")
	if offset > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, c.broken(m, err)
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent && offset > 0 {
		return resp, nil
	}
	_ = resp.Body.Close() // err is the one to report
	return resp, c.refused(m, resp)
}

// broken returns the error of a connection without the address, in which a redirect may have put a
// signature.
func (c *client) broken(m model, err error) error {
	host := c.endpoint.Host
	if e := (*url.Error)(nil); errors.As(err, &e) {
		if u, wrong := url.Parse(e.URL); wrong == nil {
			host = u.Host
		}
		err = e.Err
	}
	err = fmt.Errorf("%v: %s: %w", m, host, err)
	if e := (*tls.CertificateVerificationError)(nil); errors.As(err, &e) {
		return err
	}
	return input.Again(err)
}

// refused explains a status that is not success.
func (c *client) refused(m model, resp *http.Response) error {
	bad := func(format string, args ...any) error {
		return input.BadInput(fmt.Errorf("%v: %s", m, fmt.Sprintf(format, args...)))
	}
	page, kind := c.page(m), resp.Header.Get("X-Error-Code")
	switch s := resp.StatusCode; {
	case s == http.StatusTooManyRequests, s == http.StatusRequestTimeout, s >= 500:
		after, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // otherwise 0
		again := input.Again(fmt.Errorf("%v: %s answers %s", m, resp.Request.URL.Host, resp.Status))
		again.After = time.Duration(min(max(after, 0), 3600)) * time.Second
		return again
	case resp.Request.URL.Host != c.endpoint.Host: // a signed address that has expired
		return input.Again(fmt.Errorf("%v: %s answers %s", m, resp.Request.URL.Host, resp.Status))
	case kind == "GatedRepo" && c.from == "":
		return bad("the model is gated: ask for access at %s, then set HF_TOKEN to a token of that account", page)
	case kind == "GatedRepo", s == http.StatusForbidden:
		return bad("the account of the token (%s) has no access: ask for it at %s", c.from, page)
	case kind == "RevisionNotFound":
		return bad("there is no revision %q; %s/tree/main shows the branches and tags", m.revision, page)
	case kind == "EntryNotFound":
		return bad("the file %s does not exist", resp.Request.URL.Path)
	case c.from == "" && (s == http.StatusUnauthorized || s == http.StatusNotFound):
		return bad("no such model, or a private one: check %s; for a private model, set HF_TOKEN", page)
	case s == http.StatusUnauthorized && kind != "RepoNotFound":
		return bad("the Hub refuses the token (%s)", c.from)
	case s == http.StatusUnauthorized || s == http.StatusNotFound:
		return bad("no such model, or a private one that the account of the token (%s) cannot read: check %s", c.from, page)
	}
	return bad("%s answers %s", resp.Request.URL.Host, resp.Status)
}

// lookupTime is how long a name server may take.
const lookupTime = 5 * time.Second

// resolves returns an error if the name of the endpoint, or of the proxy in front of it, does not
// resolve: more tries do not help a machine that is offline.
func (c *client) resolves(ctx context.Context, m model) error {
	host := c.endpoint.Hostname()
	if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: c.endpoint}); err == nil && proxy != nil {
		host = proxy.Hostname()
	}
	lookup, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	_, err := net.DefaultResolver.LookupHost(lookup, host)
	if err == nil || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%v: %w; check the network, set HF_ENDPOINT to a mirror or HF_HUB_OFFLINE=1 to use downloaded files, or name a local folder", m, err)
}

// revision asks for the commit of a revision and its files.
func (c *client) revision(ctx context.Context, m model) (info revisionInfo, err error) {
	if err := c.resolves(ctx, m); err != nil {
		return info, err
	}
	at := c.endpoint.JoinPath("api/models", m.repo, "revision", url.PathEscape(m.revision))
	at.RawQuery = "blobs=true"
	err = c.retry(ctx, func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 4*stall)
		defer cancel()
		resp, err := c.get(ctx, m, at, 0)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close() // only read from
		raw, err := io.ReadAll(io.LimitReader(resp.Body, maxList+1))
		if err != nil {
			return false, c.broken(m, err)
		}
		if err := json.Unmarshal(raw, &info); err != nil || len(raw) > maxList || !commit.MatchString(info.Commit) || len(info.Files) == 0 {
			return false, input.BadInput(fmt.Errorf("%v: %s does not answer like a Hub; check HF_ENDPOINT", m, c.endpoint.Host))
		}
		return true, nil
	})
	return info, err
}

// download downloads a file to its blob, beginning after what an earlier download has left. The blob
// gets its name after its checksum has been verified.
func (c *client) download(ctx context.Context, m model, name string, x file, blob string, p *progress) (err error) {
	part := blob + ".incomplete"
	f, err := input.OpenOwn(part, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	d := &partial{f: f, x: x, p: p}
	if err := d.begin(); err != nil {
		return err
	}
	at := c.endpoint.JoinPath(m.repo, "resolve", m.revision, (&url.URL{Path: name}).EscapedPath())
	err = c.retry(ctx, func() (bool, error) {
		from := d.size
		err := c.more(ctx, m, at, d)
		if err == nil && !d.verified() {
			err = fmt.Errorf("%v: %s arrived damaged: its checksum is not %s", m, name, x.sum())
			if wrong := d.restart(); wrong != nil {
				return false, wrong
			}
			if from > 0 { // the damage may be in what was there before
				return false, input.Again(err)
			}
		}
		return d.size > from, err
	})
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(part, blob)
}

// more downloads the rest of a file, until it is complete or an error.
func (c *client) more(ctx context.Context, m model, at *url.URL, d *partial) error {
	if d.size == d.x.Size {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(2*stall, func() { cancel(fmt.Errorf("no data for %v", stall)) })
	defer silent.Stop()
	resp, err := c.get(ctx, m, at, d.size)
	if resp != nil && resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return errors.Join(d.restart(), input.Again(err))
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()                                                                                   // only read from
	if !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", d.size)) && d.size > 0 { // the server sends all of it
		if err := d.restart(); err != nil {
			return err
		}
	}
	b := make([]byte, 1<<20)
	for {
		silent.Reset(stall)
		n, err := resp.Body.Read(b)
		if wrong := d.write(b[:n]); wrong != nil {
			return wrong
		}
		switch {
		case err == io.EOF && d.size == d.x.Size:
			return nil
		case err == io.EOF:
			err = fmt.Errorf("the connection ended after %d of %d bytes", d.size, d.x.Size)
		case err != nil && context.Cause(ctx) != nil:
			err = context.Cause(ctx)
		}
		if err != nil {
			return input.Again(fmt.Errorf("%v: %s: %w", m, resp.Request.URL.Host, err))
		}
	}
}

// partial is the beginning of a file.
type partial struct {
	f    *os.File
	x    file
	p    *progress
	size int64 // bytes in f
	hash hash.Hash
}

func (d *partial) newHash() {
	if d.x.SHA256 != "" {
		d.hash = sha256.New()
		return
	}
	d.hash = sha1.New()
	fmt.Fprintf(d.hash, "blob %d\x00", d.x.Size)
}

// begin reads the bytes of an earlier download.
func (d *partial) begin() (err error) {
	d.newHash()
	if d.size, err = io.Copy(d.hash, d.f); err == nil && d.size > d.x.Size {
		d.p.add(d.size - d.x.Size) // counted as far as it fits
		return d.restart()
	}
	return err
}

// restart drops all bytes.
func (d *partial) restart() error {
	d.p.add(-d.size)
	d.size = 0
	d.newHash()
	_, err := d.f.Seek(0, io.SeekStart)
	return errors.Join(err, d.f.Truncate(0))
}

// write appends bytes.
func (d *partial) write(b []byte) error {
	if d.size+int64(len(b)) > d.x.Size {
		return errors.Join(d.restart(), input.Again(fmt.Errorf("the server sends more than the %d bytes of the file", d.x.Size)))
	}
	n, err := d.f.Write(b)
	d.size += int64(n)
	d.hash.Write(b[:n])
	d.p.add(int64(n))
	return err
}

// verified reports whether the complete file has its checksum.
func (d *partial) verified() bool { return hex.EncodeToString(d.hash.Sum(nil)) == d.x.sum() }
