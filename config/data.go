package config

import (
	"strings"
	"time"

	"zeroth/config/tree"
	"zeroth/internal/input"
)

// Data selects the training data. One of Text, Tokens, Documents and Program is set.
type Data struct {
	Text       []string  // patterns of text files, as written in the job file
	Tokens     []string  // patterns of token files, as written in the job file
	Documents  []string  // patterns of files of JSON records, as written in the job file
	Weights    []float64 // one for each of Documents; empty: all documents have the same weight
	Program    bool      // the program that runs the job provides it
	Format     string    // of Documents: "text", "prompt" or "chat"
	Keys       RecordKeys
	MaxRecords int      // of each file of Documents; 0: all
	TooLong    string   // "cut" or "skip": what happens to documents that are longer than a sequence
	Learn      string   // of chats: "assistant", "last" or "all"
	Date       string   // that chat templates see, as in 2026-01-31
	Held       []string // patterns of Documents to validate on; empty: the fraction Validation
	Pack       bool     // put several Documents into one sequence, without attention between them
	DType      string   // of ids in token files without a header; empty: uint16 if unambiguous
	Tokenizer  string   // "bytes", "gpt2", "folder" or, for Tokens, "none"; for Tokens, the tokenizer they were made with
	Vocab      string   // folder with a tokenizer; empty: the embedded one
	Validation float64  // fraction held out, in [0, 0.5]
}

// tokenizer is the name of a tokenizer. A folder's is in data.vocab.
func tokenizer(p *string) value {
	v := choice(p, tokenizers)
	named := v.set
	v.set = func(n *tree.Node) string {
		wrong := named(n)
		if wrong != "" && n.Kind == tree.Scalar && (strings.Contains(n.Text, "/") || input.Exists(n.Text)) {
			wrong = n.String() + " is a folder: name it with data.vocab instead"
		}
		return wrong
	}
	return v
}

// RecordKeys names the keys of a record that differ from the default, the field's own name.
type RecordKeys struct{ Text, Prompt, Completion, Messages string }

