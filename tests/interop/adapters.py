"""Adapters beside PEFT: zeroth trains them on 2 ranks at stage 3, and PEFT trains the same
from the same start. Losses of every step, the merged model and the adapter's folder are
compared.

    pip install torch transformers==5.23.0 peft safetensors
    go build -o zeroth ./cmd/zeroth
    python tests/interop/adapters.py ./zeroth WORK

WORK is a new folder. Models are small and have random parameters: a Llama, a Llama whose
output layer is its embedding, and a GPT-2.
"""

import json
import os
import subprocess
import sys

import numpy
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

STEPS, LR, CONTEXT, ROWS = 6, 3e-3, 32, 8
# As in flow.py: float32 sums in other orders, and what Adam makes of them in six steps.
PASS, TRAINED = 1e-5, 1e-4
failed = []


def check(what, apart, most):
    print(f"    {what}: {apart:.2g} apart, at most {most:g}", flush=True)
    if not apart <= most:
        failed.append(what)


def zeroth(*args):
    done = subprocess.run([ZEROTH, *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"zeroth {' '.join(args)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def base(kind):
    """Makes the base model of a kind."""
    folder = os.path.join(WORK, kind)
    shape = dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=CONTEXT, initializer_range=0.05)
    torch.manual_seed(7)
    if kind == "gpt2":
        m = GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, **shape))
    else:
        m = LlamaForCausalLM(LlamaConfig(intermediate_size=160, num_key_value_heads=2, tie_word_embeddings=kind == "tied", **shape))
    m.save_pretrained(folder)
    return folder


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def loss(m):
    """The mean loss over all tokens; a step of zeroth trains on all of them."""
    ids = torch.tensor(IDS[:-1].reshape(ROWS, CONTEXT))
    want = torch.tensor(IDS[1:].reshape(ROWS, CONTEXT))
    return torch.nn.functional.cross_entropy(m(ids).logits.flatten(0, 1), want.flatten())


