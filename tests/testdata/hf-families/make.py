"""Makes expect.json, what tests/hf_families_test.go compares with: losses, norms and
gradients that PyTorch computes with small models of every family that is read.

    pip install torch transformers==5.23.0 numpy
    python make.py           # all variants, or
    python make.py PREFIX    # those whose names begin with PREFIX; the others stay

Parameters and tokens are no files: both sides compute them by value() and token().
For each variant expect.json has the config.json as a hub's folder may have it, and
as transformers writes it.
"""

import json
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

WINDOWS, CONTEXT, VOCAB = 6, 24, 61
STEPS, LR, BETAS, EPS, DECAY, CLIP = 10, 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0

gpt2 = dict(model_type="gpt2", n_layer=2, n_head=3, n_embd=24, n_positions=CONTEXT, vocab_size=VOCAB,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=None, eos_token_id=None)
block = dict(hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=CONTEXT, vocab_size=VOCAB, bos_token_id=None, eos_token_id=None, pad_token_id=None)
gemma = dict(block, model_type="gemma3_text", head_dim=12, sliding_window=5, query_pre_attn_scalar=10, num_hidden_layers=3,
             sliding_window_pattern=3, rope_theta=700.0, rope_local_base_freq=50.0)
gemma2 = dict(block, model_type="gemma2", head_dim=12, sliding_window=5, query_pre_attn_scalar=10, num_hidden_layers=3, rope_theta=700.0)

