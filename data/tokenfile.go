package data

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Token files have one of three formats, distinguished by their first four bytes:
//
//   - llm.c, GPT-2: a header of 256 int32 (20240520, version 1, number of
//     tokens, zeros), then the ids as uint16.
//   - llm.c, Llama 3: the same with 20240801, version 7, and ids as uint32.
//   - nanoGPT and others: only ids, of type Source.DType or else uint16. No GPT-2 text
//     begins like one of the headers, whose first two bytes would be an id above 55000.
//
// All numbers are little-endian. Ids of four or eight bytes can be misread as two or four
// times as many of two bytes, all but the first of which are 0. So without a DType, a file
// that can be read as wider ids of the vocabulary is refused.
const headerBytes = 256 * 4

var llmc = map[uint32]struct {
	version uint32
	width   int
}{
	20240520: {1, 2},
	20240801: {7, 4},
}

// widths maps the types of ids in files without a header to their size in bytes.
var widths = map[string]int{"uint16": 2, "uint32": 4, "int32": 4, "int64": 8}

// idFormat is the expected format of a file's ids.
type idFormat struct {
	dtype string // a key of widths, or "" if unknown
	limit int    // exclusive upper bound of ids; 0 if unknown
}

// mapTokens maps token files. The caller must call all of release, even after an error.
func mapTokens(files []file, ids idFormat) (segments []segment, release []func() error, err error) {
	var errs []error
	for _, f := range files {
		data, unmap, err := mapFile(f)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		release = append(release, unmap)
		s, err := ids.parse(f.path, data)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.path, err))
		}
		segments = append(segments, s)
	}
	return segments, release, errors.Join(errs...)
}

// parse locates the ids in a token file.
func (ids idFormat) parse(name string, b []byte) (segment, error) {
	var magic uint32
	if len(b) >= 4 {
		magic = binary.LittleEndian.Uint32(b)
	}
	format, ok := llmc[magic]
	if !ok {
		return ids.parseHeaderless(name, b)
	}
	if len(b) < headerBytes {
		return segment{}, fmt.Errorf("an llm.c file of %d bytes ends within its header of %d", len(b), headerBytes)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != format.version {
		return segment{}, fmt.Errorf("llm.c magic number %d with version %d; only version %d is supported", magic, v, format.version)
	}
	n := int64(int32(binary.LittleEndian.Uint32(b[8:])))
	if want := headerBytes + n*int64(format.width); n < 1 || want != int64(len(b)) {
		return segment{}, fmt.Errorf("its header says %d tokens of %d bytes, %d bytes in all, but the file has %d", n, format.width, want, len(b))
	}
	if ids.dtype != "" && widths[ids.dtype] != format.width {
		return segment{}, fmt.Errorf("its llm.c header says ids of %d bytes, but data.dtype is %s; remove data.dtype", format.width, ids.dtype)
	}
	return segment{name: name, data: b[headerBytes:], width: format.width, at: headerBytes}, nil
}

// parseHeaderless returns the ids of a file without a header.
func (ids idFormat) parseHeaderless(name string, b []byte) (segment, error) {
	dtype, width := ids.dtype, widths[ids.dtype]
	if dtype == "" {
		dtype, width = "uint16", 2
	}
	switch wide := ids.widest(b); {
	case len(b)%width != 0:
		return segment{}, fmt.Errorf("%d bytes is not a whole number of %s ids, and the file has no llm.c header", len(b), dtype)
	case ids.dtype == "" && wide != "":
		return segment{}, fmt.Errorf("the file has no header, and its ids also fit the vocabulary as %s; set data.dtype: %s, or their actual type", wide, wide)
	case ids.dtype == "" && ids.limit > 1<<16:
		return segment{}, fmt.Errorf("the file has no header, and uint16 is too small for a vocabulary of %d; set data.dtype: uint32, or the actual type of its ids", ids.limit)
	}
	return segment{name: name, data: b, width: width}, nil
}

// searched limits how many bytes are examined for ids of another type.
const searched = 1 << 20

// widest returns the widest type with which all ids at the beginning of the file are in the
// vocabulary, or "" for uint16. For ids of two bytes the search ends after a few.
func (ids idFormat) widest(b []byte) string {
	limit := uint64(ids.limit)
	if limit == 0 {
		limit = 1 << 16
	}
	for _, dtype := range []string{"int64", "uint32"} {
		width := widths[dtype]
		fits := len(b) > 0 && len(b)%width == 0
		for rest := b[:min(len(b), searched)]; fits && len(rest) > 0; rest = rest[width:] {
			fits = largestID(rest[:width], width) < limit
		}
		if fits {
			return dtype
		}
	}
	return ""
}