class Mask(torch.nn.Module):
    """The dropout of an adapter's input in zeroth: a function of seed, layer and position; see device.Dropout."""

    step = 0

    def __init__(self, site, p, seed=1):
        super().__init__()
        self.site, self.limit, self.seed = site, round(p * 65536), seed

    def forward(self, x):
        if not self.training:
            return x
        rows, columns = x.shape[0] * x.shape[1], x.shape[2]
        row = numpy.arange(rows, dtype=numpy.uint64)[:, None] + numpy.uint64(Mask.step * rows)
        words = philox([numpy.arange(-(-columns // 8), dtype=numpy.uint64)[None, :], numpy.uint64(self.site), row & MASK, row >> numpy.uint64(32)],
                       [(self.seed ^ 0x64726F70) & 0xFFFFFFFF, (self.seed >> 32) ^ 0x6F757400])
        halves = numpy.stack([h for w in words for h in (w & numpy.uint64(0xFFFF), w >> numpy.uint64(16))], -1).reshape(rows, -1)[:, :columns]
        kept = torch.tensor(halves >= self.limit).reshape(x.shape)
        return torch.where(kept, x * (65536 / (65536 - self.limit)), 0.0)


MASK = numpy.uint64(0xFFFFFFFF)


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC 2011) of arrays of counters."""
    a, b, c, d = (numpy.broadcast_arrays(*counter)[i].astype(numpy.uint64) for i in range(4))
    for r in range(10):
        p, q = a * numpy.uint64(0xD2511F53), c * numpy.uint64(0xCD9E8D57)
        k = [numpy.uint64((key[0] + r * 0x9E3779B9) & 0xFFFFFFFF), numpy.uint64((key[1] + r * 0xBB67AE85) & 0xFFFFFFFF)]
        a, b, c, d = (q >> numpy.uint64(32)) ^ b ^ k[0], q & MASK, (p >> numpy.uint64(32)) ^ d ^ k[1], p & MASK
    return [a, b, c, d]


def drops(m, p):
    """Gives the adapters of a PEFT model zeroth's dropout."""
    order = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    for name, layer in m.named_modules():
        if hasattr(layer, "lora_dropout"):
            parts = name.split(".")
            number = int(next(x for x in parts if x.isdigit()))
            at = order.index(parts[-1]) if parts[-1] in order else ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"].index(".".join(parts[-2:]))
            layer.lora_dropout["default"] = Mask((1 << 30) + 8 * number + at, p)
    return m


def train(m):
    """The same training in PyTorch; its losses."""
    params = [p for p in m.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    for Mask.step in range(STEPS):
        opt.zero_grad()
        x = loss(m)
        x.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        losses.append(x.item())
    return losses


def run(name, folder, lora, steps=STEPS, lr=LR, merged=()):
    """Trains with zeroth; the run's folder."""
    text = f"""
model: {{from: {folder}, context: {CONTEXT}, adapters: {json.dumps(merged) if merged else "null"}}}
data: {{tokens: [{WORK}/{TOKENS}.bin], tokenizer: none, dtype: uint16, validation: 0}}
train: {{steps: {steps}, micro_batch: 2, batch: {ROWS}, clip: 1.0, lora: {json.dumps(lora)}}}
parallel: {{ranks: 2}}
zero: {{stage: 3}}
optimizer: {{type: adamw, lr: {lr}, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.0}}
schedule: {{type: constant, warmup: 0}}
precision: fp32
checkpoint: {{every: {steps}}}
"""
    file, out = os.path.join(WORK, name + ".yaml"), os.path.join(WORK, name)
    with open(file, "w") as f:
        f.write(text)
    zeroth("train", file, "--out", out)
    return out


def losses_of(run):
    told = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
    return [x["loss"] for x in told if "loss" in x]


def logits(m):
    with torch.no_grad():
        return m(torch.tensor(IDS[:-1].reshape(ROWS, CONTEXT))).logits


def same(folder, out, reference, merged=lambda m: m):
    """Compares a run with PEFT's training of reference, and opens its adapter in PEFT."""
    want = train(reference.train())
    check("losses of the steps", max(abs(a - b) for a, b in zip(losses_of(out), want, strict=True)), TRAINED)
    check(f"fall from {want[0]:.3f} to {want[-1]:.3f}", 0 if want[-1] < want[0] - 0.02 else 1, 0)
    whole = logits(load(os.path.join(out, "model")))
    check("logits of the merged model", (whole - logits(reference.eval())).abs().max().item(), TRAINED)
    adapted = PeftModel.from_pretrained(merged(load(folder)), os.path.join(out, "adapter")).eval()
    check("logits of base and adapter in PEFT beside the merged model", (logits(adapted) - whole).abs().max().item(), PASS)
    zeroth("ckpt", "export", out, "--to", out + "-merged")
    check("logits of the checkpoint's export beside the merged model", (logits(load(out + "-merged")) - whole).abs().max().item(), 0)
    zeroth("ckpt", "export", out, "--to", out + "-adapter", "--adapter")
    again = PeftModel.from_pretrained(merged(load(folder)), out + "-adapter").eval()
    check("logits of base and the checkpoint's adapter", (logits(again) - logits(adapted)).abs().max().item(), 0)


def fresh(kind, folder, name, lora):
    """A new adapter: PEFT begins with the one that a run of one step at no rate has written."""
    print(f"{kind}, {name}:", flush=True)
    start = run(f"{kind}-{name}-start", folder, lora, 1, 1e-30)
    out = run(f"{kind}-{name}", folder, lora)
    reference = PeftModel.from_pretrained(load(folder), os.path.join(start, "adapter"), is_trainable=True)
    same(folder, out, drops(reference, lora["dropout"]) if "dropout" in lora else reference)


def of_peft(kind, folder, name, **config):
    """An adapter of PEFT with random values: zeroth goes on with it, and trains another on it."""
    adapter = os.path.join(WORK, f"{kind}-{name}-peft")
    torch.manual_seed(9)
    m = get_peft_model(load(folder), LoraConfig(init_lora_weights=False, task_type="CAUSAL_LM", **config))
    for n, p in m.named_parameters():
        if "modules_to_save" in n:
            p.data += 0.02 * torch.randn_like(p)
    m.save_pretrained(adapter)
    print(f"{kind}, {name}, going on with PEFT's:", flush=True)
    same(folder, run(f"{kind}-{name}-on", folder, {"from": adapter}), PeftModel.from_pretrained(load(folder), adapter, is_trainable=True))

    print(f"{kind}, {name}, a new one on PEFT's:", flush=True)
    merge = lambda m: PeftModel.from_pretrained(m, adapter).merge_and_unload()
    lora = {"rank": 4, "alpha": 8, "targets": ["all-linear"]}
    start = run(f"{kind}-{name}-stacked-start", folder, lora, 1, 1e-30, [adapter])
    out = run(f"{kind}-{name}-stacked", folder, lora, merged=[adapter])
    same(folder, out, PeftModel.from_pretrained(merge(load(folder)), os.path.join(start, "adapter"), is_trainable=True), merge)


transformers.logging.disable_progress_bar()
ZEROTH, WORK = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
os.makedirs(WORK)
DIFFERENT = numpy.random.default_rng(1).integers(0, 16, ROWS * CONTEXT + 1)
ALIKE = numpy.concatenate([DIFFERENT[:CONTEXT]] * ROWS + [DIFFERENT[:1]])  # where the order of rows does not matter
DIFFERENT.astype("<u2").tofile(os.path.join(WORK, "ids.bin"))
ALIKE.astype("<u2").tofile(os.path.join(WORK, "alike.bin"))
for kind in ["llama", "tied", "gpt2"]:
    folder = base(kind)
    IDS, TOKENS = DIFFERENT, "ids"
    fresh(kind, folder, "lora", {"rank": 4, "alpha": 8, "targets": ["all-linear"]})
    layers = {"target_modules": ["c_attn", "c_proj"]} if kind == "gpt2" else {"target_modules": "all-linear"}
    of_peft(kind, folder, "lora", r=4, lora_alpha=6, **layers)
    of_peft(kind, folder, "one-layer", r=2, lora_alpha=6, use_rslora=True, layers_to_transform=[1], **layers | ({} if kind == "gpt2" else {"target_modules": ["q_proj", "up_proj"]}))
    fresh(kind, folder, "rslora", {"rank": 4, "alpha": 8, "rslora": True, "targets": ["all-linear"]})
    some, whole = ({"c_fc": 2, ".*1.attn.c_proj": 7}, ["ln_f", "wte"]) if kind == "gpt2" else ({"up_proj": 2, "layers.1.self_attn.*": 7}, ["embed_tokens", "model.norm"] + ["lm_head"] * (kind == "llama"))
    fresh(kind, folder, "patterns", {"rank": 4, "alpha": 8, "targets": ["all-linear"], "rank_pattern": some, "alpha_pattern": {list(some)[1]: 3}, "modules_to_save": whole})
    of_peft(kind, folder, "patterns", r=4, lora_alpha=6, lora_dropout=0.0, rank_pattern=some, alpha_pattern={list(some)[0]: 3}, modules_to_save=[x for x in whole if x != "wte"], ensure_weight_tying=kind == "tied", **layers)  # reading it again, PEFT unties wte
    IDS, TOKENS = ALIKE, "alike"
    fresh(kind, folder, "dropout", {"rank": 4, "alpha": 8, "targets": ["all-linear"], "dropout": 0.25})
print(f"{len(failed)} failed" + "".join("\n  " + x for x in failed) if failed else "all within their tolerance")
sys.exit(1 if failed else 0)
