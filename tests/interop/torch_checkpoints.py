"""Load what zeroth writes with torch and transformers: run it with the path of the program and of a
checkpoint that `zeroth ckpt` can export, such as checkpoint/foreign/testdata/dcp/fsdp2-fp32-w2/step-3."""
import subprocess, sys, tempfile, torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader, HuggingFaceStorageReader
from transformers import AutoModelForCausalLM

zeroth, source = sys.argv[1:]
root = tempfile.mkdtemp()


def export(form, dtype="fp32"):
    to = f"{root}/{form}-{dtype}"
    subprocess.run([zeroth, "ckpt", "export", source, "--to", to, "--format", form, "--dtype", dtype], check=True)
    return to


def same(a, b, what):
    assert a.keys() == b.keys(), f"{what}: {a.keys() ^ b.keys()}"
    for k in a:
        assert a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]), f"{what}: {k}"
    print(f"{what}: {len(a)} tensors are equal")


for dtype in ("fp32", "bf16"):
    want = load_file(export("hf", dtype) + "/model.safetensors")
    same(torch.load(export("torch", dtype) + "/pytorch_model.bin", weights_only=True), want, f"torch.load, {dtype}")

want = load_file(f"{root}/hf-fp32/model.safetensors")
folder = export("dcp")
got = {"model": {k: torch.zeros_like(v) for k, v in want.items()}, "optim": {"state": {
    k: {"step": torch.zeros(()), "exp_avg": torch.zeros_like(v), "exp_avg_sq": torch.zeros_like(v)} for k, v in want.items()}}}
dcp.load(got, storage_reader=FileSystemReader(folder))
same(got["model"], want, "dcp.load")
assert all(s["step"] > 0 and s["exp_avg"].abs().sum() > 0 for s in got["optim"]["state"].values())
print(f"dcp.load: {2 * len(want)} moments and their steps")
dcp_to_torch_save(folder, f"{root}/all.pt")
same(torch.load(f"{root}/all.pt", weights_only=True)["model"], want, "dcp_to_torch_save")
got = {k: torch.zeros_like(v) for k, v in want.items()}
dcp.load(got, storage_reader=HuggingFaceStorageReader(f"{root}/hf-fp32"))
same(got, want, "dcp.load of safetensors")
for form in ("hf", "torch"):
    state = AutoModelForCausalLM.from_pretrained(f"{root}/{form}-fp32", dtype=torch.float32).state_dict()
    same({k: state[k] for k in want}, want, f"transformers, {form}")
