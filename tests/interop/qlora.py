"""Compares weights in 4 and 8 bits with bitsandbytes.

    pip install torch transformers==5.23.0 peft bitsandbytes accelerate
    python tests/interop/qlora.py codes nf4 > device/testdata/nf4.json
    python tests/interop/qlora.py codes int8 > device/testdata/int8.json

writes some matrices as bitsandbytes codes them, for the tests of package device.

    go build -o zeroth ./cmd/zeroth
    python tests/interop/qlora.py train ./zeroth WORK nf4
    python tests/interop/qlora.py train ./zeroth WORK int8

trains adapters on a small Llama with coded weights, on 2 ranks at stage 3, and compares the losses of
all steps with those of transformers, bitsandbytes and PEFT, and the decoded weights that are exported
with theirs. LLM.int8 rounds activations, too, so for int8 the losses are compared with those of the
weights that bitsandbytes decodes, and its own first loss is printed. WORK is a new folder.
"""

import base64
import json
import os
import subprocess
import sys
import zlib

import bitsandbytes.functional as bnb
import numpy as np
import torch

torch.set_num_threads(1)  # the mean of magnitudes depends on it


def numbers(n, seed):
    """n float32 numbers near a normal distribution, which any language computes alike"""
    h = np.arange(n, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(seed)
    x = np.zeros(n, dtype=np.int64)
    for _ in range(4):
        h ^= h >> np.uint32(16)
        h *= np.uint32(0x7FEB352D)
        h ^= h >> np.uint32(15)
        h *= np.uint32(0x846CA68B)
        h ^= h >> np.uint32(16)
        x += (h >> np.uint32(16)).astype(np.int64) - 32768
    return (x / 2**21).astype(np.float32)


def matrices():
    yield "three groups", numbers(3 * 16384, 1).reshape(192, 256)
    yield "incomplete blocks", numbers(311 * 58, 2).reshape(311, 58)
    few = numbers(4 * 64, 3)
    few[0:64] = 0
    few[64:128] *= 1e-37
    few[130] = 1e6
    yield "zeros, tiny numbers and one large", few.reshape(4, 64)
    yield "one block", numbers(12, 4).reshape(3, 4)
    limits = bnb.get_4bit_type("nf4", device="cpu")
    limits = ((limits[1:] + limits[:-1]) / 2).numpy()
    near = [np.nextafter(limits, np.float32(side)) for side in (-2, 2)]
    edge = np.concatenate([[1], limits, near[0], near[1], np.zeros(18)]).astype(np.float32)
    yield "limits between codes", np.concatenate([edge, edge * np.float32(0.7)]).reshape(2, 64)


def text(a):
    return base64.b64encode(np.ascontiguousarray(a).tobytes()).decode()


def int8(x):
    """codes and magnitudes of rows, as Int8Params stores a weight"""
    codes, most, _ = bnb.int8_vectorwise_quant(x.to(torch.float16))
    return codes, most


def codes_int8():
    out = []
    few = numbers(5 * 70, 6).reshape(5, 70)
    few[1] = 0
    few[2] *= 1e-7  # subnormal numbers of float16
    few[3, 7] = 65504
    for name, x in [*list(matrices())[3:], ("incomplete blocks", numbers(31 * 59, 2).reshape(31, 59)), ("zeros, subnormal and large numbers", few)]:
        q, most = int8(torch.from_numpy(x.copy()))
        y = bnb.int8_vectorwise_dequant(q, most)
        m = {"name": name, "shape": x.shape, "codes": text(q.numpy()), "magnitudes": text(most.numpy())}
        if x.size < 1000:
            m["input"] = text(x)
        for t in (torch.float32, torch.bfloat16, torch.float16):
            m[str(t)[6:]] = zlib.crc32(y.to(t).contiguous().view(torch.uint8).numpy().tobytes())
        out.append(m)
    json.dump({"matrices": out}, sys.stdout, indent=1)
    print()


def codes_nf4():
    out = {"magnitudes": text(bnb.create_dynamic_map().numpy()), "matrices": []}
    for name, x in matrices():
        q, s = bnb.quantize_4bit(torch.from_numpy(x), quant_type="nf4", compress_statistics=True)
        m = {
            "name": name, "shape": x.shape, "codes": text(q.numpy()), "magnitudes": text(s.absmax.numpy()),
            "largest": text(s.state2.absmax.numpy()), "mean": text(s.offset.numpy()),
        }
        if x.size < 1000:
            m["input"] = text(x)
        for t in (torch.float32, torch.bfloat16, torch.float16):
            s.dtype = t
            y = bnb.dequantize_4bit(q, s)
            m[str(t)[6:]] = zlib.crc32(y.contiguous().view(torch.uint8).numpy().tobytes())
        out["matrices"].append(m)
    x = torch.from_numpy(np.abs(numbers(300_001, 5)))
    out["means"] = {n: x[:n].mean().item() for n in (1, 7, 31, 32, 100, 1000, 16 * 32, 16 * 32 + 5, 8192 + 8 * 3 + 1, 50_003, 262_144, 300_001)}
    json.dump(out, sys.stdout, indent=1)
    print()


STEPS, LR, CONTEXT, SEQUENCES, VOCAB = 8, 3e-3, 64, 8, 512
# As in flow.py: two float32 programs that sum in other orders.
TRAINED, DECODED = 1e-4, 1e-6


def small(folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    c = LlamaConfig(vocab_size=VOCAB, hidden_size=256, intermediate_size=704, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                    max_position_embeddings=CONTEXT, initializer_range=0.05, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None)
    LlamaForCausalLM(c).save_pretrained(folder)


def decoded8(folder):
    """the model with the decoded weights of blocks, and the model that computes with codes"""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for name, p in model.named_parameters():
        if ".layers." in name and p.dim() == 2:
            p.data = bnb.int8_vectorwise_dequant(*int8(p.data))
    own = AutoModelForCausalLM.from_pretrained(folder, quantization_config=BitsAndBytesConfig(load_in_8bit=True), dtype=torch.float32, device_map="cpu", attn_implementation="eager")
    return model, own


def coded(folder):
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    c = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=c, dtype=torch.float32, device_map="cpu", attn_implementation="eager")
    for m in model.modules():  # where processors have it, bfloat16 would be used instead of float32
        if hasattr(m, "support_avx512bf16_for_cpu"):
            m.support_avx512bf16_for_cpu = False
    return model


def train(zeroth, work, weights):
    from peft import PeftModel
    from safetensors.torch import load_file

    os.makedirs(work)
    model, tokens = os.path.join(work, "base"), os.path.join(work, "tokens.bin")
    small(model)
    ids = np.random.default_rng(1).integers(0, VOCAB, SEQUENCES * CONTEXT + 1).astype(np.uint16)
    ids.tofile(tokens)

    def run(out, *sets):
        job = {
            "model": {"from": model, "weights": weights, "context": CONTEXT}, "data": {"tokens": [tokens], "tokenizer": "none", "dtype": "uint16", "validation": 0},
            "train": {"steps": STEPS, "batch": SEQUENCES, "clip": 1.0, "lora": {"rank": 8, "alpha": 16, "targets": ["all-linear"]}},
            "parallel": {"ranks": 2}, "zero": {"stage": 3}, "precision": "fp32",
            "optimizer": {"lr": LR, "weight_decay": 0.0}, "schedule": {"type": "constant", "warmup": 0}, "report": {"every": 1},
        }
        with open(os.path.join(work, "job.yaml"), "w") as f:
            json.dump(job, f)
        out = os.path.join(work, out)
        subprocess.run([zeroth, "train", os.path.join(work, "job.yaml"), "--out", out, *sum((["--set", s] for s in sets), [])], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return out

    start, done = run("start", "train.steps=1", "optimizer.lr=1e-30"), run("run")
    with open(os.path.join(done, "metrics.jsonl")) as f:
        losses = [m["loss"] for m in map(json.loads, f) if "loss" in m and "step" in m]
    plain, own = (coded(model), None) if weights == "nf4" else decoded8(model)
    reference = PeftModel.from_pretrained(plain, os.path.join(start, "adapter"), is_trainable=True).float()
    x = torch.tensor(np.stack([ids[i * CONTEXT:(i + 1) * CONTEXT + 1] for i in range(SEQUENCES)]).astype(np.int64))
    params = [p for p in reference.parameters() if p.requires_grad]
    rule = torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    apart = 0
    if own:
        with torch.no_grad():
            logits = own(input_ids=x[:, :-1]).logits.float()
        print(f"LLM.int8's loss before the first update: {torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), x[:, 1:].reshape(-1)).item():.7f}")
    for step in range(STEPS):
        logits = reference(input_ids=x[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), x[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        rule.step()
        rule.zero_grad()
        apart = max(apart, abs(loss.item() - losses[step]))
        print(f"step {step + 1}: loss {losses[step]:.7f}, of bitsandbytes and PEFT {loss.item():.7f}")
    ours, far = load_file(os.path.join(start, "model", "model.safetensors")), 0
    base = reference.get_base_model()
    for name, module in base.named_modules():
        if hasattr(module, "base_layer"):
            w = module.base_layer.weight.data
            w = bnb.dequantize_4bit(w, module.base_layer.weight.quant_state) if weights == "nf4" else w
            far = max(far, (w - ours[name + ".weight"]).abs().max().item())
    print(f"largest difference of losses {apart:.2g}, of decoded weights {far:.2g}")
    if len(losses) != STEPS or apart > TRAINED or far > DECODED:
        sys.exit("beyond the tolerance")


if sys.argv[1:] in (["codes", "nf4"], ["codes", "int8"]):
    {"nf4": codes_nf4, "int8": codes_int8}[sys.argv[2]]()
elif len(sys.argv) == 5 and sys.argv[1] == "train":
    train(*sys.argv[2:])
else:
    sys.exit(__doc__)
