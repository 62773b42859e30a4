"""Makes sampling.json, what tests/hf_sampling_test.go compares with: the tokens that transformers'
generate chooses, by the settings in a folder's generation_config.json.

    pip install torch transformers==5.23.0 numpy
    python sampling.py

torch draws the next token with random numbers of its own. Here it draws it from the same
probabilities with ours: those of Go's math/rand/v2.PCG. Tokens are sorted by probability, and
the one is taken at which their sum exceeds the random number.
"""

import json
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from make import block, made, token

NEW = 40
CONFIG = dict(block, model_type="llama", vocab_size=128, max_position_embeddings=64)
SETTINGS = [
    {},
    {"do_sample": False, "temperature": 0.6, "top_k": 3},
    {"repetition_penalty": 1.3},
    {"do_sample": False, "repetition_penalty": 1.05},
    {"do_sample": True},
    {"do_sample": True, "top_k": 0},
    {"do_sample": True, "temperature": 0.6, "top_p": 0.9},
    {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
    {"do_sample": True, "temperature": 1.5, "min_p": 0.2, "top_k": None},
    {"do_sample": True, "temperature": 0.9, "min_p": 0.05, "top_k": 64, "top_p": 0.95, "repetition_penalty": 0.8},
    {"do_sample": True, "repetition_penalty": 1.2, "temperature": 2.0, "eos_token_id": [3, 17, 40, 41, 90]},
]


class PCG:
    """Go's PCG, seeded with seed and 0."""

    def __init__(self, seed):
        self.state = seed << 64

    def float(self):
        m64 = 2**64 - 1
        mul = 2549297995355413924 << 64 | 4865540595714422341
        inc = 6364136223846793005 << 64 | 1442695040888963407
        self.state = (self.state * mul + inc) % 2**128
        hi, lo = self.state >> 64, self.state & m64
        hi ^= hi >> 32
        hi = hi * 0xDA942042E4DD58B5 & m64
        hi ^= hi >> 48
        hi = hi * (lo | 1) & m64
        return (hi & 2**53 - 1) / 2**53


def main():
    torch.set_num_threads(1)
    model, cases, nearest = made(CONFIG), [], 1.0
    draws = None

    def draw(probs, num_samples, **_):
        nonlocal nearest
        p, order = probs[0].double().sort(descending=True, stable=True)
        u, sums = draws.float(), p.cumsum(0)
        nearest = min(nearest, (sums[p > 0][:-1] - u).abs().min().item() if (p > 0).sum() > 1 else 1.0)
        return order[(sums > u).nonzero()[0]].view(1, 1)

    torch.multinomial = draw
    prompts = [token(12)[i:].tolist() for i in (0, 5, 11)]
    for number, settings in enumerate(SETTINGS):
        for prompt in prompts:
            seed = 100 * number + len(prompt)
            draws = PCG(seed)
            with tempfile.TemporaryDirectory() as folder:
                with open(f"{folder}/generation_config.json", "w") as f:
                    json.dump(settings, f)
                model.generation_config = GenerationConfig.from_pretrained(folder)
            ids = torch.tensor([prompt])
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, pad_token_id=0, output_logits=True,
                                 output_scores=True, return_dict_in_generate=True)
            if not settings.get("do_sample"):
                for scores in out.scores:
                    two = scores[0].topk(2).values
                    nearest = min(nearest, (two[0] - two[1]).item())
            cases.append(dict(settings=settings, prompt=prompt, seed=seed, ids=out.sequences[0, len(prompt):].tolist()))
    print("the nearest choice was decided by", nearest)  # far above the rounding of float32
    assert nearest > 2e-6
    with open("sampling.json", "w") as f:
        json.dump(dict(config=CONFIG, cases=cases), f, separators=(",", ":"), sort_keys=True)


main()
