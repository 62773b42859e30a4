"""Compares what an MLflow server has of a run with the run's metrics.jsonl.

    pip install mlflow
    mlflow server --port 5000 --backend-store-uri sqlite:///m.db &
    zeroth train JOB.yaml --set report.mlflow=http://127.0.0.1:5000 --out RUN
    python mlflow.py http://127.0.0.1:5000 RUN
"""
import json
import math
import sys

from mlflow import MlflowClient

client, folder = MlflowClient(sys.argv[1]), sys.argv[2]
lines = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
begun = next(line["start"] for line in lines if "start" in line)
experiment = client.get_experiment_by_name("zeroth")
runs = client.search_runs([experiment.experiment_id], f"tags.`zeroth.run` = '{begun['run']}'")
assert len(runs) == 1, [run.info for run in runs]
run = runs[0]
assert run.info.status == "FINISHED" and run.info.run_name == folder, run.info
assert run.data.params["train.steps"] == str(begun["steps"]), run.data.params
compared = 0
for name in ("loss", "lr", "grad_norm", "tokens_per_second", "step_seconds", "tokens", "val_loss"):
    want = {line["step"]: math.nan if line[name] is None else line[name] for line in lines if name in line}
    got = client.get_metric_history(run.info.run_id, name)
    assert len(got) == len(want) and {m.step: m.value for m in got} == want, name
    compared += len(got)
print(f"{compared} numbers are equal, {len(run.data.params)} parameters")
