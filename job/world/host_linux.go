package world

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// bootID is equal in processes that share a kernel; "" where that cannot be known.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// sees are names of what files this process sees; two that have one in common see the
// same ones, all of them or those of the folder.
func sees(folder string) (names []string) {
	boot := bootID()
	if boot == "" {
		return nil
	}
	name := func(words ...any) {
		sum := sha256.Sum256(fmt.Append(nil, append(words, boot)...))
		names = append(names, fmt.Sprintf("%x", sum[:8]))
	}
	space, err := os.Readlink("/proc/self/ns/mnt")
	if root, ok := fileID("/"); ok && err == nil {
		name("all", space, root)
	}
	if at, ok := fileID(folder); ok {
		name("folder", folder, at)
	}
	return names
}

// fileID tells a file from all others of a kernel.
func fileID(path string) (id string, ok bool) {
	info, err := os.Stat(path)
	if err != nil {
		return "", false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", false
	}
	return fmt.Sprint(s.Dev, " ", s.Ino), true
}
