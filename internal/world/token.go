package world

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// A world without a token that meets on loopback would be open to every user of the machine. So
// its processes use a token of their user: a file that only the user can read, in a folder that
// lasts until the machine restarts or the user logs out. The first process that needs the file
// creates it.

const (
	userFolder = "zeroth-user-" // followed by the user's number; next to other users' files
	tokenName  = "token"
	tokenBytes = 32 // random; in hexadecimal in the file
)

// useToken sets the token of this user if the world has none and no other host can reach it.
func (c *Config) useToken() (err error) {
	if len(c.Token) > 0 || c.Insecure || c.TLS != nil {
		return nil
	}
	if c.Token, c.tokenFile, err = userToken(); err != nil {
		return fmt.Errorf("the processes of this job have no token, and cannot prove with a file that they belong to the same user: %w; set ZEROTH_TOKEN to the same secret in every process", err)
	}
	return nil
}

// tokenHint explains a refused token, or returns "" if the job has its own.
func (c *Config) tokenHint() string {
	if c.tokenFile == "" {
		return ""
	}
	return fmt.Sprintf("this process has no ZEROTH_TOKEN and uses the user's token, %s; processes of other users, and containers without that file, need ZEROTH_TOKEN, set to the same secret in every process", c.tokenFile)
}

// userToken returns the token of this process's user and its file.
func userToken() (token []byte, file string, err error) {
	folder, err := runtimeFolder()
	if err != nil {
		return nil, "", err
	}
	file = filepath.Join(folder, tokenName)
	if token, err = readToken(file); errors.Is(err, os.ErrNotExist) {
		if err = makeToken(file); err == nil {
			token, err = readToken(file)
		}
	}
	return token, file, err
}

// runtimeFolder returns a folder that only this user can access, the same for all of the
// user's processes that see the same files: that of the login session if there is one, whether
// or not the environment names it.
func runtimeFolder() (string, error) {
	session := []string{os.Getenv("XDG_RUNTIME_DIR"), fmt.Sprint("/run/user/", os.Getuid())}
	for _, parent := range session {
		if info, err := os.Lstat(parent); err == nil && filepath.IsAbs(parent) && private(info) == nil {
			folder := filepath.Join(parent, "zeroth")
			return folder, ownFolder(folder)
		}
	}
	folder := filepath.Join(os.TempDir(), userFolder+fmt.Sprint(os.Getuid()))
	return folder, ownFolder(folder)
}

// ownFolder creates a folder that only this user can access, or checks that it is one.
func ownFolder(folder string) error {
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(folder)
	if err == nil && !info.IsDir() {
		err = errors.New("it is not a folder")
	}
	if err == nil {
		err = private(info)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", folder, err)
	}
	return nil
}

// readToken reads the token from a file that only this user can access.
func readToken(file string) ([]byte, error) {
	info, err := os.Lstat(file) // nobody else can replace it, because the folder is the user's
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", file)
	}
	if err := private(info); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	text, err := os.ReadFile(file)
	if err == nil && len(text) != 2*tokenBytes {
		err = fmt.Errorf("%s has %d bytes, want %d; remove it, and the next process creates it again", file, len(text), 2*tokenBytes)
	}
	return text, err
}

// makeToken creates the file atomically. A file that another process has created meanwhile
// stays.
func makeToken(file string) error {
	var random [tokenBytes]byte
	_, _ = rand.Read(random[:])                                // never fails
	f, err := os.CreateTemp(filepath.Dir(file), tokenName+"-") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(hex.EncodeToString(random[:]))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Link(f.Name(), file); errors.Is(err, os.ErrExist) {
		err = nil
	}
	return err
}
