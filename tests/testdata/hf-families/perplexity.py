"""Makes perplexity.json, what tests/evaluate_test.go compares with: losses of texts that are longer
than a model's context, computed with a stride as in transformers' guide to the perplexity of models of
fixed length. The guide weights the loss of a window with one token fewer than it predicts; here every
token counts once.

    pip install torch transformers==5.23.0 numpy
    python perplexity.py
"""

import json

import torch

from make import CONTEXT, block, made, scramble, windows

VOCAB = 256
MODELS = {
    "gpt2": dict(model_type="gpt2", n_layer=2, n_head=3, n_embd=24, n_positions=CONTEXT, vocab_size=VOCAB, attn_pdrop=0.0,
                 embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=None, eos_token_id=None),
    "llama": dict(block, model_type="llama", vocab_size=VOCAB),
}


def strided(model, ids, learn, stride):
    """The sum of the losses of the tokens to learn, and their number."""
    total, count, prev_end = 0.0, 0, 1
    for begin in range(0, len(ids), stride):
        end = min(begin + CONTEXT + 1, len(ids))  # the last token is only a target
        with torch.no_grad():
            logits = model(ids[None, begin : end - 1]).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, ids[begin + 1 : end], reduction="none")
        new = torch.arange(begin + 1, end) >= prev_end
        new &= learn[begin + 1 : end]
        total, count, prev_end = total + loss[new].double().sum().item(), count + int(new.sum()), end
        if end == len(ids):
            break
    return total, count


def text(name, n):
    return "".join(chr(97 + x % 26) for x in scramble(name, n).tolist())


def main():
    torch.set_num_threads(1)
    inputs, targets = windows()
    stream = torch.cat([inputs.flatten(), targets[-1, -1:]])
    documents = [dict(prompt=text(f"prompt {n}", n % 7 + 1), completion=text(f"completion {n}", n)) for n in (3, 90, 24, 25, 17, 61, 1, 40)]
    out = dict(documents=documents, models=[])
    for name, config in MODELS.items():
        model = made(config)
        for stride in (1, 7, 16, CONTEXT):
            loss, tokens = strided(model, stream, torch.ones(len(stream), dtype=torch.bool), stride)
            sums = [0.0, 0]
            for d in documents:
                ids = torch.tensor(list((d["prompt"] + d["completion"]).encode()))
                learn = torch.arange(len(ids)) >= len(d["prompt"])
                a, n = strided(model, ids, learn, stride)
                sums = [sums[0] + a, sums[1] + n]
            out["models"].append(dict(config=config, stride=stride, text=loss / tokens, tokens=tokens, documents=sums[0] / sums[1], learned=sums[1]))
            print(name, stride, loss / tokens, sums[0] / sums[1])
    with open("perplexity.json", "w") as f:
        json.dump(out, f, separators=(",", ":"), sort_keys=True)


main()
