package hub

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"zeroth/internal/input"
)

// Files selects which files of a model are needed. Each choice includes those before it.
type Files int

const (
	Config     Files = iota // config.json and the index of the weights
	Tokenizer               // tokenizer, chat templates and generation settings
	Weights                 // safetensors
	AnyWeights              // safetensors or, if there are none, pytorch_model.bin
)

const (
	maxList  = 64 << 20  // bytes of a list of files
	maxSmall = 256 << 20 // bytes of a file that is not weights
	maxFile  = 1 << 50   // bytes
)

// tree lists the files of a commit, in the format in which huggingface_hub caches it.
type tree struct {
	Version int             `json:"format_version"`
	Files   map[string]file `json:"files"` // by path
}

// file describes a file on the Hub.
type file struct {
	Size    int64  `json:"size"`                 // bytes
	Blob    string `json:"blob_id"`              // SHA-1 of the git blob
	SHA256  string `json:"lfs_sha256,omitempty"` // of the content, if it is not in git
	LFSSize int64  `json:"lfs_size,omitempty"`   // bytes
	Xet     string `json:"xet_hash,omitempty"`   // not used here
}

// sum returns the checksum that names the file's blob.
func (f file) sum() string {
	if f.SHA256 != "" {
		return f.SHA256
	}
	return f.Blob
}

var checksum = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// readTree reads the cached list of a commit; ok is false if there is no valid one.
func readTree(cache string, m model) (t tree, ok bool) {
	raw, err := input.Read(treeFile(cache, m), maxList)
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	return t, err == nil && t.Version == 1 && len(t.Files) > 0
}

// folderTree lists the files of a folder.
func folderTree(folder string) tree {
	t := tree{1, map[string]file{}}
	in, _ := os.ReadDir(folder) // usually missing
	for _, e := range in {
		t.Files[e.Name()] = file{}
	}
	return t
}

func treeFile(cache string, m model) string {
	return filepath.Join(cache, m.base(), "trees", m.revision+".json")
}

// revisionInfo is the Hub's answer on a revision.
type revisionInfo struct {
	Commit string `json:"sha"`
	Files  []struct {
		Path string `json:"rfilename"`
		Size int64  `json:"size"`
		Blob string `json:"blobId"`
		LFS  *struct {
			SHA256 string `json:"sha256"`
			Size   int64  `json:"size"`
		} `json:"lfs"`
	} `json:"siblings"`
}

func (r revisionInfo) tree() tree {
	t := tree{1, map[string]file{}}
	for _, s := range r.Files {
		f := file{Size: s.Size, Blob: s.Blob}
		if s.LFS != nil {
			f.Size, f.SHA256, f.LFSSize = s.LFS.Size, s.LFS.SHA256, s.LFS.Size
		}
		t.Files[s.Path] = f
	}
	return t
}

const (
	single      = "model.safetensors"
	index       = "model.safetensors.index.json"
	pickle      = "pytorch_model.bin"
	pickleIndex = "pytorch_model.bin.index.json"
)

// first returns the first of names that exists.
func (t tree) first(names ...string) string {
	for _, name := range names {
		if _, ok := t.Files[name]; ok {
			return name
		}
	}
	return ""
}

// weights returns the file that has the weights or their index, "" if there is none.
func (t tree) weights() string { return t.first(single, index, pickle, pickleIndex) }

// small returns the names of the files that are needed besides weights.
func (t tree) small(files Files) (names []string) {
	for name := range t.Files {
		in, base := path.Split(name)
		wanted := slices.Contains([]string{"config.json", "generation_config.json", "adapter_config.json"}, name)
		if files >= Tokenizer && !strings.HasSuffix(base, ".index.json") {
			wanted = wanted || in == "" && slices.Contains([]string{".json", ".jinja", ".txt", ".model"}, path.Ext(base)) ||
				in == "additional_chat_templates/" && path.Ext(base) == ".jinja"
		}
		if wanted {
			names = append(names, name)
		}
	}
	if w := t.weights(); strings.HasSuffix(w, ".index.json") {
		names = append(names, w)
	}
	slices.Sort(names)
	return names
}

// large returns the names of the files with weights, according to their index in a folder.
func (t tree) large(m model, folder string) ([]string, error) {
	w := t.weights()
	if !strings.HasSuffix(w, ".index.json") {
		return []string{w}, nil
	}
	raw, err := input.Read(filepath.Join(folder, w), maxSmall)
	if err != nil {
		return nil, err
	}
	var in struct {
		Map map[string]string `json:"weight_map"` // tensor → file
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, input.BadInput(fmt.Errorf("%v: %s: %w", m, w, err))
	}
	names := slices.Compact(slices.Sorted(maps.Values(in.Map)))
	for _, name := range names {
		if _, ok := t.Files[name]; !ok || path.Base(name) != name || path.Ext(name) != ".safetensors" && path.Ext(name) != ".bin" {
			return nil, input.BadInput(fmt.Errorf("%v: %s names the file %.100q, which is no file with weights of this model", m, w, name))
		}
	}
	if len(names) == 0 {
		return nil, input.BadInput(fmt.Errorf("%v: %s names no files", m, w))
	}
	return names, nil
}

// check returns an error if a file is too large or has no checksum.
func (t tree) check(m model, names []string, limit int64) error {
	for _, name := range names {
		switch f := t.Files[name]; {
		case f.Size < 0 || f.Size > limit:
			return input.BadInput(fmt.Errorf("%v: %s has %d bytes; the limit for such a file is %d", m, name, f.Size, limit))
		case !checksum.MatchString(f.sum()):
			return input.BadInput(fmt.Errorf("%v: the list of files gives no checksum of %s", m, name))
		}
	}
	return nil
}
