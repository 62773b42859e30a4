"""The speed of generation beside transformers' generate, on the CPU, in turns.

    pip install torch transformers==5.23.0 safetensors
    go build -o zeroth ./cmd/zeroth
    python tests/interop/generate_speed.py ./zeroth WORK [ROUNDS [MODEL]]

WORK is a folder for the models, of random parameters, which are those of MODELS, or the
one that is named: GPT-2's 124M and Qwen3's 0.6B in their shapes, and a small Qwen3. Both
programs continue prompts of 25 tokens by the likeliest tokens: on one thread, in seconds
of the processor, which other programs on the machine change little, and then one text on
all processors, in seconds. The rate is that of the tokens from the 9th to the 40th (on
all processors the 264th, or the 104th), of all texts together: a run of 40 tokens less
one of 8, so that starting, loading and reading the prompts do not count. Of ROUNDS turns
(3) the quickest of each length counts.
"""

import json
import os
import resource
import subprocess
import sys
import time

import torch
import transformers
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

SHORT, LONG, LONGER = 8, 40, 264
WORDS = "The quick brown fox jumps over the lazy dog and runs through the quiet forest until it finds a river where the water is cold and clear".split()


def qwen3(**shape):
    return Qwen3ForCausalLM(Qwen3Config(hidden_size=1024, intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8, max_position_embeddings=1024,
                                        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, **shape))


MODELS = {
    "gpt2-124m": lambda: GPT2LMHeadModel(GPT2Config(bos_token_id=None, eos_token_id=None)),
    "qwen3-small": lambda: qwen3(vocab_size=50257, num_hidden_layers=8, head_dim=64),
    "qwen3-0.6b": lambda: qwen3(vocab_size=151936, num_hidden_layers=28, head_dim=128).to(torch.bfloat16),
}


def models(wanted):
    """The folders of models, made where they are missing."""
    for name in wanted:
        folder = os.path.join(WORK, name)
        if not os.path.exists(folder):
            MODELS[name]().save_pretrained(folder)
        yield folder


def zeroth(folder, dtype, prompts, tokens, threads):
    """Seconds, and the number of tokens of all answers."""
    args = [ZEROTH, "sample", "--run", folder, "--tokenizer", "gpt2", "--precision", dtype, "--temperature", "0", "--tokens", str(tokens), "--json"]
    for p in prompts:
        args += ["--prompt", p]
    used = time.monotonic
    if threads == 1:
        used = lambda: resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime  # what the system does is mostly reading the model
    begin = used()
    done = subprocess.run(args, capture_output=True, text=True, env=os.environ | {"GOMAXPROCS": str(threads)})
    took = used() - begin
    if done.returncode:
        sys.exit(done.stderr)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(prompts) and all(a["finish_reason"] in ("length", "eos") for a in answers)
    return took, sum(a["tokens"] for a in answers)


def reference(model, ids, tokens, threads):
    torch.set_num_threads(threads)
    used = time.monotonic if threads > 1 else lambda: os.times().user
    begin = used()
    with torch.no_grad():
        out = model.generate(**ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return used() - begin, (out.shape[1] - ids["input_ids"].shape[1]) * out.shape[0]


def rate(rounds):
    """Tokens a second, of the quickest of each length."""
    (a, n), (b, m) = (min(r[i] for r in rounds) for i in (0, 1))
    return (m - n) / (b - a)


ZEROTH, WORK, ROUNDS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 3
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
os.makedirs(WORK, exist_ok=True)
print("| model | type | texts | threads | zeroth, tokens a second | transformers | ratio |\n|---|---|---:|---:|---:|---:|---:|", flush=True)
for folder in models(sys.argv[4:] or MODELS):
    for dtype in ["fp32", "bf16"]:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]).eval()
        for texts, threads, long in [(1, 1, LONG), (8, 1, LONG), (1, os.cpu_count(), 104 if folder.endswith("0.6b") else LONGER)]:
            prompts = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(texts)]
            n = len(WORDS)
            ids = {"input_ids": torch.randint(100, 40000, (texts, n)), "attention_mask": torch.ones(texts, n, dtype=torch.long)}
            rounds = [([zeroth(folder, dtype, prompts, k, threads) for k in (SHORT, long)], [reference(model, ids, k, threads) for k in (SHORT, long)]) for _ in range(ROUNDS)]
            mine, theirs = rate([r[0] for r in rounds]), rate([r[1] for r in rounds])
            print(f"| {os.path.basename(folder)} | {dtype} | {texts} | {threads} | {mine:.1f} | {theirs:.1f} | {mine / theirs:.2f} |", flush=True)
