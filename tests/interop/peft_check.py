"""Opens what a run with train.lora has written in transformers and PEFT, and compares
logits: base plus adapters against the merged model, and against the base.

    pip install torch transformers==5.23.0 peft safetensors
    go build -o zeroth ./cmd/zeroth
    ./zeroth train JOB.yaml --set model.from=FOLDER --set train.lora.rank=4 --out RUN
    python tests/interop/peft_check.py FOLDER RUN
"""

import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM


def logits(model):
    ids = torch.arange(1, 17).reshape(1, 16) % model.config.vocab_size
    with torch.no_grad():
        return model(ids).logits


base, run = sys.argv[1:]
load = lambda folder: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
alone = logits(load(base))
adapted = logits(PeftModel.from_pretrained(load(base), run + "/adapter").eval())
merged = logits(load(run + "/model"))
apart, moved = (adapted - merged).abs().max().item(), (adapted - alone).abs().max().item()
print(f"adapters against merged: {apart:.2g}; adapters moved the logits by {moved:.2g}")
sys.exit(0 if apart < 1e-4 * max(1, adapted.abs().max().item()) and moved > 100 * apart else 1)
