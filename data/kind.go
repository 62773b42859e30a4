package data

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"zeroth/internal/input"
)

// Files are checked for known formats before they are read as something else: to the
// tokenizer "bytes" a compressed file would be text, and as token ids a NumPy array would be
// data.

// headBytes is how much of a file is examined.
const headBytes = 8 << 10

// format is a file format. sign is what its files begin with or, for formats without magic bytes, the
// extension of their names: a name says nothing about a file that begins otherwise.
type format struct{ sign, what, advice string }

func (f format) named() bool { return f.sign[0] == '.' }

// fits reports whether a file with the given beginning has the format.
func (f format) fits(path string, head []byte) bool {
	if f.named() {
		return strings.EqualFold(filepath.Ext(path), f.sign)
	}
	return bytes.HasPrefix(head, []byte(f.sign))
}

// formats lists file formats with advice on each.
var formats = []format{
	{"\x1f\x8b\x08\x00", "compressed with gzip", "unpack it: gzip -dc FILE > NEW"},
	{"\x1f\x8b\x08\x08", "compressed with gzip", "unpack it: gzip -dc FILE > NEW"},
	{"\x1f\x8b", "compressed with gzip", "unpack it: gzip -dc FILE > NEW"},
	{"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it: zstd -dc FILE > NEW"},
	{"BZh91AY&SY", "compressed with bzip2", "unpack it: bzip2 -dc FILE > NEW"},
	{"\xfd7zXZ\x00", "compressed with xz", "unpack it: xz -dc FILE > NEW"},
	{"\x04\x22\x4d\x18", "compressed with lz4", "unpack it: lz4 -dc FILE > NEW"},
	{"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"},
	{"PK\x03\x04", "a zip archive", "unpack it"},
	{"PK\x05\x06", "an empty zip archive", "leave it out"},
	{"PAR1", "a parquet file", jsonAdvice},
	{"ARROW1\x00\x00", "an Arrow file",
		`write it as Parquet: pyarrow.parquet.write_table(pyarrow.ipc.open_file(FILE).read_all(), "data.parquet")` + asRecords},
	{"\xff\xff\xff\xff", "an Arrow stream, as the library datasets writes it",
		`write it as Parquet: datasets.Dataset.from_file(FILE).to_parquet("data.parquet")` + asRecords},
	{"\x93NUMPY", "a NumPy array", "write only its elements: numpy.load(FILE).tofile(NEW)" + asTokens},
	{"\x89HDF\r\n\x1a\n", "an HDF5 file", "write only its elements: h5py.File(FILE)[NAME][:].tofile(NEW)" + asTokens},
	{"MMIDIDX\x00\x00", "the index of a Megatron data set", "give its .bin file as data.tokens, with data.dtype"},
	{"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer, not the file itself", "fetch the file: git lfs pull"},
	{"%PDF-", "a PDF", "extract its text first"},
	{"\x89PNG\r\n\x1a\n", "a PNG image", "leave it out"},
	{"\xff\xd8\xff", "a JPEG image", "leave it out"},
	{"\x7fELF", "a program", "leave it out"},
	{"SQLite format 3\x00", "an SQLite database", "export its text first"},
	{".jsonl", "a file of JSON records, one per line", jsonAdvice},
	{".ndjson", "a file of JSON records, one per line", jsonAdvice},
	{".safetensors", "a model's parameters", "leave it out"},
	{"\xff\xfe\x00\x00", "text in UTF-32", "convert it: iconv -f UTF-32 -t UTF-8"},
	{"\x00\x00\xfe\xff", "text in UTF-32", "convert it: iconv -f UTF-32 -t UTF-8"},
	{"\xff\xfe", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
	{"\xfe\xff", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
}

const (
	asRecords = ", and give that as data.documents"
	asTokens  = ", and give that as data.tokens, with data.dtype"
)

const jsonAdvice = "give it as data.documents (zeroth tokenize: with --format)"

// shortest is the length below which magic bytes could occur by chance at the beginning of
// token ids.
const shortest = 4

// checkKind refuses a file that does not fit its key: "text", "tokens" or a key of documents.
func checkKind(key, path string) error {
	head, err := beginning(path)
	if err != nil {
		return err
	}
	if strings.HasSuffix(key, "documents") {
		return notRecords(path, head)
	}
	for _, f := range formats {
		chance := key == "tokens" && !f.named() && (len(f.sign) < shortest || strings.HasPrefix(f.what, "text in UTF"))
		if f.fits(path, head) && !chance {
			return fmt.Errorf("%s is %s; %s", path, f.what, f.advice)
		}
	}
	if key == "tokens" {
		return notTokens(path, head)
	}
	return notText(path, head)
}

// Kind describes a file, by its first bytes or its name, and returns the key of a job for it,
// such as "documents". The results are empty if the format or key is unknown.
func Kind(path string) (what, key string) {
	head, err := beginning(path)
	if err != nil {
		return "", ""
	}
	ext := strings.ToLower(filepath.Ext(path))
	for _, f := range formats {
		if f.fits(path, head) {
			if strings.HasPrefix(f.what, "text in UTF") {
				return "", "" // may contain anything
			}
			if f.advice == jsonAdvice || strings.Contains(path, ".json") {
				key = "documents"
			}
			return f.what, key
		}
	}
	switch {
	case jsonLines(head):
		return "a file of JSON records, one per line", "documents"
	case ext == ".json" && bytes.HasPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte("[")):
		return "a JSON array, not one record per line (convert it with jq -c '.[]')", ""
	case ext == ".bin" && refuseZeros(path, head) != nil:
		return "a file of token ids", "tokens"
	case table(path):
		return aTable, ""
	case ext == ".txt" || ext == ".md":
		return "a file of text", "text"
	}
	return "", ""
}

const aTable = "a table of comma-separated values"

// table reports whether a file is one, by its name.
func table(path string) bool { return strings.EqualFold(filepath.Ext(path), ".csv") }

// Format returns the format of a file of records, judging by its first record, or "" if that
// has other keys. A chat may contain the keys of other formats.
func Format(path string) string {
	head, err := beginning(path)
	first, _, _ := bytes.Cut(head, []byte("\n"))
	for _, x := range [...]struct{ key, format string }{{"messages", "chat"}, {"conversations", "chat"}, {"instruction", "chat"}, {"prompt", "prompt"}, {"text", "text"}} {
		if err == nil && bytes.Contains(first, []byte(`"`+x.key+`"`)) {
			return x.format
		}
	}
	return ""
}

// notRecords refuses files that are neither lines of JSON, compressed or not, nor Parquet.
func notRecords(path string, head []byte) error {
	if table(path) {
		return fmt.Errorf("%s is %s, not lines of JSON; convert it: python3 -c 'import csv, json, sys; [print(json.dumps(r)) for r in csv.DictReader(sys.stdin)]' <FILE >NEW.jsonl", path, aTable)
	}
	for _, f := range formats {
		packed := strings.HasPrefix(f.what, "compressed with gzip") || strings.HasPrefix(f.what, "compressed with zstd")
		if f.fits(path, head) && !f.named() && !packed && f.sign != "PAR1" {
			return fmt.Errorf("%s is %s, not lines of JSON; %s", path, f.what, f.advice)
		}
	}
	if text := bytes.TrimLeft(head, " \t\r\n"); len(text) > 0 && text[0] == '[' {
		return fmt.Errorf("%s is a JSON array, not one record per line; convert it with jq -c '.[]'", path)
	}
	return nil
}

// beginning returns the first bytes of a file, at most headBytes.
func beginning(path string) ([]byte, error) {
	f, err := input.Open(path, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, headBytes)
	n, err := io.ReadFull(f, head)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return head[:n], err
}

func notText(path string, head []byte) error {
	if jsonLines(head) {
		return fmt.Errorf("%s is a file of JSON records, one per line; %s", path, jsonAdvice)
	}
	page := strings.ToLower(strings.TrimLeft(strings.TrimPrefix(string(head[:min(len(head), 256)]), "\ufeff"), " \t\r\n"))
	if strings.HasPrefix(page, "<!doctype html") || strings.HasPrefix(page, "<html") {
		return fmt.Errorf("%s is an HTML page; extract its text first", path)
	}
	return refuseZeros(path, head)
}

// jsonLines reports whether a file begins with two lines that are JSON objects, or with one
// line longer than headBytes that begins like a record.
func jsonLines(head []byte) bool {
	first, rest, whole := bytes.Cut(head, []byte("\n"))
	if !whole {
		return len(head) == headBytes && bytes.HasPrefix(head, []byte(`{"text"`))
	}
	return bytes.HasPrefix(first, []byte("{")) && json.Valid(first) && bytes.HasPrefix(rest, []byte("{"))
}

// refuseZeros refuses text that contains a zero byte.
func refuseZeros(path string, text []byte) error {
	i := bytes.IndexByte(text, 0)
	if i < 0 {
		return nil
	}
	what, advice := "is a binary file, not text", "leave it out of the patterns"
	if len(text) >= 4 && (text[0] == 0) == (text[2] == 0) && (text[1] == 0) == (text[3] == 0) && (text[0] == 0) != (text[1] == 0) {
		what, advice = "seems to be text in UTF-16", "convert it: iconv -f UTF-16LE -t UTF-8"
		if text[0] == 0 {
			advice = "convert it: iconv -f UTF-16BE -t UTF-8"
		}
	}
	return fmt.Errorf("%s %s: byte %d is 0; %s; token ids are given as data.tokens", path, what, i, advice)
}

// notTokens refuses text: if every byte, of at least 16 two-byte ids, is part of a character,
// the file is not token ids.
func notTokens(path string, head []byte) error {
	if len(head) < 32 {
		return nil
	}
	for text := head; utf8.FullRune(text); { // the last character may be cut
		r, n := utf8.DecodeRune(text)
		if r == utf8.RuneError || r < ' ' && r != '\n' && r != '\t' && r != '\r' || r == 0x7f {
			return nil
		}
		text = text[n:]
	}
	return fmt.Errorf("%s is text, not token ids; give it as data.text", path)
}
