package main

import (
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"zeroth/data"
)

func (a *app) tokenize() *cobra.Command {
	e := data.Encoding{}
	cmd := &cobra.Command{
		Use:   "tokenize --tokenizer NAME FILE... --out FILE.bin",
		Short: "Encode text files or records into a token file",
		Long: `Encode text files into one token file, which a job names with data.tokens. Files
are documents, in the order of their paths; patterns such as 'docs/**/*.md' are
matched here if the shell leaves them. With --format the files are records instead,
JSON one a line (also compressed with gzip or zstd) or Parquet, as data.documents
takes them: each is a document, and what is broken is named by file and line. The file is llm.c's: a header of 1,024
bytes that says how many ids there are and how wide, then ids of two bytes, or of
four if the vocabulary has more than 65,536. An existing file is not replaced.`,
		Example: `  zeroth tokenize --tokenizer gpt2 'corpus/**/*.txt' --out corpus.bin
  zeroth tokenize --tokenizer ./Qwen3-0.6B a.txt b.txt --out ab.bin
  zeroth tokenize --tokenizer gpt2 --format text --key text=body 'web/*.jsonl.gz' --out web.bin`,
		Args: arguments(1, math.MaxInt),
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			ctx, release := a.untilSignal(cmd.Context(), func() {}, nil)
			defer release()
			e.Text = args
			begin := time.Now()
			e.Progress = a.encoding(begin)
			done, err := e.Encode(ctx)
			if err != nil {
				return stopped(ctx, err)
			}
			for _, n := range done.Notes {
				a.note(n)
			}
			a.say("%s: %d documents of %d bytes, %d tokens of %d bytes, vocabulary %d, in %.1f s\n",
				e.Out, done.Documents, done.Bytes, done.Tokens, done.Width, done.Vocab, time.Since(begin).Seconds())
			return nil
		}),
	}
	f := cmd.Flags()
	f.StringVar(&e.Tokenizer, "tokenizer", "", "`name` bytes or gpt2, or a folder with tokenizer.json, or vocab.json and merges.txt")
	f.StringVar(&e.Format, "format", "", "the files are records of the `format` text, prompt or chat, as data.format has it; without it text files")
	f.StringToStringVar(&e.Keys, "key", nil, "`usual=other` name of a record's key, as data.keys has it: messages=conversations")
	f.StringVar(&e.Out, "out", "", "`file` to write")
	must(cmd.MarkFlagRequired("tokenizer"))
	must(cmd.MarkFlagRequired("out"))
	return cmd
}

// encoding notes now and then how far it is.
func (a *app) encoding(begin time.Time) func(done, total int64) {
	next := begin.Add(2 * time.Second)
	return func(done, total int64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(2 * time.Second)
			a.note(fmt.Sprintf("encoding: %d of %d MB, %.1f MB/s", done/1e6, total/1e6, float64(done)/1e6/now.Sub(begin).Seconds()))
		}
	}
}
