"""Records which tokens of a chat transformers marks as the assistant's, for the Go tests of package data.

    pip install transformers==5.23.0 jinja2
    python tests/interop/masks.py data/testdata/masks.json.gz

Answers begin and end within tokens, because no special token is next to them. The tokenizers are those in data/tokenizer/testdata.
Texts are ASCII: of a character of several tokens at the end of an answer, transformers marks only the first.
"""

import gzip
import json
import os
import random
import sys
import tempfile

import transformers

TESTDATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data", "tokenizer", "testdata")
FAMILIES = ["qwen", "smollm", "llama3", "llama2", "gemma", "gemma2", "metafirst0", "metaalways1", "unigram", "unigrambytes"]
TEMPLATE = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
WORDS = ["the", "a", "hello", "world", "in", "ing", "and", "th", "e", "er", "on", " ", "  ", "\n", "!", "1", "12", "x", "ab", " the", " and", "tion", "s", "'s", "don't"]


def recorded(family, r, count):
    with tempfile.TemporaryDirectory() as folder:
        with gzip.open(os.path.join(TESTDATA, family + ".json.gz"), "rb") as f:
            open(os.path.join(folder, "tokenizer.json"), "wb").write(f.read())
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}, open(os.path.join(folder, "tokenizer_config.json"), "w"))
        tok = transformers.AutoTokenizer.from_pretrained(folder)
        for _ in range(count):
            contents = ["".join(r.choice(WORDS) for _ in range(r.randint(1, 8))) for _ in range(r.choice([2, 4]))]
            contents[0] = "x x" + contents[0]  # transformers does not end an answer in the first token
            messages = [{"role": ["user", "assistant"][i % 2], "content": c} for i, c in enumerate(contents)]
            out = tok.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
            yield {"messages": messages, "ids": out["input_ids"], "mask": "".join(map(str, out["assistant_masks"]))}


def main(out):
    transformers.utils.logging.set_verbosity(50)
    r = random.Random(29)
    chats = {family: list(recorded(family, r, 100)) for family in FAMILIES}
    with gzip.GzipFile(out, "wb", mtime=0) as f:
        f.write(json.dumps({"template": TEMPLATE, "chats": chats}).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
