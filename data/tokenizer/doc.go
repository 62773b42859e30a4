// Package tokenizer implements the tokenizer.json of Hugging Face: text to ids and back, with
// exactly the results of the reference library (tokenizers 0.23).
//
// A text goes through five steps, which Parse reads and Encode runs:
//
// added tokens   found in the original text, leftmost and longest first
// normalizer     NFC, Prepend, Replace, on the text between them
// added tokens   those marked normalized, found in the normalized text
// pre-tokenizer  splits the remaining text into pieces
// model          byte-pair encoding of each piece (merge.go)
//
// Finally the template of the post-processor adds tokens before and after the text. Any part
// of the file that is not supported is an error that names it; nothing that would change an id
// is ignored.
//
// The tables are the reference's: classes.bin, of characters (Unicode 16), and nfc.txt, of
// composition (nfc.go). The script testdata/reference.py generates them and the recorded ids
// that the tests compare.
// part of a file is either done exactly or refused by name.
package tokenizer
