"""Compares TensorBoard's reading of a run with its metrics.jsonl.

    zeroth train JOB.yaml --set report.tensorboard=true --out RUN
    python tests/interop/tensorboard_events.py RUN

It needs the package tensorboard. Every number of every step has to be there once, as a float32.
"""

import json
import sys

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = sys.argv[1]
events = EventAccumulator(run, size_guidance={"scalars": 0, "tensors": 0})
events.Reload()

want = {}
for line in open(run + "/metrics.jsonl"):
    record = json.loads(line)
    if "loss" in record or "val_loss" in record:
        for name, value in record.items():
            if isinstance(value, (int, float)) and name not in ("step", "time"):
                want.setdefault(name, []).append((record["step"], value, record.get("time")))

wrong = 0
tags = events.Tags()["scalars"]
for name in tags:
    got = [(e.step, e.value) for e in events.Scalars(name)]
    expected = [(step, float(np.float32(value))) for step, value, _ in want.get(name, [])]
    if got != expected:
        wrong += 1
        print(f"{name}: {len(got)} events, {len(expected)} lines; {got[:3]} {expected[:3]}")
for name in ("loss", "lr", "tokens_per_second", "step_seconds"):
    if name not in tags:
        wrong += 1
        print(f"{name}: no events")
times = [round(e.wall_time, 3) for e in events.Scalars("loss")]
if times != [t for _, _, t in want["loss"]]:
    wrong += 1
    print("wall times differ")
text = events.Tensors("job/text_summary")
if len(text) != 1 or b"model:" not in text[0].tensor_proto.string_val[0]:
    wrong += 1
    print("the job's text is not there")
print(f"{len(tags)} tags, {len(times)} steps, {len(want.get('val_loss', []))} evaluations: {'wrong: %d' % wrong if wrong else 'equal'}")
sys.exit(wrong > 0)
