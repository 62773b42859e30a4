package watch

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"zeroth/internal/input"
)

// TokenFile is the file in a run folder that contains the token, unless the job names another.
const TokenFile = "watch.token"

// Bounds of a token in a file.
const (
	leastToken = 16 // bytes
	mostToken  = 4096
)

// token is the secret of a server. It is never printed, nor is the cookie.
type token struct {
	file   string
	made   bool // created by this server, which removes it
	digest [sha256.Size]byte
	cookie string // name and value of the cookie that replaces the token
	value  string
}

// newToken creates a token in a file that only this user can read, replacing a file left by a
// killed process.
func newToken(file string) (*token, error) {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	t, err := openToken(file)
	if err == nil {
		t.made = true
	}
	return t, err
}

// openToken reads the token, or creates a permanent one that only this user can read. A file that
// others can read is refused.
func openToken(file string) (*token, error) {
	t := &token{file: file}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		text := rand.Text() + rand.Text()
		_, err = f.WriteString(text + "\n")
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, errors.Join(err, os.Remove(file))
		}
		t.set(text)
		return t, nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	info, err := os.Stat(file)
	if err == nil && info.Mode().Perm()&0o077 != 0 && !secret(info.Mode()) {
		err = fmt.Errorf("%s: others can read it (mode %v); want mode 0600", file, info.Mode().Perm())
	}
	if err != nil {
		return nil, err
	}
	text, err := input.Read(file, mostToken)
	if err != nil {
		return nil, err
	}
	if text := strings.TrimSpace(string(text)); len(text) >= leastToken {
		t.set(text)
		return t, nil
	}
	return nil, fmt.Errorf("%s: the token is shorter than %d bytes; write a longer one, or remove the file to get a new one", file, leastToken)
}

// secret reports whether only the owner and, as for files mounted by Kubernetes, the group can
// read a file.
func secret(m fs.FileMode) bool { return m.Perm()&0o037 == 0 }

func (t *token) set(text string) {
	t.digest = sha256.Sum256([]byte(text))
	name, value := sha256.Sum256([]byte("name "+text)), sha256.Sum256([]byte("cookie "+text))
	t.cookie, t.value = "zeroth-"+hex.EncodeToString(name[:4]), hex.EncodeToString(value[:])
}

// is reports whether a text is the token.
func (t *token) is(text string) bool {
	sum := sha256.Sum256([]byte(text))
	return subtle.ConstantTimeCompare(sum[:], t.digest[:]) == 1
}

// in reports whether a request contains the token or its cookie.
func (t *token) in(r *http.Request) bool {
	if text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return t.is(text)
	}
	c, err := r.Cookie(t.cookie)
	return err == nil && subtle.ConstantTimeCompare([]byte(c.Value), []byte(t.value)) == 1
}

// remove removes the file if this server created it.
func (t *token) remove() {
	if t.made {
		_ = os.Remove(t.file) // the folder may be gone
	}
}
