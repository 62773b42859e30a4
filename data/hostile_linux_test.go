package data

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zeroth/data/chat"
	"zeroth/data/tokenizer"
	"zeroth/tests/nightly"
)

// spent returns the processor time that f takes, and the most bytes of the heap in use meanwhile
// beyond those before.
func spent(f func()) (processor time.Duration, memory uint64) {
	heap := func() uint64 {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			panic(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	defer debug.SetGCPercent(debug.SetGCPercent(15))
	debug.FreeOSMemory()
	base, begin := heap(), used()
	done := make(chan struct{})
	var most uint64
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			most = max(most, heap())
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	f()
	close(done)
	wg.Wait()
	return used() - begin, max(most, base) - base
}

// hostile draws templates that try to take much time or memory.
type hostile struct{ *rand.Rand }

func (h hostile) of(all ...string) string { return all[h.IntN(len(all))] }
func (h hostile) size() string            { return h.of("10", "1000", "100000", "3000000", "9000000000") }

// value draws an expression from variables s (a long string), l (a long list) and d (a map).
func (h hostile) value(depth int) string {
	if depth == 0 {
		return h.of("s", "l", "d", "x", "ns.x", "i", "'ab'", "messages")
	}
	v := func() string { return h.value(depth - 1) }
	switch h.IntN(16) {
	case 0:
		return "(" + v() + " ~ " + v() + ")"
	case 1:
		return "(" + v() + " + " + v() + ")"
	case 2:
		return "(" + v() + " * " + h.size() + ")"
	case 3:
		return "[" + v() + ", " + v() + "]"
	case 4:
		return "{'a': " + v() + ", 'b': " + v() + "}"
	case 5:
		return v() + h.of("[1:]", "[::-1]", "[:-1]", "[::2]", "[-5]", "[0]", "['a']", "[s]", "[::9007199254740991]")
	case 6:
		return v() + h.of(".split('a')", ".split()", ".split('b', 3)", ".upper()", ".strip('ab')", ".strip(s)", ".replace('a', 'bbbb')", ".replace('', s)", ".join(l)", ".find('c')", ".startswith((s, s))", ".items()", ".get(s)", ".keys()", ".values()")
	case 7:
		return "(" + v() + " | " + h.of("list", "reverse | list", "join(s)", "join", "tojson", "tojson(indent=99)", "string", "upper", "length", "map('upper') | list", "map(attribute='a.b') | list", "select | list", "selectattr('a') | list", "map('replace', 'a', s) | list", "first", "last", "items | list", "trim", "trim(s)", "int", "default(s)") + ")"
	case 8:
		return "(" + v() + h.of(" in ", " == ", " < ", " not in ") + v() + ")"
	case 9:
		return "range(" + h.size() + ")"
	case 10:
		return "(range(" + h.size() + ") | list)"
	case 11:
		return "namespace(a=" + v() + ", b=ns.x)"
	case 12:
		return "dict(a=" + v() + ")"
	case 13:
		return "f(" + v() + ")"
	}
	return "d[" + v() + "]"
}

func (h hostile) statement(depth int) string {
	body := func() string {
		if depth == 0 {
			return "{{ " + h.value(1) + " }}"
		}
		return h.statement(depth - 1)
	}
	switch h.IntN(8) {
	case 0:
		return "{% for i in " + h.of("range("+h.size()+")", "l", "s", h.value(2)) + " %}" + body() + body() + "{% endfor %}"
	case 1:
		return "{% set ns.x = " + h.of("ns.x + ns.x", "[ns.x, ns.x]", "ns.x ~ s", "ns.x + [s]", "[ns.x, l[1:]]", "namespace(a=ns.x, b=s ~ i)", h.value(3)) + " %}"
	case 2:
		return "{% set x %}" + body() + body() + "{% endset %}"
	case 3:
		return "{% macro f(a) %}" + body() + "{{ " + h.of("a", "f(a)", "f(a) ~ f(a)") + " }}{% endmacro %}"
	case 4:
		return "{% if " + h.value(2) + " %}" + body() + "{% else %}" + body() + "{% endif %}"
	case 5:
		return "{% set x = " + h.value(3) + " %}"
	case 6:
		return "{% generation %}" + body() + "{% endgeneration %}"
	}
	return "{{ " + h.value(3) + " }}"
}

// TestHostileTemplates checks that templates that are drawn at random, and some that are known to be
// bad, take at most 64 MiB and a second of a processor.
func TestHostileTemplates(t *testing.T) {
	nightly.Long(t)
	const begin = "{% set s = 'ab' * 4000000 %}{% set l = range(200000) | list %}{% set d = {'a': 1, 'b': s} %}{% set ns = namespace(x=[s]) %}{% set x = s %}{% set i = 1 %}"
	texts := []string{
		"{% set s = 'k' * 8000000 %}{% set d = {'a': 1} %}{% for i in range(1000000) %}{{ d[s] }}{% endfor %}",
		"{% set l = range(500000) | list %}{% for i in range(1000000) %}{% set y = l[1:] %}{% endfor %}",
		"{% set s = 'k' * 8000000 %}{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = ns.x + [s ~ i] %}{% endfor %}",
		"{% set ns = namespace(x='') %}{% for i in range(100000) %}{% set ns.x = ns.x ~ 'aaaaaaaa' %}{% endfor %}",
		"{% set s = 'a,' * 4000000 %}{{ s.split(',') | length }}",
		"{% set s = 'a ' * 4000000 %}{{ s.split() | join('bbbbbbbb') | length }}",
		"{% macro f(n) %}{% set y %}{{ 'z' * 8000000 }}{% if n %}{{ f(n - 1) }}{% endif %}{% endset %}{% endmacro %}{{ f(100) }}",
		"{% set ns = namespace(x=namespace(y=0)) %}{% for i in range(9000000) %}{% set ns.x = namespace(y=ns.x, z=loop) %}{% endfor %}",
		"{% set s = 'ab' * 4000000 %}{% for i in range(100) %}{{ s.strip(s) }}{% endfor %}",
		"{% for i in range(9000000) %}{% generation %}{% endgeneration %}{% endfor %}",
		"{% for i in range(9000000) %}{% macro f() %}{% endmacro %}{% endfor %}",
		"{% set x = [1] %}{% set ns = namespace(x=x) %}{% for i in range(150) %}{% set ns.x = [ns.x, ns.x, 1] %}{% endfor %}{{ {'a': 1}[ns.x] }}",
		"{{ (range(100000) | list) | tojson(indent=100) }}",
		strings.Repeat("{{ 'a' }}", chat.MaxTemplate/9),
	}
	h := hostile{rand.New(rand.NewPCG(1, 2))}
	for range nightly.Of(5, 500) {
		text := begin
		for range 1 + h.IntN(6) {
			text += h.statement(3)
		}
		texts = append(texts, text)
	}
	refused, slowest, largest := 0, time.Duration(0), uint64(0)
	for _, text := range texts {
		var err error
		processor, memory := spent(func() {
			var tmpl *chat.Template
			if tmpl, err = chat.Parse(text); err == nil {
				_, err = tmpl.Render(map[string]chat.Value{"messages": &chat.List{}})
			}
		})
		if err != nil {
			refused++
		}
		slowest, largest = max(slowest, processor), max(largest, memory)
		if memory > 64<<20 || processor > 2*time.Second { // a second, on a machine that is not busy
			t.Errorf("%.300q: %v, %d MiB: %v", text, processor, memory>>20, err)
		}
	}
	t.Logf("%d templates, %d refused, at most %v and %d MiB", len(texts), refused, slowest, largest>>20)
}

// tokenizerFile draws a tokenizer.json that tries to take much time or memory on a text of one letter.
func (h hostile) tokenizerFile() string {
	list := func(n int, item func(i int) string) string {
		var all []string
		for i := range n {
			all = append(all, item(i))
		}
		return strings.Join(all, ", ")
	}
	count := func() int { return []int{0, 1, 2, 12, 30, 200}[h.IntN(6)] }
	steps := list(count(), func(int) string {
		return h.of(`{"type": "NFC"}`, `{"type": "Prepend", "prepend": "aaaa"}`, fmt.Sprintf(`{"type": "Replace", "pattern": {"String": "a"}, "content": %q}`, strings.Repeat("a", []int{0, 1, 2, 10, 3000}[h.IntN(5)])),
			`{"type": "Replace", "pattern": {"String": "aa"}, "content": "a"}`, `{"type": "Replace", "pattern": {"String": "b"}, "content": "▁"}`)
	})
	most := 1 + h.IntN(300)
	end := h.of("", "b", "b")
	added := list(h.IntN(2)*most, func(i int) string {
		return fmt.Sprintf(`{"id": %d, "content": %q, "single_word": %v, "lstrip": %v, "rstrip": %v, "normalized": %v, "special": true}`, 257+i, strings.Repeat("a", 1+i)+end, h.IntN(4) == 0, h.IntN(4) == 0, h.IntN(4) == 0, h.IntN(2) == 0)
	})
	pre := h.of(`{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}`, `{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}`)
	vocab := map[string]int{"aa": 256}
	for b := range 256 {
		vocab[string(tokenizer.Alphabet[b])] = b
	}
	words, err := json.Marshal(vocab)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"version": "1.0", "added_tokens": [%s], "normalizer": {"type": "Sequence", "normalizers": [%s]}, "pre_tokenizer": %s, "post_processor": null, "decoder": null,
		"model": {"type": "BPE", "vocab": %s, "merges": ["a a"]}}`, added, steps, pre, words)
}

// TestHostileTokenizers checks that tokenizers drawn at random read a megabyte of one letter, or of
// two, within 64 MiB and a second, or are refused.
func TestHostileTokenizers(t *testing.T) {
	nightly.Long(t)
	h := hostile{rand.New(rand.NewPCG(3, 4))}
	texts := []string{strings.Repeat("a", 1<<20), strings.Repeat("a b", 1<<20/3)}
	refused, slowest, largest := 0, time.Duration(0), uint64(0)
	for i := range nightly.Of(15, 500) {
		file := h.tokenizerFile()
		var err error
		processor, memory := spent(func() {
			var tok *tokenizer.Tokenizer
			if tok, err = tokenizer.Parse([]byte(file)); err == nil {
				tok.Encode([]byte(texts[i%len(texts)]))
			}
		})
		if err != nil {
			refused++
		}
		slowest, largest = max(slowest, processor), max(largest, memory)
		if memory > 64<<20 || processor > 2*time.Second {
			t.Errorf("%.600s: %v, %d MiB: %v", file, processor, memory>>20, err)
		}
	}
	t.Logf("%d refused, at most %v and %d MiB", refused, slowest, largest>>20)
}
