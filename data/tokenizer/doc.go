// Package tokenizer does what a tokenizer.json of Hugging Face says: text to ids
// and back, as the reference library (tokenizers 0.23) does it, to the id.
//
// A text goes through five steps; Parse reads them, Encode walks them:
//
//	added tokens   found in the text as it is, leftmost and longest first
//	normalizer     NFC, Prepend, Replace of what is between them
//	added tokens   those marked normalized, found in the normalized text
//	pre-tokenizer  cuts what is left into pieces
//	model          byte-pair encoding of each piece (merge.go)
//
// and the template of the post-processor puts tokens before and after the whole.
// Any part of the file that is not done here is an error that names it; no part is
// passed over that would change an id.
//
// Its tables are the reference's: classes.bin, of characters (Unicode 16), and
// young, of the marks that its NFC leaves alone (nfc.go). The script
// testdata/reference.py makes them and the recorded ids that the tests compare.
//
// What never enters: files, batches, and what a model does with ids. It is larger than
// other packages because every family of models has a splitter of its own, and every
// part of a file is either done exactly or refused by name.
package tokenizer
