package main

import (
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"zeroth/data"
	"zeroth/internal/input/hub"
)

func (a *app) tokenize() *cobra.Command {
	e := data.Encoding{}
	cmd := &cobra.Command{
		Use:   "tokenize --tokenizer NAME FILE... --out FILE.bin",
		Short: "Encode text files or records into a token file",
		Long: `Encode text files into one token file for data.tokens of a job. Each file is a
document, in the order of paths; zeroth expands patterns such as 'docs/**/*.md' if the
shell does not. With --format the files contain records instead, as for
data.documents: JSON Lines (also compressed with gzip or zstd) or Parquet. Each record
is a document, and broken ones are reported with file and line.

The token file is in llm.c's format: a header of 1,024 bytes with the number and width
of the ids, then ids of two bytes, or of four if the vocabulary has more than 65,536
tokens. An existing file is not replaced.`,
		Example: `  zeroth tokenize --tokenizer gpt2 'corpus/**/*.txt' --out corpus.bin
  zeroth tokenize --tokenizer hf://Qwen/Qwen3-0.6B a.txt b.txt --out ab.bin
  zeroth tokenize --tokenizer gpt2 --format text --key text=body 'web/*.jsonl.gz' --out web.bin`,
		Args: arguments(1, math.MaxInt),
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			ctx, release := a.untilSignal(cmd.Context(), func() {}, nil)
			defer release()
			e.Text = args
			tokenizer, err := a.local(ctx, e.Tokenizer, hub.Tokenizer)
			if err != nil {
				return stopped(ctx, err)
			}
			e.Tokenizer = tokenizer
			begin := time.Now()
			e.Progress = a.encoding(begin)
			done, err := e.Encode(ctx)
			if err != nil {
				return stopped(ctx, err)
			}
			for _, n := range done.Notes {
				a.note(n)
			}
			a.say("%s: %d tokens of %d bytes each, from %d documents (%d bytes), vocabulary %d, in %.1f s\n",
				e.Out, done.Tokens, done.Width, done.Documents, done.Bytes, done.Vocab, time.Since(begin).Seconds())
			return nil
		}),
	}
	f := cmd.Flags()
	f.StringVar(&e.Tokenizer, "tokenizer", "", "`name` (bytes or gpt2), a folder (with tokenizer.json, or vocab.json and merges.txt), hf://org/name, or s3://bucket/folder")
	f.StringVar(&e.Format, "format", "", "`format` of records: text, prompt or chat, as data.format (default: text files)")
	f.StringToStringVar(&e.Keys, "key", nil, "`name=key` of a record, as data.keys, such as messages=conversations (repeatable)")
	f.Lookup("key").DefValue = ""
	f.StringVar(&e.Out, "out", "", "`file` to write")
	must(cmd.MarkFlagRequired("tokenizer"))
	must(cmd.MarkFlagRequired("out"))
	return cmd
}

// encoding returns a function that prints the progress of an encoding every two seconds.
func (a *app) encoding(begin time.Time) func(done, total int64) {
	next := begin.Add(2 * time.Second)
	return func(done, total int64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(2 * time.Second)
			a.note(fmt.Sprintf("encoded %d of %d MB, %.1f MB/s", done/1e6, total/1e6, float64(done)/1e6/now.Sub(begin).Seconds()))
		}
	}
}
