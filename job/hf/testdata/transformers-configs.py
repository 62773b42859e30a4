"""Makes transformers-configs.json, what TestKeysOfTransformers reads: every key that
transformers has in the configs of the first families, with the values of their classes, by
version. Each argument is the Python of an environment with one version of it.

    python3 -m venv old && old/bin/pip install transformers==4.51.3
    python3 -m venv new && new/bin/pip install transformers==5.23.0 torch
    python3 transformers-configs.py new/bin/python old/bin/python
"""

import json
import subprocess
import sys

ASKED = """
import json, transformers
configs = {f: transformers.AutoConfig.for_model(f).to_dict() for f in ("gpt2", "llama", "qwen2")}
for c in configs.values():
    c.pop("transformers_version")
print(json.dumps({transformers.__version__: configs}))
"""

all = {}
for python in sys.argv[1:]:
    all |= json.loads(subprocess.run([python, "-c", ASKED], check=True, capture_output=True, text=True).stdout)
with open("transformers-configs.json", "w") as f:
    f.write(json.dumps(all, indent=1) + "\n")
