// Package checkpoint stores named tensors on disk. Checkpoints survive a kill at any instant,
// flipped bits are detected and located, and any number of readers can load what any number of
// writers saved.
//
// A checkpoint is a set of logical tensors, each identified by (name, kind) with a dtype and a
// shape, and the caller's state.json. Writers put ranges of elements of the flattened tensors;
// readers request others. Rank, sharding stage and padding are not in the format: loading on
// other ranks intersects ranges.
//
// # Use
//
// A single process calls Begin, Save.Writer, Writer.Put, Writer.Finish and Save.Commit; ranks
// that save together call Rank.Together, which does that with one Writer each. Open,
// Checkpoint.Read and ReadAll load. List and Resolve find checkpoints, Prune deletes them,
// Verify reads every byte, Diff compares, and Export, Import and Reshard convert.
//
// # Format 1
//
// This section and the next are sufficient for another implementation. Integers in binary data
// are little-endian. JSON is UTF-8; unknown and duplicate keys are errors. CRC32C is that of
// RFC 3720 (polynomial 0x1EDC6F41, reflected; e3069283 for "123456789"), written as 8 lower-case
// hexadecimal digits, SHA-256 as 64 of them. Numbers in file names are padded with
// zeros to the width shown and grow beyond it.
//
// A folder of checkpoints contains
//
//	step-00001000/            a committed checkpoint of step 1000, never changed
//	step-00001000.1/          the same step, committed again later (.2, ...)
//	.tmp-step-00001100-NONCE/ a save in progress or interrupted: never loaded
//	base-SHA256/              tensors that several checkpoints share; see Base folders
//	.trash-NAME-NONCE/        a folder of one of these names being deleted: never loaded
//	.lock                     locked with flock(2) by the process that saves or deletes
//	                          (a run locks it for its whole life); its content names it
//
// NONCE is 16 lower-case hexadecimal digits, new for every save. Other names are ignored. The
// folder of a step may be a symbolic link to one. The step in a folder's name must be that of
// the manifest; under another name a checkpoint may be anywhere. A checkpoint's folder contains
//
//	COMMIT                        the commit marker
//	MANIFEST.json                 description of the checkpoint and its files
//	state.json                    any bytes, from the caller
//	part-00007.json               description of what writer 7 wrote
//	data-00007-000.safetensors    the first data file of writer 7 (-001, ...)
//
// COMMIT is exactly one line, ended by a newline:
//
//	zeroth-checkpoint 1 seq SEQ step STEP nonce NONCE manifest SHA256
//
// 1 is the format, SHA256 that of MANIFEST.json. SEQ counts the commits in the folder from 1;
// the latest checkpoint is the one with the highest SEQ, so that a run that went back to an
// earlier step continues from there. SEQ, STEP and NONCE equal those of the manifest. SEQ is at
// most 2^53.
//
// MANIFEST.json is an object with
//
//	format   1
//	seq, step, nonce
//	created  time of the commit, RFC 3339
//	metrics  {name: number}, may be absent
//	uses     [name] of features that a reader must support, sorted; absent if none
//	base     name of the base folder; absent if there is none
//	writers  number of part files: part-00000.json and so on
//	tensors  [{name, kind, dtype, shape}], sorted by name, then kind (bytewise)
//	files    [{name, bytes, and either crc32c or sha256}], of every file but
//	         COMMIT and MANIFEST.json: crc32c (of all its bytes) for data
//	         files, sha256 for the others
//
// dtype is a name of the safetensors format with elements of whole bytes; name is 1 to 1024
// bytes, kind 1 to 64 of a-z 0-9 _ -. "master" is the kind of parameters, "nf4" and "int8" those of
// parameters in codes (a vector of U32, described at device.NF4 and Int8), "file" that of attached small files (U8;
// the name is the path, such as "tokenizer.json"); others belong to the optimizer's rule ("m",
// "v"). A shape has at most 64 dimensions.
//
// MANIFEST.json, state.json and part files have at most 64 MiB, COMMIT 1024 bytes, any value in a
// manifest or part file that is not a list 64 KiB.
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
// An extent contains the elements [lo, hi) of the flattened tensor tensors[tensor], stored at
// byte offset of the file. Extents are contiguous, from byte header to the end of the file. The
// raw bytes of the elements (C order, little-endian) are divided into blocks of 262144 bytes; the
// last may be shorter. Element sizes divide the block size, so no element is split. Blocks are
// stored one after the other:
//
//   - codec "raw": unchanged; stored is absent.
//   - codec "planes": encoded, in stored[i] bytes, at most one more than raw.
//
// crc32c of an extent is the concatenation of the checksums of all blocks, each over the block as
// stored. Together the extents of all parts contain every element of every tensor exactly once.
//
// A data file is a valid safetensors file (see package safetensors) with one tensor per extent,
// in order: for codec raw, a vector of the tensor's dtype named NAME:KIND[LO:HI]; for codec
// planes, bytes (U8) named NAME:KIND[LO:HI].planes. Its header is written last, so it is padded
// with spaces to a fixed size, 65536 bytes (1 MiB at most). When the header is full, or the file
// would exceed 4 GiB, the writer begins another file. A reader of checkpoints needs only the part
// file.
//
// # Format 2
//
// A checkpoint with extents of parts of tensors, written by ranks that divide matrices, has format
// 2; all others have format 1. Its COMMIT, MANIFEST.json and the part files with such extents
// contain the number 2, and uses in the manifest contains "parts of tensors". Such an extent has
//
//	cut  {first: [lo, hi], dim, take: [[lo, hi], …]}
//
// between hi and offset: the part of the tensor with the given indices of dimension dim, at most 16
// ranges, ascending and disjoint, and, if first is present, with those indices of dimension 0. Its lo
// and hi count elements of the flattened part. All cuts of a tensor divide the same dimension. The
// ranges of those with the same first together contain each index once, and so do all first. The
// extents of each contain every element of its part exactly once. The entry in the data file's header
// is named NAME:KIND{DIM:LO-HI:…}[LO:HI]; with first, 0:LO-HI and a space follow the brace.
//
// A reader that requests the same part reads it like a whole tensor; one that requests another part
// reads every block that contains some of it and picks the elements.
//
// # Base folders
//
// Tensors that do not change from checkpoint to checkpoint, such as frozen parameters, can be in a
// base folder next to the checkpoints that need them. It has the files of a checkpoint, in either
// format, and is named base- and the SHA-256 of its MANIFEST.json. Its seq orders nothing, its
// state.json may be empty, and it names no base folder of its own.
//
// A checkpoint that needs one has its name in base, and "tensors in a base folder" in uses. Its
// tensors are those of both manifests, which have none in common; its parts contain only its own.
// The base is committed, by a save of its own, before the first checkpoint that names it, and deleted
// after the last one. While the manifest of any checkpoint in the folder cannot be read, no base is
// deleted.
//
// # The codec planes
//
// A block of up to 262144 raw bytes is stored as
//
//	u8  method: 0 raw bytes follow; 1 planes follow
//
// With method 1 the elements of S bytes are interpreted as little-endian integers; those of F32,
// BF16, F16 and F64 are rotated left by one bit, so that the sign becomes the lowest bit and the
// exponent of F32 and BF16 fills the highest byte. Plane p consists of byte p (0 the lowest) of
// every element. Planes follow each other from 0 to S-1, each divided into pieces of at most
// 131072 bytes:
//
//	u8   kind: 0 raw, 1 run, 2 huffman, 3 zstd
//	u24  number of bytes that follow
//	...  raw: the bytes; run: the byte repeated; zstd: a frame;
//	     huffman: as in RFC 8878: a Huffman tree description (4.2.1), then
//	     four streams with their jump table (3.1.1.3.1.6, 4.2.2), as in a
//	     compressed literals section without its header
//
// The exponents of a trained model's tensors carry about 3 bits of information, and the mantissas
// are noise: Huffman codes over the planes beat every general compressor in ratio and speed
// (BenchmarkCodec compares them).
//
// # Integrity
//
// COMMIT vouches for MANIFEST.json, which vouches for the base folder, the part files and state.json,
// which vouch for blocks and headers of data files. A read fetches whole blocks and checks each, so a
// range costs at most two extra blocks. Verify finds an altered bit anywhere; loading finds it in
// everything that is loaded.
//
// COMMIT and MANIFEST.json determine the newest checkpoint. A damaged one is skipped only if both,
// and the folder's name, say that it is older than an intact one; two with the same number are both
// damaged. Anything else is an error of Resolve: an unreadable checkpoint may be newer.
//
// Files are untrusted: sizes are compared with the claimed ones before memory is allocated, every
// number with its range and with the numbers that repeat it, and names are quoted before they are
// displayed.
//
// # Saving
//
//  1. One process locks .lock, deletes .tmp- and .trash- folders (no live process can own them)
//     and creates the temporary folder.
//  2. Writers write data files, sync them, write and sync their part file, sync the folder, and
//     send its SHA-256 to the process that began the save.
//  3. That process checks each part file's digest, nonce and writer, the sizes of the data files,
//     and that all elements are stored exactly once. It writes and syncs state.json, MANIFEST.json
//     and COMMIT, and syncs the folder.
//  4. It renames the folder to its final name and syncs the parent. This is the commit.
//
// Older checkpoints are not touched before the commit; one of the same step gets a sibling with a
// number. Deletion, later, renames a folder to .trash-, syncs the parent and then removes, one by
// one, the regular files with a name of this format, and finally the empty folder. It does so only
// if the folder contains nothing else, and follows no link. So at every instant, even after a power
// loss that keeps any part of what was not synced, a folder named step- is complete. There is no
// pointer file to the latest checkpoint, because it could only be wrong.
package checkpoint
