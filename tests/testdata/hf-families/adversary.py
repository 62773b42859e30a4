"""Makes folders of models with drawn config variants, and what transformers computes with
them, for TestAdversary of tests/hf_adversary_test.go.

    python adversary.py DIR SEED COUNT
    ZEROTH_ADVERSARY=DIR go test ./tests -run TestAdversary -v

A folder is as a user may have it: config.json is written by hand, not by transformers,
and may say what no class reads. What transformers itself refuses is noted, too.
"""

import json
import os
import random
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB, CONTEXT = 61, 24


def rope(rng, pairs, family):
    kind = rng.choice(["none", "none", "none", "default", "linear", "dynamic", "llama3", "yarn", "longrope"])
    theta = rng.choice([10000.0, 300.0, 5e5])
    if kind == "none":
        return rng.choice([{}, {"rope_theta": theta}, {"rope_theta": theta, "rope_scaling": None}, {"rope_parameters": {"rope_theta": theta, "rope_type": "default"}}])
    s = {rng.choice(["rope_type", "rope_type", "type"]): kind}
    if kind in ("linear", "dynamic", "llama3", "yarn"):
        s["factor"] = rng.choice([1.0, 2.0, 3.5])
    if kind == "llama3":
        s.update(low_freq_factor=1.0, high_freq_factor=rng.choice([2.0, 4.0]), original_max_position_embeddings=rng.choice([8, 16]))
    if kind == "yarn":
        for key, values in {"original_max_position_embeddings": [8, 16, None], "beta_fast": [32, 4.0], "beta_slow": [1, 2.0], "mscale": [0.7], "mscale_all_dim": [1.1, 0.0],
                            "attention_factor": [0.9], "truncate": [True, False]}.items():
            if rng.random() < 0.4:
                s[key] = rng.choice(values)
                if s[key] is None:
                    del s[key]
    if kind == "longrope":
        s.update(short_factor=[1 + rng.random() for _ in range(pairs)], long_factor=[1 + 4 * rng.random() for _ in range(pairs)])
        if rng.random() < 0.8:
            s["original_max_position_embeddings"] = rng.choice([6, 12, 24])
        if rng.random() < 0.4:
            s["attention_factor"] = 1.2
        if rng.random() < 0.3:
            s["factor"] = rng.choice([2.0, 4.0])
    if rng.random() < 0.5:
        return {"rope_theta": theta, "rope_scaling": s}
    return {"rope_parameters": dict(s, rope_theta=theta)}


