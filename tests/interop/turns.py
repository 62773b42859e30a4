"""Fine-tunes a small model of every supported family on chats of several turns, with the family's own
template, and compares the losses of each step with a PyTorch loop on transformers and PEFT.

    pip install torch transformers==5.23.0 peft safetensors
    go build -o zeroth ./cmd/zeroth
    python tests/interop/turns.py ./zeroth WORK [FAMILY...]

WORK is a new folder. Each family trains all parameters and adapters, on 2 ranks at stage 3, packed and
not. In the loop an answer is learned where the whole chat shows it as the model saw it at its turn, and
otherwise in the text that ends with it. Every step has all chats, so that losses do not depend on their
order, and one token more or less that is learned changes the first loss by more than its tolerance.
Phi-3 also trains with LongRoPE, on chats below, above, and on both sides of the length from which
factors change.
"""

import gzip
import json
import os
import subprocess
import sys

import torch
import transformers
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import chats  # which also sets the date that templates see

STEPS, LR = 4, 2e-3
FIRST, TRAINED = 2e-6, 1e-4  # float32 sums in other orders, and what Adam makes of them
HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "..", "data")
failed = []


LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.3, 1.7, 1.9, 2.0, 2.2, 2.5], "long_factor": [1.2, 1.9, 2.8, 3.4, 4.1, 5.2, 6.6, 8.0]}
# family: (model_type, template in templates.json.gz or the template itself, tokenizer, more of the config)
FAMILIES = {
    "gpt2": ("gpt2", "chatml", "qwen", {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
    "llama": ("llama", "llama3_2", "llama3", {}),
    "mistral": ("mistral", chats.MISTRAL3, "nemo", {"sliding_window": 40}),
    "qwen2": ("qwen2", "qwen2_5", "qwen", {}),
    "r1": ("qwen2", chats.R1, "llama3", {}),
    "qwen3": ("qwen3", "qwen3", "qwen", {"head_dim": 24}),
    "olmo2": ("olmo2", "olmo2", "olmo2", {}),
    "olmo3": ("olmo3", "olmo2", "olmo2", {"sliding_window": 32}),
    "phi3": ("phi3", chats.PHI, "llama3", {}),
    "phi3-short": ("phi3", chats.PHI, "llama3", {"max_position_embeddings": 4096, "original_max_position_embeddings": 1024, "rope_parameters": LONG}),
    "phi3-long": ("phi3", chats.PHI, "llama3", {"max_position_embeddings": 4096, "original_max_position_embeddings": 16, "rope_parameters": LONG}),
    "phi3-both": ("phi3", chats.PHI, "llama3", {"max_position_embeddings": 4096, "original_max_position_embeddings": 100, "rope_parameters": LONG}),
    "smollm3": ("smollm3", chats.SMOLLM3, "smollm", {}),
    "granite": ("granite", chats.GRANITE, "smollm", {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 2.0}),
    "gemma": ("gemma", "gemma2", "gemma", {"head_dim": 16}),
    "gemma2": ("gemma2", "gemma2", "gemma2", {"head_dim": 16, "sliding_window": 32}),
    "gemma3": ("gemma3_text", "gemma3", "gemma2", {"head_dim": 16, "sliding_window": 32}),
}


def check(what, apart, most):
    print(f"    {what}: {apart:.2g} apart, at most {most:g}", flush=True)
    if not apart <= most:
        failed.append(what)


def zeroth(*args):
    done = subprocess.run([ZEROTH, *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"zeroth {' '.join(args)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def talks(tok):
    """Chats of one to four turns, some with a system message and reasoning, as far as the template allows."""
    nouns = ["sky", "sea", "größte Stadt", "moon", "東京", "grass"]
    for i in range(7):
        talk = [{"role": "system", "content": "Answer briefly."}] if i % 3 == 0 else []
        for turn in range(1 + i % 4):
            noun = nouns[(i + turn) % 6]
            answer = {"role": "assistant", "content": f"Since {noun} has {i * 7 + turn} of them, it's so."}
            if (i + turn) % 2:
                answer["reasoning_content"] = f"The user asks about {noun}."
            talk += [{"role": "user", "content": f"Why is the {noun} number {i}?"}, answer]
        try:
            tok.apply_chat_template(talk, tokenize=False)
        except Exception:
            talk = talk[1:]
        yield talk


def prepare(family):
    """Makes the model's folder and the file of chats; the tokenizer and the chats."""
    kind, template, tokenizer, more = FAMILIES[family]
    folder = os.path.join(WORK, family)
    os.makedirs(folder)
    path = os.path.join(folder, "tokenizer.json")
    with open(path, "wb") as f:
        f.write(gzip.open(os.path.join(DATA, "tokenizer", "testdata", tokenizer + ".json.gz")).read())
    added = {t["content"] for t in json.load(open(path))["added_tokens"]}
    special = {}
    for key, names in {"bos_token": ("<|begin_of_text|>", "<s>", "<bos>"), "eos_token": ("<|eot_id|>", "<|im_end|>", "</s>", "<eos>", "<|endoftext|>")}.items():
        special.update({key: n for n in names if n in added and key not in special})
    shown = json.load(gzip.open(os.path.join(DATA, "chat", "testdata", "templates.json.gz")))["templates"]
    PreTrainedTokenizerFast(tokenizer_file=path, chat_template=shown[template]["t"] if template in shown else template, **special).save_pretrained(folder)
    tok = AutoTokenizer.from_pretrained(folder)
    shape = dict(vocab_size=len(tok), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=1024, initializer_range=0.05,
                 bos_token_id=tok.bos_token_id, eos_token_id=tok.eos_token_id, pad_token_id=None)
    if kind != "gpt2":
        shape |= dict(intermediate_size=160, num_key_value_heads=2)
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(kind, **shape | more)
    AutoModelForCausalLM.from_config(config, attn_implementation="eager").save_pretrained(folder)
    drawn = list(talks(tok))
    with open(folder + ".jsonl", "w") as f:
        f.writelines(json.dumps({"messages": t}, ensure_ascii=False) + "\n" for t in drawn)
    return tok, drawn


def examples(tok, talk):
    """The texts of a chat, each with the spans that are learned in it."""
    render = lambda n, ask=False: tok.apply_chat_template(talk[:n], tokenize=False, add_generation_prompt=ask)
    whole = render(len(talk))
    if "generation %}" in tok.chat_template:
        return None
    spans, alone = [], []
    for i, m in enumerate(talk):
        if m["role"] != "assistant":
            continue
        head, text = render(i, True), render(i + 1)
        at = len(os.path.commonprefix([head, text]))
        if at < len(head) and len(os.path.commonprefix([render(i), head])) > at:  # the template moves the system message
            tail = max(k for k in range(len(text)) if any(text[k - n:k] == head[-n:] for n in (min(len(head), 6),)))
            head, text = head, head + text[tail:]
            at = len(head)
        follows = render(i + 1, True)
        body = len(os.path.commonprefix([text, follows]))
        for token in tok.get_added_vocab():  # an end inside of a token is at its beginning
            for other in (text, follows):
                found = other.find(token, max(0, body - len(token) + 1))
                if 0 <= found < body < found + len(token):
                    body = found
        if whole.startswith(text):
            spans.append((at, len(text)))
        elif body > at and whole.startswith(text[:body]):
            spans.append((at, body))
        else:
            alone.append((text, [(at, len(text))]))
    return ([(whole, spans)] if spans else []) + alone


def encoded(tok, talk):
    """Lists of ids, with a list of which are learned."""
    texts = examples(tok, talk)
    if texts is None:  # the template marks answers
        out = tok.apply_chat_template(talk, return_dict=True, return_assistant_tokens_mask=True)
        return [(out["input_ids"], [bool(x) for x in out["assistant_masks"]])]
    done = []
    for text, spans in texts:
        coded = tok(text, add_special_tokens=False, return_offsets_mapping=True)
        done.append((coded["input_ids"], [any(a < end and start < b for a, b in spans) for start, end in coded["offset_mapping"]]))
    return done


def loss(m, docs):
    total, count = 0, 0
    for ids, learn in docs:
        logits = m(torch.tensor([ids[:-1]])).logits[0]
        each = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
        mask = torch.tensor(learn[1:])
        total, count = total + each[mask].sum(), count + int(mask.sum())
    return total / count


def train(m, docs):
    params = [p for p in m.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    for _ in range(STEPS):
        opt.zero_grad()
        x = loss(m, docs)
        x.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        losses.append(x.item())
    return losses


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def run(family, name, sequences, context, lora, pack, *sets):
    text = f"""
model: {{from: {WORK}/{family}, context: {context}}}
data: {{documents: [{WORK}/{family}.jsonl], format: chat, date: 2026-03-07, validation: 0, pack: {str(pack).lower()}}}
train: {{steps: {STEPS}, batch: {sequences}, micro_batch: 1, clip: 1.0{', lora: {rank: 4, alpha: 8, targets: [all-linear]}' if lora else ''}}}
parallel: {{ranks: 2}}
zero: {{stage: 3}}
optimizer: {{type: adamw, lr: {LR}, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.0}}
schedule: {{type: constant, warmup: 0}}
precision: fp32
"""
    file, out = os.path.join(WORK, name + ".yaml"), os.path.join(WORK, name)
    with open(file, "w") as f:
        f.write(text)
    said = zeroth("train", file, "--out", out, *sets)
    told = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"))]
    return out, [x["loss"] for x in told if "loss" in x], said


def packed(docs, context):
    """How many sequences zeroth packs documents into: best fit decreasing, with the id that follows each."""
    room = []
    for n in sorted((len(ids) - 1 for ids, _ in docs), reverse=True):
        fits = [i for i, r in enumerate(room) if r >= n]
        if fits:
            room[min(fits, key=lambda i: room[i])] -= n
        else:
            room.append(context - n)
    return len(room)


def fine_tune(family):
    tok, drawn = prepare(family)
    docs = [d for t in drawn for d in encoded(tok, t)]
    print(f"{family}: {len(drawn)} chats, {len(docs)} documents of {min(len(d[0]) for d in docs)} to {max(len(d[0]) for d in docs)} tokens, {sum(sum(d[1]) for d in docs)} learned", flush=True)
    longest = max(len(d[0]) for d in docs)
    for pack in [False, True][:1 if family == "phi3-both" else 2]:  # the longest document of a pack decides for all of it
        context, sequences = longest + longest % 2, len(docs)
        if pack:
            context = next(c for c in range(context, 4 * context, 2) if packed(docs, c) % 2 == 0)
            sequences = packed(docs, context)
        elif sequences % 2:  # an even number for two ranks: the last document twice
            with open(os.path.join(WORK, family + ".jsonl"), "a") as f:
                f.write(json.dumps({"messages": drawn[0]}) + "\n")
            drawn.append(drawn[0])
            docs += encoded(tok, drawn[0])
            sequences = len(docs)
        for lora in [False, True]:
            name = f"{family}-{'lora' if lora else 'full'}-{'packed' if pack else 'apart'}"
            out, mine, said = run(family, name, sequences, context, lora, pack)
            reference = load(os.path.join(WORK, family))
            if lora:
                start, _, _ = run(family, name + "-start", sequences, context, lora, pack, "--set", "optimizer.lr=1e-30", "--set", "train.steps=1")
                reference = PeftModel.from_pretrained(reference, os.path.join(start, "adapter"), is_trainable=True)
            want = train(reference.train(), docs)
            check(f"{name}: first loss", abs(mine[0] - want[0]), FIRST)
            check(f"{name}: losses of {STEPS} steps, from {want[0]:.3f} to {want[-1]:.3f}", max(abs(a - b) for a, b in zip(mine, want, strict=True)), TRAINED)


transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
ZEROTH, WORK = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
os.makedirs(WORK)
for family in sys.argv[3:] or FAMILIES:
    fine_tune(family)
print(f"{len(failed)} failed" + "".join("\n  " + x for x in failed) if failed else "all within their tolerance")
sys.exit(1 if failed else 0)
