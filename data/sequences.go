package data

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// sequences are the samples made of documents.
type sequences struct {
	*documents
	index  []int32 // documents, sequence by sequence
	begins []int32 // (sequences+1) start of each in index; the last is len(index)
	groups []int32 // number of sequences before the end of each group
	packed bool    // a sequence may have several documents, which do not attend to each other
}

func (s *sequences) len() int { return len(s.begins) - 1 }

// documentsOf returns the documents of a sequence.
func (s *sequences) documentsOf(i int64) []int32 { return s.index[s.begins[i]:s.begins[i+1]] }

// read fills a sample with a sequence, padded by Pad.
func (s *sequences) read(input, target, start []int32, i int64) {
	at := 0
	for _, doc := range s.documentsOf(i) {
		n := s.fill(input[at:], target[at:], doc)
		for k := range n {
			if s.packed {
				start[at+k] = int32(at)
			}
		}
		at += n
	}
	Pad(input, target, start, at)
}

// Pad fills a sample from position at on with token 0 without a loss. If documents are packed
// (start is not nil), each such position is a document of its own and attends only to itself.
func Pad(input, target, start []int32, at int) {
	for ; at < len(input); at++ {
		input[at], target[at] = 0, Padding
		if start != nil {
			start[at] = int32(at)
		}
	}
}

// arrange puts documents of each group in sequences of T positions.
func (d *documents) arrange(groups [][]int32, T int, packed bool) *sequences {
	s := &sequences{documents: d, begins: []int32{0}, packed: packed}
	for _, docs := range groups {
		if packed {
			s.pack(docs, T)
		} else {
			for _, i := range docs {
				s.index = append(s.index, i)
				s.begins = append(s.begins, int32(len(s.index)))
			}
		}
		s.groups = append(s.groups, int32(s.len()))
	}
	return s
}

// fillRatio returns the fraction of all positions that documents occupy.
func (s *sequences) fillRatio(T int) float64 {
	sum := 0
	for _, i := range s.index {
		sum += s.positions(i)
	}
	return float64(sum) / float64(s.len()) / float64(T)
}

