package data

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Token files come in three formats, told apart by their first four bytes:
//
//   - llm.c, GPT-2: a header of 256 int32 (20240520, version 1, number of
//     tokens, zeros), then the ids as uint16.
//   - llm.c, Llama 3: the same with 20240801, version 7, and ids as uint32.
//   - nanoGPT and others: nothing but ids, in the type that Source.DType names
//     or else uint16. No GPT-2 text begins like one of the headers, whose first
//     two bytes would be an id above 55000.
//
// All numbers are little-endian. Ids of four or eight bytes can be read as twice
// or four times as many of two, of which all but the first are 0. So without a
// DType a file that can be read as wider ids of the vocabulary is refused.
const headerBytes = 256 * 4

var llmc = map[uint32]struct {
	version uint32
	width   int
}{
	20240520: {1, 2},
	20240801: {7, 4},
}

// widths are the types of ids in files without a header, in bytes.
var widths = map[string]int{"uint16": 2, "uint32": 4, "int32": 4, "int64": 8}

// idsOf is what a file's ids are said to be.
type idsOf struct {
	dtype string // one of widths, or "" if nobody says
	limit int    // ids are below it; 0 if nobody says
}

// mapTokens maps token files. The caller calls all of release, also on error.
func mapTokens(files []file, ids idsOf) (segments []segment, release []func() error, err error) {
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

// parse finds the ids in a token file's bytes.
func (ids idsOf) parse(name string, b []byte) (segment, error) {
	var magic uint32
	if len(b) >= 4 {
		magic = binary.LittleEndian.Uint32(b)
	}
	format, ok := llmc[magic]
	if !ok {
		return ids.bare(name, b)
	}
	if len(b) < headerBytes {
		return segment{}, fmt.Errorf("an llm.c file of %d bytes ends within its header of %d", len(b), headerBytes)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != format.version {
		return segment{}, fmt.Errorf("llm.c magic number %d with version %d; version %d is known", magic, v, format.version)
	}
	n := int64(int32(binary.LittleEndian.Uint32(b[8:])))
	if want := headerBytes + n*int64(format.width); n < 1 || want != int64(len(b)) {
		return segment{}, fmt.Errorf("its header says %d tokens of %d bytes, %d bytes in all, but the file has %d", n, format.width, want, len(b))
	}
	if ids.dtype != "" && widths[ids.dtype] != format.width {
		return segment{}, fmt.Errorf("its llm.c header says ids of %d bytes, data.dtype says %s; leave data.dtype out", format.width, ids.dtype)
	}
	return segment{name: name, data: b[headerBytes:], width: format.width, at: headerBytes}, nil
}

// bare is the ids of a file without a header.
func (ids idsOf) bare(name string, b []byte) (segment, error) {
	dtype, width := ids.dtype, widths[ids.dtype]
	if dtype == "" {
		dtype, width = "uint16", 2
	}
	switch wide := ids.wide(b); {
	case len(b)%width != 0:
		return segment{}, fmt.Errorf("%d bytes are no whole number of %s ids, and no llm.c header begins the file", len(b), dtype)
	case ids.dtype == "" && wide != "":
		return segment{}, fmt.Errorf("no header says what its ids are, and as %s they are in the vocabulary from the first on; say data.dtype: %s, or what they are", wide, wide)
	case ids.dtype == "" && ids.limit > 1<<16:
		return segment{}, fmt.Errorf("no header says what its ids are, and uint16 has not all of a vocabulary of %d; say data.dtype: uint32, or what they are", ids.limit)
	}
	return segment{name: name, data: b, width: width}, nil
}

// searched is how many bytes are looked at for ids of another type.
const searched = 1 << 20

// wide is the widest type as which the file begins with ids of the vocabulary;
// empty if that is uint16. Ids of two bytes end the search after a few.
func (ids idsOf) wide(b []byte) string {
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
