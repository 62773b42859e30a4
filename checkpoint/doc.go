// Package checkpoint stores named tensors on disk so that they survive a kill
// at any instant, a flipped bit is found and named, and any number of readers
// can load what any number of writers saved.
//
// A checkpoint is a set of logical tensors, each a (name, kind) with a dtype
// and a shape, and a state.json of the caller's. A writer puts ranges of
// elements of the flattened tensors; a reader asks for others. Rank, sharding
// stage and padding are not in the format: loading on other ranks is the
// intersection of intervals.
//
// # Use
//
// A single process calls Begin, Save.Writer, Writer.Put, Writer.Finish and
// Save.Commit; ranks that save together call Rank.Together, which does that
// with one Writer each. Open, Checkpoint.Read and ReadAll load. List and
// Resolve find checkpoints, Prune deletes them, Verify reads every byte, Diff
// compares, Export, Import and Reshard convert.
//
// # Format 1
//
// This section and the next are all that another implementation needs.
// Integers in binary data are little-endian. JSON is UTF-8; keys not listed
// here, or there twice, are an error. CRC32C is that of RFC 3720 (polynomial 0x1EDC6F41,
// reflected; of "123456789" it is e3069283), written as 8 lower-case
// hexadecimal digits. SHA-256 is written as 64 of them. Numbers in file names
// are padded with zeros to the width shown and grow beyond it.
//
// A folder of checkpoints has
//
//	step-00001000/            a committed checkpoint of step 1000, never changed
//	step-00001000.1/          the same step, committed again later (.2, ...)
//	.tmp-step-00001100-NONCE/ a save in progress or cut short: never loaded
//	.trash-NAME-NONCE/        a folder of one of these names that is being deleted: never loaded
//	.lock                     locked with flock(2) by who saves or deletes: a
//	                          run for its whole life; says by whom
//
// NONCE is 16 lower-case hexadecimal digits, new for every save. Other names
// are ignored. A folder of a step may be a symbolic link to one. The name of a
// step's folder has to be that of the manifest's step; under another name a
// checkpoint may be anywhere. A checkpoint's folder has
//
//	COMMIT                        the commit marker
//	MANIFEST.json                 what it is and which files it has
//	state.json                    any bytes; the caller's
//	part-00007.json               what writer 7 wrote
//	data-00007-000.safetensors    the first data file of writer 7 (-001, ...)
//
// COMMIT is exactly one line, ended by a newline:
//
//	zeroth-checkpoint 1 seq SEQ step STEP nonce NONCE manifest SHA256
//
// 1 is the format, SHA256 that of MANIFEST.json. SEQ counts the commits in the
// folder from 1; the latest checkpoint is the one with the highest SEQ, so
// that a run which went back to an earlier step is continued from there.
// SEQ, STEP and NONCE are also those of the manifest. SEQ is at most 2^53.
//
// MANIFEST.json is an object with
//
//	format   1
//	seq, step, nonce
//	created  time of the commit, RFC 3339
//	metrics  {name: number}, may be absent
//	uses     [name] of features that a reader must know, sorted; absent if there are none
//	writers  how many part files there are: part-00000.json and so on
//	tensors  [{name, kind, dtype, shape}], sorted by name, then kind (bytewise)
//	files    [{name, bytes, and either crc32c or sha256}], of every file but
//	         COMMIT and MANIFEST.json: crc32c (of all its bytes) for data
//	         files, sha256 for the others
//
// dtype is a name of the safetensors format whose elements are whole bytes;
// name is 1 to 1024 bytes, kind 1 to 64 of a-z 0-9 _ -. "master" is the kind
// of parameters, "file" that of small files that go with them (U8; the name is
// the path, as "tokenizer.json"), others belong to the optimizer's rule ("m", "v").
// A shape has at most 64 dimensions.
//
// MANIFEST.json, state.json and part files have at most 64 MiB, COMMIT 1024
// bytes, any value in a manifest or part file that is not a list 64 KiB.
//
// A part file is an object with
//
//	format, step, nonce, writer
//	tensors  [{name, kind, dtype, shape}] as in the manifest, in any order
//	files    of each data file, in order:
//	         name
//	         bytes          of the file
//	         header         bytes before the first extent
//	         header_crc32c  of those
//	         crc32c         of the whole file
//	         extents        [{tensor, lo, hi, offset, codec, stored, crc32c}]
//
// An extent is the elements [lo, hi) of the flattened tensor tensors[tensor],
// stored from byte offset of the file on. Extents follow each other without
// holes from byte header to the end of the file. The raw bytes of the elements
// (C order, little-endian) are cut into blocks of 262144 bytes, the last may
// be shorter; no element is cut, as element sizes divide it. Each block is
// stored after the one before:
//
//   - codec "raw": as it is; stored is absent.
//   - codec "planes": encoded, in stored[i] bytes, at most one more than raw.
//
// crc32c of an extent is the digits of all blocks' checksums, one after the
// other, each over the block as it is stored. Together the extents of all
// parts hold every element of every tensor exactly once.
//
// A data file is a valid safetensors file (see package safetensors) with one
// tensor per extent, in order: a vector of the tensor's dtype named
// NAME:KIND[LO:HI] for codec raw; bytes (U8) named NAME:KIND[LO:HI].planes for
// codec planes. Its header is padded with spaces to a fixed size, 65536 bytes
// (1 MiB at most), because it is written last; a full header ends the file and the writer
// begins another, as it does before a file would exceed 4 GiB. A reader of
// checkpoints needs the part file only.
//
// # Format 2
//
// A checkpoint with extents of parts of tensors, as ranks have them that divide matrices, is of
// format 2; any other is of format 1. COMMIT, MANIFEST.json and part files with such extents
// have the number 2, and uses in the manifest has "parts of tensors". Such an extent has
//
//	cut  {dim, take: [[lo, hi], …]}
//
// between hi and offset: the part of the tensor that has those indices of dimension dim, at
// most 16 ranges, ascending and apart. Its lo and hi count elements of the flattened part. All
// cuts of a tensor are of one dimension, their ranges together have each index once, and the
// extents of each hold every element of its part exactly once. In a data file's header the
// entry is named NAME:KIND{DIM:LO-HI:…}[LO:HI].
//
// A reader that wants the same part reads it as a whole tensor; one that wants another reads
// every block that has some of it, and takes from each block what it wants.
//
// # The codec planes
//
// A block of up to 262144 raw bytes is stored as
//
//	u8  method: 0 raw bytes follow; 1 planes follow
//
// With method 1 the elements of S bytes are read as little-endian integers;
// those of F32, BF16, F16 and F64 are rotated left by one bit, so that the
// sign becomes the lowest bit and the exponent of F32 and BF16 fills the
// highest byte. Plane p is byte p (0 the lowest) of every element in turn.
// Planes follow each other from 0 to S-1, each cut into pieces of at most
// 131072 bytes:
//
//	u8   kind: 0 raw, 1 run, 2 huffman, 3 zstd
//	u24  number of bytes that follow
//	...  raw: the bytes; run: the one byte that all are; zstd: a frame;
//	     huffman: as in RFC 8878: a Huffman tree description (4.2.1), then
//	     four streams with their jump table (3.1.1.3.1.6, 4.2.2), as in a
//	     compressed literals section without its header
//
// The exponents of a trained model's tensors have about 3 bits of information,
// the mantissas are noise: Huffman codes over the planes beat every general
// compressor in ratio and speed (BenchmarkCodec has both).
//
// # Integrity
//
// COMMIT vouches for MANIFEST.json, which vouches for the part files and
// state.json, which vouch for blocks and headers of data files. A read takes
// whole blocks and checks each, so at most two blocks too many are read for a
// range. An altered bit anywhere is found by Verify; in anything that is
// loaded, by loading.
//
// The newest of several checkpoints is told by COMMIT and MANIFEST.json. A
// damaged one is passed over only where both say, and the folder's name with
// them, that it is older than a whole one; two of the same number are both
// damaged. Anything else is an error of Resolve: what cannot be read may be newer.
//
// Files may come from anybody: their sizes are compared with what is claimed
// before memory is taken, every number with its range and with the numbers that
// repeat it, and names are quoted before they are shown.
//
// # Saving
//
//  1. One process has .lock locked, deletes .tmp- and .trash- folders (nobody
//     alive can own them) and makes the temporary folder.
//  2. Writers write data files, sync them, write and sync their part file,
//     sync the folder, and hand its SHA-256 to the process that began.
//  3. That process checks each part file's digest, nonce and writer, the
//     sizes of the data files, and that all elements are there once. It
//     writes and syncs state.json, MANIFEST.json and COMMIT, and syncs the
//     folder.
//  4. It renames the folder to its final name and syncs the parent. This is
//     the commit.
//
// Nothing of an older checkpoint is touched before; one of the same step gets
// a neighbour with a number. Deletion, later, renames to .trash-, syncs the
// parent and then removes, one by one, the regular files with a name of this
// format, and the folder when it is empty. It begins only if there is nothing
// else in it, and follows no link. So at every instant, also after a power loss that
// keeps any part of what was not synced, the folder named step- is whole.
// There is no pointer file to the latest checkpoint, because it could only be
// wrong.
package checkpoint
