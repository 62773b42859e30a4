// Package torchfile reads and writes the files of torch.save.
//
// A file is a zip archive of uncompressed entries: STEM/data.pkl is a pickle of the object, and
// STEM/data/N contains the bytes of storage N. Files of PyTorch before 1.6 are a sequence of
// pickles, followed by the storages. Tensors are views of storages: an offset, a shape and strides.
//
// A pickle is a program. The reader executes nothing: it understands the instructions of protocols
// 2 to 4 that PyTorch uses and turns instances of known classes into data. Anything else is an
// error that names it. Files are untrusted: every object is counted against a budget before memory
// is allocated for it, so a file needs at most its own size and 48 MiB. Values that others share
// count once for each use, so that budget also bounds the work and memory of whoever walks them.
package torchfile
