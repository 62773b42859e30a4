package chat

import (
	"errors"
	"fmt"
)

// Messages returns a conversation as transformers' apply_chat_template passes it to a template:
// keys with the value none are removed, and reasoning is available under all of its names.
func Messages(v Value) (*List, error) {
	given, ok := v.(*List)
	if !ok {
		return nil, errors.New("not a list of messages")
	}
	if len(given.Items) == 0 {
		return nil, errors.New("there are no messages")
	}
	out := &List{}
	for i, item := range given.Items {
		m, ok := item.(*Dict)
		if !ok {
			return nil, fmt.Errorf("message %d is %s, not an object", i+1, describe(item))
		}
		out.Items = append(out.Items, withReasoning(m))
	}
	return out, nil
}

// withReasoning returns a message without keys that are none. If it has reasoning under any name,
// the value also becomes reasoning_content, which most templates read, and thinking, which gpt-oss
// reads, unless that exists.
func withReasoning(m *Dict) *Dict {
	var reasoning Value
	for _, name := range []string{"reasoning_content", "thinking", "reasoning"} {
		if v, _ := m.Get(name); reasoning == nil {
			reasoning = v
		}
	}
	out := &Dict{}
	if reasoning != nil {
		out.Set("thinking", reasoning)
	}
	for _, k := range m.keys {
		if m.at(k) != nil {
			out.Set(k, m.at(k))
		}
	}
	if reasoning != nil {
		out.Set("reasoning_content", reasoning)
	}
	return out
}

// Dense returns a value without the keys, at any depth, that are none: in a column of Parquet or
// Arrow, an object cannot omit a key.
func Dense(v Value) Value {
	switch v := v.(type) {
	case *List:
		out := &List{}
		for _, x := range v.Items {
			out.Items = append(out.Items, Dense(x))
		}
		return out
	case *Dict:
		out := &Dict{}
		for _, k := range v.keys {
			if v.at(k) != nil {
				out.Set(k, Dense(v.at(k)))
			}
		}
		return out
	}
	return v
}
