"""Records what the reference makes of chat templates: pip install transformers==5.23.0 jinja2

  reference.py FOLDER    reads FOLDER/NAME/tokenizer_config.json of the models below, writes templates.json.gz
  reference.py drawn FILE SEED COUNT
                         writes such a FILE of templates drawn at random: ZEROTH_DRAWN_TEMPLATES=FILE go test ./data/chat -run Drawn -v

Every template is rendered for every conversation by transformers' own render_jinja_template, at a fixed time.
"""
import datetime, gzip, json, os, random, sys
import transformers.utils.chat_template_utils as u

HERE = os.path.dirname(os.path.abspath(__file__))


class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 7, 15, 4, 5)


u.datetime = Fixed


def real(folder):
    for n in ("llama3", "llama3_2", "qwen2_5", "mistral_nemo", "gemma3"):
        c = json.load(open(f"{folder}/{n}/tokenizer_config.json"))
        text = lambda x: x["content"] if isinstance(x, dict) else x
        yield n, dict(t=c["chat_template"], bos=text(c.get("bos_token")) or "", eos=text(c.get("eos_token")))


CHATML = "{%- for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
ALTERNATE = "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
# In the manner of the families whose files are not in a registry.
WRITTEN = {
    "zephyr": "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "smollm2": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "mistral": "{{ bos_token }}{% for message in messages %}" + ALTERNATE + "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}",
    "gemma2": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}" + ALTERNATE + "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
    "llama2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}" + ALTERNATE + "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "phi3": "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "olmo2": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }}{% else %}{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}",
    "qwen3": CHATML.replace("{%- for", """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- for""", 1),
    "chatml": CHATML,
}
PARTS = {
    "namespace": "{% set ns = namespace(a=0, found=false) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.a }}{{ ns.found }}",
    "loop": "{% for m in messages %}{{ loop.first }}{{ loop.last }}{{ loop.index }}{{ loop.index0 }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{% if loop.previtem is defined %}{{ loop.previtem.role }}{% endif %}{% if loop.nextitem is defined %}{{ loop.nextitem.role }}{% endif %}{% else %}none{% endfor %}{% for x in [] %}{% else %}empty{% endfor %}",
    "filtered": "{% for m in messages if m.role != 'user' %}{{ loop.index }}{{ m.role }}{{ loop.last }}{% endfor %}",
    "date": "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d %B %A %a %H:%M:%S %y %j %I %p %e %%') }}{% else %}no{% endif %}",
    "json": "{{ messages | tojson }}{{ [1, 2.5, -3, none, true, 'x', {}, [], {'a': {'b': []}}, 1e20, 1e-7, 100.0] | tojson }}",
    "json4": "{{ messages | tojson(indent=4) }}{{ {'a': [], 'b': {}, 'c': [1, {'d': 2}]} | tojson(indent=2) }}",
    "slices": "{{ messages[::-1] | length }}{{ messages[1:] | length }}{{ messages[-1].role }}{{ messages[0].content[:3] }}{% for m in messages[::-1] %}{{ m.role }}{% endfor %}{{ 'abcdef'[1:-1] }}{{ 'abcdef'[::2] }}{{ 'abcdef'[-2:] }}{{ 'abcdef'[4:1:-1] }}{{ 'abc'[5:] }}{{ 'naïve'[-3] }}{{ [1,2,3][:-1] }}{{ 'abc'[-9:2] }}{{ 'abc'[9::-1] }}",
    "white": "  {% for m in messages %}\n    {%- if m.role -%}\n  {{- m.role -}}  \n {%- endif %}\n x\n {% endfor %}\n\n  end\n",
    "lines": "a\n  {% if true %}\n  b\n  {% endif %}\nc {% if true %} d {% endif %}\n  {# note #}\n e {#- x -#} f\n\t{%+ if true %}\n g{% endif +%}\nh  {{ 'i' }}  \n{{ 'j' }}\n\n",
    "strings": "{% for m in messages %}{{ m.content.split('\n')[-1].lstrip('\n').strip() }}|{{ m.content.startswith('a') }}|{{ m.content | trim | length }}|{{ m.content.upper() }}|{{ m['content'] ~ 1 }}|{{ m.content.split() }}|{{ m.content.replace('a', 'bb') }}|{{ m.content.find('d') }}|{{ m.content | replace('e', '') | lower | capitalize }}{% endfor %}{{ ', '.join(['a', 'b']) }}{{ 'xxaxx'.strip('x') }}{{ 'a,b,c'.split(',', 1) }}",
    "tests": "{{ 'a' in messages[0].content }}{{ 'role' in messages[0] }}{{ 'zz' not in messages[0] }}{{ messages[0].tool_calls is defined }}{{ messages[0].x is none }}{{ messages is iterable }}{{ messages[0] is mapping }}{{ messages[0].content is string }}{{ None is none }}{{ 3 is odd }}{{ 4 is not odd }}{{ 3 is number }}{{ true is boolean }}{{ 2 is in [1, 2] }}{{ 'x' is equalto 'x' }}{{ not false }}{{ messages is sequence }}{{ 5 is integer }}{{ 5.0 is float }}{{ 1 is true }}",
    "undefined": "[{{ nope }}][{{ messages[0].nope }}]{% if nope %}x{% endif %}{{ nope | default('d') }}{{ '' | default('e', true) }}{{ none | default('f') }}{% for x in nope %}y{% endfor %}{{ nope is undefined }}{{ messages[99] }}",
    "undefined part": "{{ nope.more }}",
    "undefined sum": "{{ 'a' + nope }}",
    "macro": "{% macro f(x, y=2) %}<{{ x }}{{ y }}>{% endmacro %}{{ f('a') }}{{ f('b', y=3) }}{{ f('c', 4) }}{{ f() }}{% macro g(n) %}{{ n }}{% if n > 0 %}{{ g(n - 1) }}{% endif %}{% endmacro %}{{ g(3) }}",
    "numbers": "{{ 'a' if messages else 'b' }}{{ (messages | length) // 2 }}{{ 7 % 3 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 1.5 * 2 }}{{ 'x' * 3 }}{{ 1 / 2 }}{{ 1 == 1.0 }}{{ 3.0 }}{{ 1 < 2 < 3 }}{{ 2 > 1 and 'y' or 'n' }}{{ -1 }}{{ 0.1 + 0.2 }}{{ 1e22 }}{{ '5' | int + 1 }}{{ 'z' | int }}{{ true + 1 }}{{ 7.5 // 2 }}{{ 1 if false }}",
    "select": "{{ messages | selectattr('role','equalto','user') | list | length }}{{ messages | map(attribute='role') | join(',') }}{{ messages | rejectattr('role','==','user') | list | length }}{{ [0, 1, none, 2] | select | list }}{{ [1, 2, 3] | reject('odd') | list }}{{ messages | selectattr('nope') | list }}{{ messages | selectattr('content', 'string') | list | length }}{{ ['a', 'b'] | map('upper') | join }}{{ messages | selectattr('tool_calls', 'undefined') | list | length }}",
    "items": "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in messages[0] | items %}{{ k }}{% endfor %}{{ messages[0].get('role') }}{{ messages[0].get('no','d') }}{{ messages[0].get('no') }}{{ messages[0].keys() | list }}{% for v in messages[0].values() %}{{ v }}{% endfor %}",
    "leave": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.role }}{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}{% endfor %}",
    "scope": "{% set x = 1 %}{% for m in messages %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 3 %}{% endif %}{{ x }}{% set y %}a{{ x }}{% endset %}{{ y }}{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "escapes": "{{ '<a href=\"x\">&' }}{{ messages[0].content }}{{ \"a\\tb\\u00e9\\\\n\" }}{{ 'it\\'s' }}{{ 'a' 'b' }}",
    "printed": "{{ true }}{{ none }}{{ [1,'a',none,true] }}{{ {'a':1} }}{{ [\"it's\", 'say \"x\"', 'both\\' \"', 'é\\n\\x00\\u2028'] }}{{ messages[0] }}{{ [] }}{{ '' | list }}{{ 'ab' | list }}{{ messages | first | length }}{{ [3, 1] | last }}{{ 'abc' | reverse }}{{ [1, 2] | reverse | list }}{{ [1] + [2] }}{{ range(3) | list }}{{ dict(a=1) }}",
}


def conversations():
    r = random.Random(3)
    texts = ["Hello", "", " pad ", "a\nb\n\nc", "naïve 日本語 👩\u200d👩\u200d👧 é", "{{ bos_token }} {% raw %}", "<b>&amp;'\"</b>", "\\n \t end\n", "x</think>\n\ny",
             "<think>\nr\n</think>\n\nans", "<tool_response>q</tool_response>", "a\u2028b\x7f\u0000c", "'quoted'"]
    for i in range(30):
        m = [dict(role="system", content=r.choice(texts))] if i % 3 == 0 else []
        for j in range(r.choice([1, 2, 3, 4, 5])):
            m.append(dict(role=["user", "assistant"][j % 2], content=r.choice(texts)))
        yield dict(messages=m, gen=bool(i % 2))
    yield dict(messages=[dict(role="assistant", content="first")], gen=True)
    yield dict(messages=[dict(role="user", content="calls", extra=[1, 2.5, {"z": None, "a": [True]}]), dict(role="assistant", content="", tool_calls=[dict(
        type="function", id="abcdefghi", function=dict(name="f", arguments=dict(x=1, b="é\"", a=[1.0, None])))]), dict(role="tool", content="42", tool_call_id="abcdefghi"), dict(role="assistant", content="ok")], gen=False)


class Drawn:
    """Expressions and statements at random, most of which have a value."""

    def __init__(self, seed):
        self.r, self.depth = random.Random(seed), 0

    def of(self, *some):
        f = self.r.choice(some)
        return f() if callable(f) else f

    def expr(self):
        self.depth += 1
        try:
            return self.of(*([self.leaf] if self.depth > 4 else [self.leaf, self.string, self.string, self.number, self.truth, self.list, self.either, self.filtered]))
        finally:
            self.depth -= 1

    def leaf(self):
        return self.of("messages", "m", "m.role", "m.content", "m['content']", "messages[0]", "messages[-1].content", "bos_token", "eos_token", "add_generation_prompt", "nope", "x", "y",
                       "none", "true", "false", "tools", "1", "0", "-2", "3", "2.5", "''", "'a'", "'b c'", "'é\\n'", "'ßΣ'", "'1_0'", "9007199254740991", "true", "varargs", "' pad '", "[]", "{}", "{'a': 1, 'b': [true, none]}", "{1: 2, true: 3}", "(1, 2)", "ns.a", "loop.index",
                       "loop.last", "messages | length", "range(3)")

    def string(self):
        s = self.of("m.content", "m.role", "bos_token", "'a-b-c'", "' x '", "'Aé\\t'", "''", "(" + self.expr() + ") | string", "m['content'] ~ " + self.leaf(), self.expr)
        return f"({s})" + self.of("", ".strip()", ".lstrip()", ".rstrip('\\n ')", ".upper()", ".lower()", ".title()", ".capitalize()", ".split('-')", ".split()", ".split('a', 1)[0]", ".rsplit('-', 1)",
                                  ".splitlines()", ".startswith('a')", ".endswith(('c', 'x'))", ".replace('a', 'zz')", ".find('a')", ".count('a')", ".join(['1', '2'])", "[0]", "[1:]", "[::-1]",
                                  "[:-2]", "[-3:]", "[5]", "[1:9:2]", ".isdigit()", ".isalpha()", ".removeprefix('a')", ".encode()", ".format(1)", " * 2", " % 3", ".nope", ".title", ".index('z')", ".partition('-')")

    def number(self):
        n = lambda: self.of("1", "2", "7", "-3", "0", "2.5", "-0.5", "1e3", "10", "true", "messages | length", "loop.index0", "x", "'3' | int", "m.content | length", "3.0", self.expr)
        return "(" + n() + self.of(" + ", " - ", " * ", " / ", " // ", " % ", " ~ ", " ** ") + n() + ")"

    def truth(self):
        test = self.of("defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "integer", "float", "boolean", "true", "false", "odd", "even", "in [1, 'a']",
                       "equalto 1", "eq 'user'", "ne 2", "gt 1", "lt 2", "sameas none", "divisibleby 2", "callable", "lower", "upper", "filter", "test 'odd'")
        return "(" + self.of(self.expr() + " is " + self.of("", "not ") + test, "not " + self.expr(), self.expr() + self.of(" and ", " or ") + self.expr(),
                             self.expr() + self.of(" == ", " != ", " < ", " >= ", " in ", " not in ") + self.expr(), self.leaf() + " < " + self.leaf() + " <= " + self.leaf()) + ")"

    def list(self):
        return self.of("[" + ", ".join(self.expr() for _ in range(self.r.choice([0, 1, 2, 3]))) + "]", "{'k': " + self.expr() + ", 1: " + self.leaf() + "}", "messages" + self.of("[1:]", "[::-1]", "[:1]", "[0:2]", "[-1:]"),
                       "(" + self.leaf() + ", " + self.leaf() + ",)", "dict(a=" + self.leaf() + ")", "m.items() | list", "m | items | list", "m.keys() | list", "range(1, 7, 2) | list", "namespace(a=1).a", "m.get('role', 1)")

    def either(self):
        return "(" + self.expr() + " if " + self.truth() + self.of("", " else " + self.expr()) + ")"

    def filtered(self):
        return "(" + self.expr() + ")" + "".join(" | " + self.of(
            "trim", "length", "tojson", "tojson(indent=2)", "string", "upper", "lower", "list", "reverse", "first", "last", "join", "join('-')", "join(', ', attribute='role')", "default('d')", "default('d', true)", "d",
            "items", "int", "int(5)", "int('z', base=16)", "float", "replace('a', 'b')", "replace('a', 'b', 1)", "map('upper')", "map(attribute='role') | list", "map('length') | list", "select | list", "reject('none') | list",
            "select('string') | list", "selectattr('role') | list", "selectattr('role', 'equalto', 'user') | list", "rejectattr('content', 'defined') | list", "capitalize", "title", "abs", "round", "sort", "unique | list",
            "sum", "max", "min", "batch(2) | list", "slice(2) | list", "wordcount", "indent", "indent(2, true)", "trim('a')", "escape", "e", "safe", "dictsort", "attr('role')", "center(9)", "truncate(4)", "random",
            "tojson(ensure_ascii=true)", "first | default", "string | length", "urlencode", "striptags", "format(1)", "groupby('role')", "count") for _ in range(self.r.choice([1, 1, 1, 2])))

    def block(self, level=0):
        trim = lambda: self.of("", "", "", "-")
        tag = lambda s: "{%" + trim() + " " + s + " " + trim() + "%}"
        text = self.of("", " ", "\n", " t\n", "a", "\n  ", "é")
        body = lambda: self.block(level + 1) if level < 2 else text
        out = "{{" + trim() + " " + self.expr() + " " + trim() + "}}"
        return text + self.of(
            out, out, out, lambda: tag("if " + self.expr()) + body() + self.of("", tag("elif " + self.expr()) + body(), tag("else") + body()) + tag("endif"),
            lambda: tag("for m in " + self.of("messages", "messages[1:]", "messages if m.role == 'user'", self.list(), self.expr())) + body() + self.of("", "", tag("if loop.last") + tag("break") + tag("endif")) + body() + self.of("", tag("else") + body()) + tag("endfor"),
            lambda: tag("for k, v in " + self.of("m.items()", "m | items", "[(1, 2), (3, 4)]", "[[1]]", "{'a': 1}")) + "{{ k }}" + body() + tag("endfor"),
            lambda: tag("set " + self.of("x", "y", "m", "ns.a", "x, y") + " = " + self.expr()), lambda: tag("set y") + body() + tag("endset"),
            lambda: tag("macro f(a, b=" + self.leaf() + ")") + "<{{ a }}{{ b }}>" + body() + tag("endmacro") + "{{ f(" + self.of("", self.expr(), self.leaf() + ", b=" + self.leaf(), "1, 2, 3", "c=1") + ") }}",
            lambda: "{#" + trim() + " note " + trim() + "#}") + text

    def template(self):
        return "{% set ns = namespace(a=1) %}{% set x = 4 %}{% for m in messages %}" + self.block() + "{% endfor %}" + "".join(self.block() for _ in range(self.r.choice([0, 1, 2])))


def rendered(t, talks):
    for k in talks:
        try:
            got, _ = u.render_jinja_template(conversations=[k["messages"]], chat_template=t["t"], add_generation_prompt=k["gen"], bos_token=t["bos"], eos_token=t["eos"])
            yield got[0]
        except Exception as e:
            yield [type(e).__name__ + ": " + str(e)[:100]]


def written(path, templates, talks, out):
    with gzip.GzipFile(path, "wb", mtime=0) as f:
        f.write(json.dumps(dict(templates=templates, conversations=talks, rendered=out), ensure_ascii=False).encode())


def drawn(path, seed, count):
    talks, d = list(conversations())[::6], Drawn(seed)
    templates = {str(i): dict(t=d.template(), bos="<s>", eos="</s>") for i in range(count)}
    written(path, templates, talks, {n: list(rendered(t, talks)) for n, t in templates.items()})


def main(folder):
    templates = dict(real(folder))
    templates.update({n: dict(t=t, bos="<s>", eos="</s>") for n, t in {**WRITTEN, **PARTS}.items()})
    talks, out = list(conversations()), {}
    for n, t in templates.items():
        out[n] = list(rendered(t, talks))
        print(n, sum(isinstance(x, list) for x in out[n]), next((x for x in out[n] if isinstance(x, list)), ""))
    written(f"{HERE}/templates.json.gz", templates, talks, out)


if sys.argv[1] == "drawn":
    drawn(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
else:
    main(sys.argv[1])
