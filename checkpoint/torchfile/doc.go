// Package torchfile reads the files that torch.save writes, and writes such files.
//
// A file is a zip archive with entries that are stored, not compressed: STEM/data.pkl is a pickle
// of the object, and STEM/data/N has the bytes of storage N. Files of PyTorch before 1.6 are a
// sequence of pickles, followed by the storages. Tensors are views of storages: an offset, a
// shape and strides.
//
// A pickle is a program. The reader executes nothing: it knows the instructions of protocols 2 to 4
// that PyTorch uses and a list of classes, which become data; anything else is an error that names
// it. Files are untrusted: every object is counted against a budget before memory is taken for it,
// so a file needs at most its own size and 48 MiB.
package torchfile
