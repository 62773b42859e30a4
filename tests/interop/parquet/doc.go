// Package parquet measures why data.documents has a Parquet reader of its own and does
// not use parquet-go: files of some hundred bytes, within every limit that can be checked
// before parquet-go is called, make it allocate several hundred thousand times their
// size.
//
// It is a module of its own, so that the program depends on no other reader:
//
//	cd tests/interop/parquet && go test ./...
package parquet