// openDocuments creates the splits of documents.
func (set *Set) openDocuments(ctx context.Context, s Source, files []file) error {
	r, err := s.newDocReader(set.Tokenizer)
	if err != nil {
		return err
	}
	held, wrong := find(ctx, "validation_documents", s.Dir, s.Documents.Validation)
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	if err := fetch(ctx, "validation_documents", held, s.Progress); err != nil {
		return err
	}
	files, both, err := apart(files, held)
	if err != nil {
		return &Problem{"documents", err}
	}
	if len(both) > 0 {
		const note = "files of data.documents left out, because data.validation_documents has them, too: %d, such as %s"
		set.Notes = append(set.Notes, fmt.Sprintf(note, len(both), both[0].name()))
	}
	m := &meter{total: sizeOfFiles(files) + sizeOfFiles(held), report: s.Progress}
	var n counts
	var errs []error
	train, validation := &documents{starts: []int64{0}, skip: s.Documents.Skip}, &documents{starts: []int64{0}, skip: s.Documents.Skip}
	for _, group := range s.Documents.groups(files) {
		if err := r.read(ctx, train, group, s.Memory, &n, m); err != nil {
			errs = append(errs, &Problem{"documents", err})
		}
	}
	if err := r.read(ctx, validation, held, s.Memory, &n, m); err != nil {
		errs = append(errs, &Problem{"validation_documents", err})
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if s.Fit > 0 {
		longest := max(1, train.longest(), validation.longest())
		s.Context = min(s.Context, (longest+s.Fit-1)/s.Fit*s.Fit)
		set.Context = s.Context
	}
	set.Files, set.Tokens, set.Vocab = len(files)+len(held), int64(len(train.ids)+len(validation.ids)), set.Tokenizer.Vocab()
	set.Fingerprint = train.sum(s.Documents.Weights)
	set.splitDocuments(s, train, validation)
	set.Notes = append(set.Notes, n.notes(s.Context, r.chat)...)
	if r.chat != nil && s.Documents.Learn != "all" {
		if end, known := r.chat.endOfTurn(); known && end < 0 {
			set.Notes = append(set.Notes, "no learned special token ends an answer in the chat template, so the model may not learn to stop")
		}
	}
	return set.mix(s)
}

// longest returns the positions of the longest document.
func (d *documents) longest() (most int) {
	for i := range d.len() {
		most = max(most, d.positions(int32(i)))
	}
	return most
}

// groups returns the files by pattern if patterns have weights, otherwise all in one group.
func (d Documents) groups(files []file) [][]file {
	if len(d.Weights) == 0 {
		return [][]file{files}
	}
	groups := make([][]file, len(d.Files))
	for _, f := range files {
		groups[f.pattern] = append(groups[f.pattern], f)
	}
	return groups
}

// splitDocuments assigns documents to training and validation. Validation uses its own files
// or, without them, each record at which the accumulated fraction reaches another integer.
func (set *Set) splitDocuments(s Source, train, validation *documents) {
	fraction := s.Validation
	if len(s.Documents.Validation) > 0 {
		fraction = 0
	}
	var trains [][]int32
	var held []int32
	for i := range train.len() {
		for len(trains) == 0 || i >= int(train.groups[len(trains)-1]) {
			trains = append(trains, nil)
		}
		record := float64(train.records[i])
		if before, after := math.Floor(record*fraction), math.Floor((record+1)*fraction); after > before {
			held = append(held, int32(i))
			continue
		}
		last := &trains[len(trains)-1]
		*last = append(*last, int32(i))
	}
	for len(trains) < len(train.groups) { // the last groups are empty
		trains = append(trains, nil)
	}
	set.Train = newDocumentSplit(train.arrange(trains, s.Context, s.Documents.Pack), s)
	set.Train.shuffle, set.Train.seed = true, s.Seed
	switch {
	case len(s.Documents.Validation) > 0:
		for i := range validation.len() {
			held = append(held, int32(i))
		}
		set.Validation = newDocumentSplit(validation.arrange([][]int32{held}, s.Context, s.Documents.Pack), s)
	case s.Validation > 0:
		set.Validation = newDocumentSplit(train.arrange([][]int32{held}, s.Context, s.Documents.Pack), s)
	}
	if s.Evaluate && len(held) == 0 {
		set.Validation = nil
	}
}

func newDocumentSplit(docs *sequences, s Source) *Split {
	return &Split{docs: docs, context: int64(s.Context), stretches: stretches{windows: int64(docs.len())}}
}

// mix refuses sets that are too small to train on, and applies the weights of those that are trained on.
func (set *Set) mix(s Source) error {
	docs, batch := set.Train.docs, int64(max(s.Batch, 1))
	if s.Evaluate && (set.Train.Windows() > 0 || set.Validation != nil) {
		return nil
	}
	if set.Train.Windows() < batch {
		what := "documents"
		if docs.packed {
			what = fmt.Sprintf("sequences, of %d documents,", len(docs.index))
		}
		few := fmt.Sprintf("%d %s to train on, fewer than the %d of one global batch; add some or make the batch smaller", set.Train.Windows(), what, batch)
		return problem("documents", "%s", strings.Join(append([]string{few}, set.Notes...), "; "))
	}
	if set.Validation != nil && set.Validation.Windows() == 0 {
		return problem("validation", "no documents left to validate on; add some, raise the fraction, set data.validation_documents, or set the fraction to 0 to train without validation")
	}
	if docs.packed {
		set.Notes = append(set.Notes, fmt.Sprintf("%d documents are packed into %d sequences of %d tokens, %.1f %% full", len(docs.index), docs.len(), s.Context, 100*docs.fillRatio(s.Context)))
	}
	if len(s.Documents.Weights) > 0 {
		var err error
		if set.Train.mix, err = newMixture(s.Documents, docs.groups); err != nil {
			return err
		}
		set.Notes = append(set.Notes, set.Train.mix.notes(s.Documents, docs)...)
	}
	if full := docs.fillRatio(s.Context); !docs.packed && full < mostPadding {
		set.Notes = append(set.Notes, fmt.Sprintf("documents fill %.0f %% of the positions, the rest is padding; data.pack: true puts several of them into a sequence", 100*full))
	}
	return nil
}

// mostPadding is the fill below which packing is suggested.
const mostPadding = 0.7

func (n counts) notes(context int, c *Chat) (notes []string) {
	if n.skipped > 0 {
		notes = append(notes, fmt.Sprintf("documents longer than %d tokens: %d, left out (data.too_long)", context+1, n.skipped))
	}
	if n.cut > 0 {
		notes = append(notes, fmt.Sprintf("documents longer than %d tokens: %d, cut by %d tokens in all", context+1, n.cut, n.cutTokens))
	}
	for _, form := range slices.Sorted(maps.Keys(n.forms)) {
		notes = append(notes, fmt.Sprintf("records read as %s: %d", formNotes[form], n.forms[form]))
	}
	if n.divided > 0 {
		notes = append(notes, fmt.Sprintf("conversations divided into documents: %d into %d, because the template renders earlier answers differently: each is learned as the model sees it at its turn", n.divided, n.parts))
	}
	return slices.Concat(notes, n.noteEmpty(), n.noteUnused(c))
}

// learnedIn returns the number of targets with a loss in a sequence.
func (s *sequences) learnedIn(i int64) (sum int) {
	for _, doc := range s.documentsOf(i) {
		sum += int(s.learned[doc])
	}
	return sum
}

// Positions returns the number of positions in n samples, starting at sample, that are not padding.
func (s *Split) Positions(sample, n int64) (sum int) {
	if s.docs == nil {
		return int(n * s.context)
	}
	for i := range n {
		for _, doc := range s.docs.documentsOf(s.Window(sample + i)) {
			sum += s.docs.positions(doc)
		}
	}
	return sum
}

// Lengths returns the positions of the longest of n samples, starting at sample, and the tokens of
// the longest document in them.
func (s *Split) Lengths(sample, n int64) (positions, tokens int) {
	if s.docs == nil {
		return int(s.context), int(s.context)
	}
	for i := range n {
		sum := 0
		for _, doc := range s.docs.documentsOf(s.Window(sample + i)) {
			sum += s.docs.positions(doc)
			tokens = max(tokens, s.docs.positions(doc)+1)
		}
		positions = max(positions, sum)
	}
	return positions, tokens
}

// Learned returns the number of targets with a loss in n samples, starting at sample.
func (s *Split) Learned(sample, n int64) (sum int) {
	if of, ok := s.program.(Counter); ok {
		for i := range n {
			sum += of.Counted(s.Window(sample + i))
		}
		return sum
	}
	if s.docs == nil {
		return int(n * s.context)
	}
	for i := range n {
		sum += s.docs.learnedIn(s.Window(sample + i))
	}
	return sum
}