// dataKeys returns the keys of the data.
func (c *Config) dataKeys() []field {
	d := &c.Data
	documents := onlyIf("with data.documents", len(d.Documents) > 0, "data.documents", "there are no data.documents")
	record := func(key, format string) []only {
		why := "records of the format " + d.Format + " have no " + key
		return append(documents, only{"with data.format " + format, d.Format == format, "data.format", why})
	}
	return []field{
		{key: "data.text", value: patterns(&d.Text, objects), rule: "none", like: `["docs/**/*.md"]`,
			doc: "list of text files or patterns, also s3://bucket/pattern; ** matches any number of " +
				"folders, and variables such as ${GOROOT} are expanded",
			when: "instead of data.tokens"},
		{key: "data.tokens", value: patterns(&d.Tokens, objects), rule: "none", like: `["train.bin"]`,
			doc: "list of token files, also s3://bucket/pattern, in the format of llm.c or nanoGPT, or " +
				"only ids; instead of text",
			when: "instead of data.text",
			not: refuse(len(d.Documents) == 0 && len(d.Text) > 0 && len(d.Tokens) > 0,
				"text and tokens are both given", "want one of the two", "data.text")},
		{key: "data.documents", value: sources(&d.Documents, &d.Weights, objects),
			rule: "none", like: `["chats-*.jsonl"]`,
			doc: "list of files with records, also s3://bucket/pattern: JSON Lines, plain or compressed " +
				"with gzip or zstd, or Parquet; instead of text. Weights, as in {path: a.jsonl, weight: " +
				"0.7}, set each item's share of the samples",
			when: "instead of data.text",
			not: refuse(len(d.Documents) > 0 && len(d.Text)+len(d.Tokens) > 0,
				"documents are given, and text or tokens, too", "want one of the three", "data.text", "data.tokens")},
		{key: "data.program", value: flag(&d.Program), initial: "false",
			doc: "the Go program that runs the job provides the data (job.Options.Data); instead of text, " +
				"tokens and documents",
			when: "instead of data.text",
			not: refuse(d.Program && len(d.Text)+len(d.Tokens)+len(d.Documents) > 0,
				"the program provides the data, and files are given", "want one of the two",
				"data.text", "data.tokens", "data.documents")},
		{key: "data.format", value: choice(&d.Format, formats), initial: "text", lasts: true,
			doc: "text | prompt | chat: what a record of documents contains, and which of its tokens are " +
				"learned",
			only: documents},
		{key: "data.keys.text", value: text(&d.Keys.Text), initial: "text",
			doc:  "key of a record's text",
			only: record("text", "text")},
		{key: "data.keys.prompt", value: text(&d.Keys.Prompt), initial: "prompt",
			doc:  "key of a record's prompt",
			only: record("prompt", "prompt")},
		{key: "data.keys.completion", value: text(&d.Keys.Completion), initial: "completion",
			doc:  "key of a record's completion",
			only: record("completion", "prompt")},
		{key: "data.keys.messages", value: text(&d.Keys.Messages), initial: "messages",
			doc:  "key of a record's list of messages, each with role and content",
			only: record("messages", "chat")},
		{key: "data.learn", value: choice(&d.Learn, learns), initial: "assistant", lasts: true,
			doc:  "assistant | last | all: learn all answers of a chat, the last one, or every token",
			only: record("answers", "chat")},
		{key: "data.date", value: day(&d.Date),
			rule: "the day the run begins", like: `"2026-01-31"`, lasts: true,
			doc:  "date that chat templates get from strftime_now",
			only: record("date", "chat"),
			then: func() { d.Date = pick(d.Format == "chat", time.Now().Format(time.DateOnly), "") }},
		{key: "data.validation_documents", value: patterns(&d.Held, objects),
			rule: "a fraction of documents", like: `["dev.jsonl"]`,
			doc:  "list of files with the documents to validate on",
			only: documents},
		{key: "data.pack", value: flag(&d.Pack), initial: "false", lasts: true,
			doc:  "put several whole documents into one sequence; they do not attend to each other",
			only: documents},
		{key: "data.too_long", value: choice(&d.TooLong, []string{"cut", "skip"}),
			initial: "cut", lasts: true,
			doc:  "cut | skip: cut or skip documents longer than model.context",
			only: documents},
		{key: "data.max_records", value: count(&d.MaxRecords, 0, MostSteps), initial: "0", like: "1000",
			doc:  "read at most this many records of each file, its first ones; 0 reads all",
			only: documents},
		{key: "data.dtype", value: choice(&d.DType, idTypes),
			rule: "llm.c's header, or uint16", like: "uint16",
			doc:  "uint16 | uint32 | int32 | int64: type of the ids in token files without a header",
			only: onlyIf("with data.tokens", len(d.Tokens) > 0, "data.text", "text has no ids yet")},
		{key: "data.tokenizer", value: tokenizer(&d.Tokenizer),
			rule: "bytes for text, gpt2 for tokens", like: "gpt2", lasts: true,
			doc: "bytes | gpt2 | folder (data.vocab) | none; for token files, the tokenizer that made " +
				"them, or none; with model.from, by default its own",
			only: onlyIf("", !d.Program, "data.program", "the program provides the data")},
		{key: "data.vocab", value: path(&d.Vocab, models, objects),
			rule: "built in", like: "models/gpt2", lasts: true,
			doc: "folder with a tokenizer: tokenizer.json, or vocab.json and merges.txt; or " +
				"hf://org/name[@revision], or s3://bucket/folder",
			only: onlyIf("with data.tokenizer gpt2 and folder", d.Tokenizer == "gpt2" || d.Tokenizer == "folder",
				"data.tokenizer", "tokenizer "+d.Tokenizer+" has no vocabulary of its own")},
		{key: "data.validation", value: real(&d.Validation, atMostHalf, "a fraction from 0 to 0.5"),
			initial: "0.01", lasts: true,
			doc: "fraction of the data held out for evaluation",
			only: append(onlyIf("", len(d.Held) == 0, "data.validation_documents",
				"data.validation_documents already lists the data to validate on"),
				onlyIf("", !d.Program, "data.program",
					"the program provides the data for validation (job.Options.Validation)")...)},
	}
}
