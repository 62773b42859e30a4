"""Writes tiny random models with experts and what transformers computes with them in float32, for
tests/experts_test.go.

    pip install torch==2.15.0 transformers==5.24.0
    python3 tests/interop/experts.py tests/testdata/experts

Writes the folders of FAMILIES anew, and to expect.json of all folders the tokens that greedy generation
appends to the first 8 of the first sequence.
"""

import json
import os
import shutil
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

BASE = dict(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
            tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=None)
ROPE = dict(rope_type="default", rope_theta=1e4)
FAMILIES = {
    "granitemoeshared": ("GraniteMoeShared", dict(intermediate_size=12, shared_intermediate_size=20, num_local_experts=6, num_experts_per_tok=2, tie_word_embeddings=True,
                                                  embedding_multiplier=6.0, logits_scaling=4.0, residual_multiplier=0.3, attention_multiplier=0.2, router_aux_loss_coef=0.02)),
    "dots1": ("Dots1", dict(num_hidden_layers=3, intermediate_size=40, moe_intermediate_size=12, n_routed_experts=8, num_experts_per_tok=3, n_group=1, topk_group=1,
                            n_shared_experts=2, routed_scaling_factor=2.5, norm_topk_prob=True, first_k_dense_replace=1, head_dim=8, sliding_window=5,
                            layer_types=["full_attention", "sliding_attention", "full_attention"], rope_parameters=ROPE)),
    "minimax_m2": ("MiniMaxM2", dict(intermediate_size=12, num_local_experts=8, num_experts_per_tok=3, head_dim=8, rope_parameters=dict(ROPE, partial_rotary_factor=0.5))),
}


def build(name, seed):
    prefix, settings = FAMILIES[name]
    config = getattr(transformers, prefix + "Config")(**BASE | settings)
    model = getattr(transformers, prefix + "ForCausalLM")(config).float().eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in [*model.named_parameters(), *model.named_buffers()]:
            draw = torch.randn(p.shape, generator=g)
            if "inv_freq" in key:
                continue
            if "norm" in key and p.dim() == 1:
                p.copy_(1 + 0.1 * draw)
            elif p.dim() == 1:
                p.copy_(0.1 * draw)
            else:
                p.copy_(draw / 2 if "embed_tokens" in key else draw / 4 if "lm_head" in key else draw / p.shape[-1] ** 0.5)
    return model


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.set_experts_implementation("eager")
    return model.eval()


def gradients(model):
    """The gradients, by the names on disk."""
    with tempfile.TemporaryDirectory() as d, torch.no_grad():
        keep = {n: p.detach().clone() for n, p in model.named_parameters()}
        for p in model.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
        model.save_pretrained(d)
        for n, p in model.named_parameters():
            p.copy_(keep[n])
        return {"grad." + k: v.contiguous() for k, v in load_file(os.path.join(d, "model.safetensors")).items() if "correction_bias" not in k}


def steps(folder, ids, balanced, n=6):
    """Losses of steps of AdamW, each before its update."""
    model, losses = load(folder), []
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1}, {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    rule = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    for _ in range(n):
        rule.zero_grad()
        loss = model(input_ids=ids, labels=ids, output_router_logits=balanced).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rule.step()
        losses.append(loss.item())
    return losses


def write(folder, seed):
    shutil.rmtree(folder, ignore_errors=True)
    build(os.path.basename(folder), seed).save_pretrained(os.path.join(folder, "model"))
    os.remove(os.path.join(folder, "model", "generation_config.json"))
    model = load(os.path.join(folder, "model"))
    ids = torch.randint(3, BASE["vocab_size"], (2, 16), generator=torch.Generator().manual_seed(seed + 1))
    out = model(input_ids=ids, labels=ids, output_router_logits=False)
    out.loss.backward()
    os.makedirs(os.path.join(folder, "expect"))
    save_file({"logits": out.logits.detach().contiguous(), **gradients(model)}, os.path.join(folder, "expect", "model.safetensors"))
    e = {"input_ids": ids.tolist(), "loss": out.loss.item()}
    both = model(input_ids=ids, labels=ids, output_router_logits=True)
    aux = getattr(both, "aux_loss", None)
    e["aux_loss"], e["loss_with_output_router_logits"] = None if aux is None else aux.item(), both.loss.item()
    e["adamw"] = steps(os.path.join(folder, "model"), ids, False)
    e["balanced_adamw"] = None if aux is None else steps(os.path.join(folder, "model"), ids, True)
    return e


def greedy(folder, e):
    """The likeliest continuation, and the smallest distance of the likeliest logit from the next one."""
    ids, least, model = e["input_ids"][0][:8], float("inf"), load(os.path.join(folder, "model"))
    for _ in range(12):
        with torch.no_grad():
            best = model(input_ids=torch.tensor([ids])).logits[0, -1].topk(2)
        least = min(least, (best.values[0] - best.values[1]).item())
        ids = ids + [best.indices[0].item()]
    e["greedy"] = ids[8:]
    return least


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    root = sys.argv[1]
    for i, name in enumerate(FAMILIES):
        e = write(os.path.join(root, name), 100 * i)
        with open(os.path.join(root, name, "expect.json"), "w") as f:
            json.dump(e, f)
    for name in sorted(os.listdir(root)):
        path = os.path.join(root, name, "expect.json")
        with open(path) as f:
            e = json.load(f)
        least = greedy(os.path.join(root, name), e)
        with open(path, "w") as f:
            json.dump(e, f)
        print(name, e["loss"], e["greedy"], f"{least:.1e}")


if __name__ == "__main__":
    main()
