"""Records with which ids transformers reads tokenizers whose folders name a class, for the Go tests of package data.

    pip install transformers==5.23.0
    python tests/interop/classes.py data/testdata/classes.json.gz

Some classes build a tokenizer of their own from tokenizer.json, depending on the type of the model. The tokenizers are those in
data/tokenizer/testdata.
"""

import gzip
import json
import os
import sys
import tempfile

import transformers

TESTDATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data", "tokenizer", "testdata")
FAMILIES = ["gpt2", "llama3", "qwen", "smollm", "llama2", "gemma2", "unigram"]
CLASSES = [None, "PreTrainedTokenizerFast", "LlamaTokenizerFast", "Qwen2Tokenizer", "GPT2Tokenizer", "GemmaTokenizer", "RobertaTokenizer", "Unknown"]
MODELS = [None, "llama", "mistral", "qwen2", "qwen3", "gemma2", "phi"]
STRINGS = ["Hello world", "  two  spaces ", "naïve e\u0301 日本", "1234567 12", "x</s>y <s> z\n\nA\u030a", " don't"]


def settings():
    """Yields families, tokenizer_config.json, the model's config.json, and whether tokenizer.json has no normalizer."""
    for family in FAMILIES:
        for name in CLASSES:
            for model in MODELS:
                yield family, {"tokenizer_class": name} if name else {}, {"model_type": model} if model else None, False
    for family in ["llama2", "llama2odd", "gemma2", "metafirst0", "metaalways1"]:
        for more in [{}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False}, {"legacy": True, "add_prefix_space": True}]:
            for model in ["llama", "smollm3"]:
                yield family, {"tokenizer_class": "LlamaTokenizer", **more}, {"model_type": model}, False
    for name in ["GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer"]:
        for more in [{}, {"add_prefix_space": True}, {"add_prefix_space": False}]:
            yield "prefix", {"tokenizer_class": name, **more}, {"model_type": "llama"}, False
    for name in ["LlamaTokenizerFast", "Qwen2Tokenizer", "PreTrainedTokenizerFast"]:
        for model in ["qwen2", "qwen3"]:
            yield "qwen", {"tokenizer_class": name}, {"model_type": model}, True
    one = {"content": "<s>", "special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    yield "llama2odd", {"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": {"1": one}}, {"model_type": "llama"}, False
    yield "llama2", {}, {"model_type": "llama", "tokenizer_class": "LlamaTokenizer"}, False


def read(folder, family, config, model, plain):
    with gzip.open(os.path.join(TESTDATA, family + ".json.gz"), "rt", encoding="utf-8") as f:
        whole = json.load(f)
    if plain:
        whole["normalizer"] = None
    for name, content in {"tokenizer.json": whole, "tokenizer_config.json": config, "config.json": model}.items():
        if content is not None:
            json.dump(content, open(os.path.join(folder, name), "w"))
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    return [tok(s)["input_ids"] for s in STRINGS]


def main(out):
    cases = []
    for family, config, model, plain in settings():
        case = {"family": family, "config": config, "model": model, "plain": plain}
        with tempfile.TemporaryDirectory() as folder:
            try:
                case["ids"] = read(folder, family, config, model, plain)
            except Exception:  # the class cannot read such a file
                pass
        cases.append(case)
    with gzip.GzipFile(out, "wb", mtime=0) as f:
        f.write(json.dumps({"strings": STRINGS, "cases": cases}).encode())
    print(len(cases), "settings, of which transformers reads", sum("ids" in c for c in cases))


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity(50)
    main(*sys.argv[1:])