def drawn(rng):
    family = rng.choice(["gpt2", "llama", "mistral", "qwen2", "qwen3", "olmo2", "olmo3", "phi3", "smollm3", "gemma", "gemma2", "gemma3_text"])
    c = {"model_type": family, "vocab_size": VOCAB}
    maybe = lambda key, *values, p=0.3: c.update({key: rng.choice(values)}) if rng.random() < p else None
    maybe("tie_word_embeddings", True, False, p=0.4)
    maybe("initializer_range", 0.5)
    maybe("bos_token_id", 1, None)
    maybe("eos_token_id", 2, [2, 3], None)
    maybe("torch_dtype", "float32", "bfloat16")
    maybe("dtype", "float32")
    maybe("pretraining_tp", 1, 2, p=0.1)
    maybe("use_cache", True, False)
    maybe("logits_to_keep", 0, 1, p=0.05)
    maybe("chunk_size_feed_forward", 0, 3, p=0.1)
    maybe("attention_chunk_size", 4, None, p=0.03)
    maybe("is_decoder", True, p=0.1)
    maybe("use_bidirectional_attention", True, False, None, p=0.03)
    maybe("is_causal", True, False, p=0.03)
    maybe("logits_scaling", 2.0, p=0.02)
    maybe("residual_multiplier", 0.5, p=0.02)
    if family == "gpt2":
        c.update(n_layer=2, n_head=3, n_embd=24, n_positions=CONTEXT)
        maybe("activation_function", "gelu_new", "gelu", "relu", "silu", "swish", "tanh", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu2", "mish", p=0.7)
        maybe("n_inner", 40, None, 96)
        maybe("layer_norm_epsilon", 1e-3, 1e-5)
        maybe("scale_attn_weights", True, False)
        maybe("scale_attn_by_inverse_layer_idx", True, False)
        maybe("reorder_and_upcast_attn", True, False)
        maybe("attn_pdrop", 0.0, 0.2)
        maybe("n_ctx", 8)
        return c
    heads, layers = rng.choice([2, 4]), rng.choice([2, 3, 4])
    c.update(hidden_size=32, intermediate_size=rng.choice([40, 56]), num_hidden_layers=layers, num_attention_heads=heads, max_position_embeddings=rng.choice([CONTEXT, 48]))
    c.update(num_key_value_heads=rng.choice([1, 2, heads]), pad_token_id=rng.choice([None, 0, 60]))
    if rng.random() < 0.05:
        c["num_key_value_heads"] = None
    head = 32 // heads
    if family in ("llama", "mistral", "qwen3", "gemma", "gemma2", "gemma3_text") or rng.random() < 0.15:
        head = c["head_dim"] = rng.choice([8, 12, 16, 32 // heads])
    maybe("rms_norm_eps", 1e-5, 1e-2)
    gemma = family.startswith("gemma")
    of = lambda *families: 0.4 if family in families else 0.02
    maybe("attention_bias", True, False, p=of("llama", "qwen3", "olmo2", "olmo3", "smollm3", "gemma", "gemma2", "gemma3_text", "phi3", "qwen2"))
    maybe("mlp_bias", True, False, p=of("llama", "smollm3"))
    maybe("attention_dropout", 0.0, 0.1)
    maybe("sliding_window", 5, None, 100, p=of("mistral", "qwen2", "qwen3", "olmo3", "phi3", "gemma2", "gemma3_text", "smollm3"))
    maybe("use_sliding_window", True, False, p=of("qwen2", "qwen3"))
    maybe("max_window_layers", 1, 0, 9, p=of("qwen2", "qwen3"))
    maybe("layer_types", [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)], ["full_attention"] * layers, p=0.15)
    maybe("layer_types", ["full_attention"], p=0.02)
    if family == "gemma":
        maybe("hidden_act", "gelu", "gelu_pytorch_tanh", "gelu_new", "silu")
    if gemma:
        maybe("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh", "gelu_new", "gelu")
    else:
        maybe("hidden_act", "silu", "silu", "swish", "gelu")
    maybe("partial_rotary_factor", 1.0, 0.5, 0.75, p=of("phi3"))
    maybe("qkv_bias", True, False, p=0.03)
    maybe("no_rope_layers", [rng.choice([0, 1]) for _ in range(layers)], [], None, p=of("smollm3"))
    maybe("no_rope_layer_interval", 2, 3, p=of("smollm3"))
    maybe("query_pre_attn_scalar", 10, 16, p=of("gemma2", "gemma3_text"))
    maybe("attn_logit_softcapping", 2.0, None, p=of("gemma2"))
    maybe("final_logit_softcapping", 3.0, None, p=of("gemma2", "gemma3_text"))
    maybe("sliding_window_pattern", 2, 3, p=of("gemma3_text"))
    maybe("_sliding_window_pattern", 2, 3, p=0.1 if family == "gemma3_text" else 0)
    maybe("rope_local_base_freq", 50.0, p=of("gemma3_text"))
    maybe("original_max_position_embeddings", 8, 12, p=of("phi3"))
    maybe("clip_qkv", 1.0, None, p=0.03)
    maybe("resid_pdrop", 0.1, p=0.1)
    turned = int(head * c.get("partial_rotary_factor", 1.0)) if family == "phi3" else head
    c.update(rope(rng, turned // 2, family))
    if family in ("gemma3_text", "olmo3") and "rope_parameters" in c and rng.random() < 0.7:
        c["rope_parameters"] = {"full_attention": c["rope_parameters"], "sliding_attention": {"rope_type": "default", "rope_theta": 77.0}}
    return c


def make(folder, config, rng):
    os.makedirs(folder)
    with open(folder + "/config.json", "w") as f:
        json.dump(config, f)
    found = {"config": config}
    try:
        made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32, attn_implementation="eager")
        g = torch.Generator().manual_seed(rng.randrange(1 << 30))
        with torch.no_grad():
            for name, p in made.named_parameters():
                p.copy_(0.4 * torch.randn(p.shape, generator=g) + (1 if "norm" in name or ".ln_" in name and name.endswith("weight") else 0))
        made.save_pretrained(folder, max_shard_size=rng.choice(["10KB", "1GB"]))
        with open(folder + "/config.json", "w") as f:
            json.dump(config, f)  # as it was, not as transformers writes it
        if rng.random() < 0.3:
            with open(folder + "/generation_config.json", "w") as f:
                json.dump({"bos_token_id": 1, "eos_token_id": [2, 5], "temperature": 0.7}, f)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        ids = torch.arange(CONTEXT).mul(7).remainder(VOCAB)[None]
        with torch.no_grad():
            single, double = model(ids).logits[0], model.double()(ids).logits[0]
        found["logits"], found["error"] = double.tolist(), (single - double).abs().max().item()
    except Exception as e:
        found["refused"] = f"{type(e).__name__}: {e}"[:300]
    with open(folder + "/expect.json", "w") as f:
        json.dump(found, f)


def main():
    dir, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    rng = random.Random(seed)
    for i in range(count):
        make(f"{dir}/{seed}-{i}", drawn(rng), rng)


main()
