package generate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
)

// ConversationContext is the default of Options.Context in a conversation: the memory for keys and
// values has to be allocated before the messages are known.
const ConversationContext = 4096

// Converse answers messages with the model's chat template. next returns the messages in turn, then
// io.EOF; each is answered in the context of the earlier messages and answers. Answers are written
// and reported as by Many.
func Converse(ctx context.Context, o Options, next func() (string, error), w io.Writer, onAnswer func(Answer) error) error {
	o.Chat, o.Context = true, cmp.Or(o.Context, ConversationContext)
	s, err := load(o)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.start(1, s.model.Context); err != nil {
		return err
	}
	var messages []string // roles and contents of all messages but the system's
	for ; ; s.turn++ {
		message, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var ids []int32
		if messages, ids, err = s.fit(append(messages, "user", message)); err != nil {
			return err
		}
		err = s.all(ctx, []string{message}, [][]int32{ids}, w, func(a Answer) error {
			messages = append(messages, "assistant", a.Text)
			return onAnswer(a)
		})
		if err != nil {
			return err
		}
	}
}

// fit removes the oldest questions of a conversation and their answers until there is room for
// another answer, and returns the rest with its ids.
func (s *sampler) fit(messages []string) ([]string, []int32, error) {
	const pair = 4 // role and content of a question and of its answer
	room := min(s.Tokens, s.model.Context/2)
	for removed := 0; ; removed++ {
		ids, err := s.encode(messages...)
		if err != nil {
			return messages, nil, err
		}
		if len(ids)+room > s.model.Context && len(messages) > pair {
			messages = messages[pair:]
			continue
		}
		if removed > 0 {
			s.Note(fmt.Sprintf("the conversation is longer than %d tokens (--context): the model no longer sees the first %d messages", s.model.Context, 2*removed))
		}
		s.noteCut("the message", len(ids))
		return messages, ids, nil
	}
}