VARIANTS = {
    "gpt2, relu": dict(gpt2, activation_function="relu"),
    "gpt2, gelu, inner width": dict(gpt2, activation_function="gelu", n_inner=40),
    "gpt2, silu, untied": dict(gpt2, activation_function="silu", tie_word_embeddings=False),
    "gpt2, tanh": dict(gpt2, activation_function="tanh"),
    "gpt2, scores by layer": dict(gpt2, scale_attn_by_inverse_layer_idx=True),
    "gpt2, scores not scaled": dict(gpt2, scale_attn_weights=False, n_inner=30),
    "llama, biases": dict(block, model_type="llama", attention_bias=True, mlp_bias=True),
    "llama, wide heads, tied": dict(block, model_type="llama", head_dim=12, tie_word_embeddings=True),
    "llama, linear positions": dict(block, model_type="llama", rope_theta=300.0, rope_scaling={"type": "linear", "factor": 2.5}),
    "llama, dynamic positions": dict(block, model_type="llama", rope_theta=300.0, rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    "llama, yarn": dict(block, model_type="llama", rope_theta=300.0,
                        rope_scaling={"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 16, "beta_fast": 4.0}),
    "llama, yarn with mscale": dict(block, model_type="llama", head_dim=16, rope_theta=300.0, rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False, "beta_fast": 3.0}),
    "mistral": dict(block, model_type="mistral", sliding_window=None, rope_theta=500.0),
    "mistral, window": dict(block, model_type="mistral", sliding_window=7, head_dim=10),
    "qwen2, window": dict(block, model_type="qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen3": dict(block, model_type="qwen3", head_dim=8, tie_word_embeddings=True, rope_theta=1000.0),
    "qwen3, biases, wide heads": dict(block, model_type="qwen3", head_dim=14, attention_bias=True),
    "qwen3, window": dict(block, model_type="qwen3", head_dim=8, use_sliding_window=True, sliding_window=9, layer_types=["sliding_attention", "full_attention"]),
    "olmo2": dict(block, model_type="olmo2", rope_theta=400.0),
    "olmo2, padding": dict(block, model_type="olmo2", num_key_value_heads=None, pad_token_id=1, attention_bias=True),
    "olmo3": dict(block, model_type="olmo3", num_hidden_layers=4, sliding_window=7, rope_scaling={
        "rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "attention_factor": 1.1}),
    "olmo3, other layers": dict(block, model_type="olmo3", num_hidden_layers=3, attention_bias=True, pad_token_id=3, sliding_window=9,
                                layer_types=["full_attention", "sliding_attention", "sliding_attention"], rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 400.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 90.0}}),
    "phi3": dict(block, model_type="phi3", pad_token_id=60),
    "phi3, window": dict(block, model_type="phi3", sliding_window=5, num_key_value_heads=4),
    "phi3, longrope, short": dict(block, model_type="phi3", original_max_position_embeddings=24, max_position_embeddings=96, rope_theta=300.0,
                                  rope_scaling={"type": "longrope", "short_factor": [1.0, 1.1, 1.5, 2.0], "long_factor": [1.0, 3.0, 9.0, 27.0]}),
    "phi3, longrope, long, a part": dict(block, model_type="phi3", original_max_position_embeddings=10, partial_rotary_factor=0.75, rope_scaling={
        "type": "longrope", "short_factor": [1.0, 1.1, 1.5], "long_factor": [1.0, 1.7, 2.4]}),
    "phi3, a part": dict(block, model_type="phi3", partial_rotary_factor=0.5, pad_token_id=0),
    "llama, longrope": dict(block, model_type="llama", head_dim=12, rope_theta=500.0, rope_scaling={
        "rope_type": "longrope", "original_max_position_embeddings": 6, "attention_factor": 1.3, "short_factor": [1.0] * 6, "long_factor": [1.0, 1.2, 1.4, 1.7, 2.0, 3.0]}),
    "smollm3": dict(block, model_type="smollm3", num_hidden_layers=4, rope_theta=900.0),
    "smollm3, other layers": dict(block, model_type="smollm3", no_rope_layers=[0, 1], attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
    "llama, gelu": dict(block, model_type="llama", hidden_act="gelu"),
    "llama, relu, biases": dict(block, model_type="llama", hidden_act="relu", mlp_bias=True),
    "qwen2, gelu_new": dict(block, model_type="qwen2", hidden_act="gelu_new"),
    "granite": dict(block, model_type="granite", embedding_multiplier=12.0, attention_multiplier=0.22, residual_multiplier=0.22, logits_scaling=8.0,
                    tie_word_embeddings=True, pad_token_id=0),
    "granite, biases": dict(block, model_type="granite", attention_bias=True, mlp_bias=True, embedding_multiplier=3, attention_multiplier=0.5,
                            residual_multiplier=0.7, logits_scaling=0.6, head_dim=12),
    "gemma": dict(block, model_type="gemma", head_dim=12, num_key_value_heads=1, rope_theta=700.0),
    "gemma, as on the hub": dict(block, model_type="gemma", head_dim=8, hidden_act="gelu", hidden_activation=None, pad_token_id=0, attention_bias=True),
    "gemma2": dict(gemma2, attn_logit_softcapping=1.5, final_logit_softcapping=4.0),
    "gemma2, as on the hub": dict(gemma2, pad_token_id=0, attention_bias=True, hidden_act="gelu_pytorch_tanh", cache_implementation="hybrid"),
    "gemma2, without caps": dict(gemma2, attn_logit_softcapping=None, final_logit_softcapping=None, tie_word_embeddings=False,
                                 layer_types=["full_attention", "sliding_attention", "full_attention"]),
    "gemma3": gemma,
    "gemma3, capped": dict(gemma, final_logit_softcapping=5.0),
    "gemma3, scaled": dict(gemma, head_dim=8, rope_scaling={"rope_type": "linear", "factor": 8.0}, attention_bias=True, pad_token_id=0),
    "gemma3, with images": dict(model_type="gemma3", text_config=gemma, mm_tokens_per_image=4, image_token_index=60, boi_token_index=58, eoi_token_index=59,
                                eos_token_id=[1, 60], vision_config=dict(model_type="siglip_vision_model", hidden_size=8, intermediate_size=8,
                                num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=14)),
    # Models that four ranks can divide, as they can "phi3, window", whose matrices are fused.
    "divided: gpt2": dict(gpt2, n_head=4),
    "divided: gpt2, untied": dict(gpt2, n_head=4, tie_word_embeddings=False),
    "divided: llama, biases": dict(block, model_type="llama", num_key_value_heads=4, attention_bias=True, mlp_bias=True),
    "divided: llama, grouped, tied": dict(block, model_type="llama", num_attention_heads=8, num_key_value_heads=4, tie_word_embeddings=True),
    "divided: qwen3": dict(block, model_type="qwen3", num_key_value_heads=4, attention_bias=True, tie_word_embeddings=True),
    "divided: gemma2, capped": dict(gemma2, num_key_value_heads=4, attn_logit_softcapping=1.5, final_logit_softcapping=4.0),
    "divided: gemma2, capped, untied": dict(gemma2, num_key_value_heads=4, attn_logit_softcapping=1.5, final_logit_softcapping=4.0,
                                            tie_word_embeddings=False),
}


def scramble(name, n):
    """n numbers of 24 bits."""
    x = (zlib.crc32(name.encode()) + (np.arange(n, dtype=np.uint64) + 1) * 2654435761) & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 2246822519 & 0xFFFFFFFF
    x ^= x >> 13
    return x >> 8


def value(name, n):
    """Elements of a parameter: within 1/4 of 0, of a norm's weight within 1/4 of 1."""
    x = scramble(name, n).astype(np.float32) * np.float32(2**-25) - np.float32(0.25)
    return x + np.float32(1) if "norm" in name or ".ln_" in name and name.endswith("weight") else x


def token(n):
    return (scramble("tokens", n) % VOCAB).astype(np.int64)


def windows():
    ids = token(WINDOWS * CONTEXT + 1)
    rows = np.stack([ids[i * CONTEXT : (i + 1) * CONTEXT + 1] for i in range(WINDOWS)])
    return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())


def named(model):
    """The parameters of the language model, with the names that it has without a wrapper for images."""
    for name, p in model.named_parameters():
        if "vision_tower" not in name and "multi_modal_projector" not in name:
            yield name.replace("language_model.", ""), p


def made(config):
    c = AutoConfig.for_model(**config)
    model = AutoModelForCausalLM.from_config(c, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in named(model):
            p.copy_(torch.from_numpy(value(name, p.numel())).view_as(p))
    return model


def train(model, batch):
    ps = [p for _, p in named(model)]
    rule = torch.optim.AdamW(
        [{"params": [p for p in ps if p.dim() >= 2], "weight_decay": DECAY},
         {"params": [p for p in ps if p.dim() < 2], "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=EPS)
    losses, norms, grads = [], [], {}
    for step in range(STEPS):
        rule.zero_grad()
        loss = F.cross_entropy(model(batch[0]).logits.flatten(0, 1), batch[1].flatten())
        loss.backward()
        if step == 0:
            grads = {n: p.grad.norm().item() for n, p in named(model)}
        norms.append(torch.nn.utils.clip_grad_norm_(ps, CLIP).item())
        losses.append(loss.item())
        rule.step()
    return losses, norms, grads


def main():
    torch.set_num_threads(1)
    all = {}
    if len(sys.argv) > 1:
        with open("expect.json") as f:
            all = json.load(f)
    for name, config in VARIANTS.items():
        if not name.startswith("".join(sys.argv[1:])):
            continue
        model, batch = made(config), windows()
        logits = model(batch[0]).logits[3, 17].tolist()
        losses, norms, grads = train(model, batch)
        saved = json.loads(model.config.to_json_string(use_diff=True))
        saved["architectures"] = [type(model).__name__]
        all[name] = dict(config=config, saved=saved, logits=logits, losses=losses, norms=norms, gradients=grads)
        print(name, losses[0], losses[-1])
    with open("expect.json", "w") as f:
        json.dump(all, f, indent=None, separators=(",", ":"), sort_keys=True)


if __name__ == "__main__":
    main()
