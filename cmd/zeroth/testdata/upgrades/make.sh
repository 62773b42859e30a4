#!/usr/bin/env bash
# Writes the run folders of earlier commits that TestUpgrades resumes: runs of 8 steps
# without their checkpoint of step 8, as if killed after step 4. The folder want in each
# has what the commit's own binary made of it. The bits are those of the instruction sets
# in kernels.txt. Needs a clone with these commits and takes about two minutes.
set -euo pipefail
cd "$(dirname "$0")"
repository=$(git rev-parse --show-toplevel)
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
for commit in e68e9ed 75cb8e3; do
	mkdir "$bin/src"
	git -C "$repository" archive "$commit" | tar x -C "$bin/src"
	go build -C "$bin/src" -o "$bin/$commit" ./cmd/zeroth
	rm -rf "$bin/src" "$commit"
done

cat >"$bin/job.yaml" <<-'END'
	model: {family: gpt2, layers: 1, heads: 2, width: 8, context: 8}
	data: {text: [text.txt], validation: 0.1}
	train: {steps: 8, micro_batch: 2, eval_every: 4, eval_batches: 2}
	parallel: {ranks: 2}
	precision: fp32
	optimizer: {lr: 1e-2}
	schedule: {warmup: 2}
	checkpoint: {every: 4}
END

# sums prints the digests of the safetensors files in a folder.
sums() { (cd "$1" && find . -path ./ckpt -prune -o -name '*.safetensors' -print0 | sort -z | xargs -0 sha256sum); }

# make COMMIT NAME KEY=VALUE... makes COMMIT/NAME.tar.gz.
make() {
	local zeroth=$bin/$1 run=$1/$2 sets=()
	for set in "${@:3}"; do sets+=(--set "$set"); done
	"$zeroth" train "$bin/job.yaml" --out "$run" "${sets[@]}" >/dev/null
	mkdir "$run/want"
	sums "$run" >"$run/want/sums.txt"
	grep -v '"memory"' "$run/metrics.jsonl" >"$run/want/metrics.jsonl"
	"$zeroth" sample --run "$run" --prompt line --tokens 12 --seed 3 >"$run/want/sample.txt" 2>/dev/null
	"$bin/75cb8e3" eval "$run/job.yaml" --run "$run" --json >"$run/want/eval.json" 2>/dev/null # e68e9ed has no eval
	"$zeroth" ckpt export "$run/ckpt/step-00000004" --to "$bin/model" >/dev/null 2>&1
	sums "$bin/model" >"$run/want/export.txt"
	mv "$bin/model/config.json" "$run/want"
	rm -rf "$bin/model" "$run/ckpt/step-00000008" "$run/loss.svg"
	sed -i -e '/"step":[5-8],/d' -e '/"memory"/d' "$run/metrics.jsonl"
	touch -d '1 minute' "$run/model"/* # tar keeps seconds, and sample uses what is newest
	tar -cz --owner=0 --group=0 -f "$run.tar.gz" "$run"
	rm -rf "$run"
}

from=(model.{family,layers,heads,width}=null data.tokenizer=bytes)
llama=(model.family=llama model.kv_heads=1)
disk=(zero.offload.{optimizer=disk,path=.})

mkdir e68e9ed 75cb8e3
seq -f 'line %g of the text' 400 >text.txt
seq -f '{"text": "document %g"}' 100 >documents.jsonl
rm -rf gpt2 llama
for model in gpt2 llama; do # in the first, GPT-2's dropout is left to its default
	"$bin/e68e9ed" train "$bin/job.yaml" --out "$bin/$model" --set model.family=$model --set train.steps=2 >/dev/null
	mv "$bin/$model/model" $model
done
sed -i 's/"bos_token_id"/"pad_token_id": 101,\n  &/' llama/config.json

make e68e9ed gpt2
make e68e9ed gpt2-fp16 precision=fp16 zero.stage=2
make e68e9ed gpt2-offload "${disk[@]}" zero.offload.parameters=host
make e68e9ed gpt2-accumulate optimizer.type=sgd train.accumulate=2 zero.stage=0
make e68e9ed gpt2-from "${from[@]}" model.from=gpt2
make e68e9ed llama "${llama[@]}" precision=bf16 zero.recompute=block model.tied=true
make e68e9ed llama-hybrid "${llama[@]}" precision=fp16 optimizer.type=lion parallel.ranks=4 parallel.replicate=2
make e68e9ed llama-from "${from[@]}" model.from=llama zero.stage=1 zero.offload.optimizer=host

make 75cb8e3 gpt2-dropout precision=fp16 model.dropout=0.2 model.attention_dropout=0.1 train.accumulate=2
make 75cb8e3 gpt2-from "${from[@]}" model.from=gpt2
make 75cb8e3 gpt2-lora "${from[@]}" model.from=gpt2 train.lora.rank=2 train.early_stop.patience=5
make 75cb8e3 gpt2-muon optimizer.type=muon optimizer.lr=null zero.stage=2
make 75cb8e3 gpt2-8bit "${disk[@]}" optimizer.type=adamw8bit
make 75cb8e3 llama-8bit "${llama[@]}" precision=bf16 optimizer.type=adamw8bit parallel.ranks=4 parallel.replicate=2
make 75cb8e3 llama-documents "${llama[@]}" data.text=null 'data.documents=[documents.jsonl]' data.pack=true
make 75cb8e3 llama-lora "${from[@]}" model.from=llama precision=fp16 train.lora.rank=2 'train.lora.targets=[all-linear]'
make 75cb8e3 llama-muon "${llama[@]}" precision=bf16 optimizer.type=muon optimizer.lr=null zero.offload.optimizer=host

"$bin/75cb8e3" doctor 2>/dev/null | sed -nE 's/^kernels .*by (\w+), bf16 by (\w+)$/\1 \2/p' >kernels.txt
