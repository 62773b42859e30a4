#!/bin/sh
# hour.sh PART...: measures what the ladder does not: clocks, speed, compare, algorithms, types,
# offload, tune, heads, gemma, torch and nccl. It lies in the folder that scripts/build-gpu-tests has made; OUT is the
# folder of results. Each job prints its name, exit code, time and last lines. SMALL=2 tries it out in
# small sizes, with the libraries of device/cuda/fake.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=${TMPDIR:-/tmp}/hour
mkdir -p "$work" && cd "$work" || exit 2
[ -x zeroth ] || { sh "$here/run.sh" --unpack carried && mv carried/* . && rmdir carried; } || exit 2
Z=$work/zeroth
tiny= ; [ -z "${SMALL:-}" ] || tiny="--set model.layers=2 --set model.heads=2 --set model.width=32 --set model.context=16 --set model.vocab=256"
llama="llama.yaml $tiny"; [ -z "${SMALL:-}" ] || llama="$llama --set model.kv_heads=1 --set model.ffn=64"
gpt="gpt2.yaml $tiny --set train.accumulate=1 --set train.micro_batch=${SMALL:-64} --set train.steps=${STEPS:-12}"
one="--set device=cuda --set parallel.ranks=1 --set zero.stage=0 --set sample.tokens=0"
quiet="--set checkpoint.save_on_exit=false"

# job NAME LIMIT COMMAND...: runs it, adds what it says to the log, and prints its last line with a speed or a loss
job() {
	name=$1 limit=$2 begin=$(date +%s%N)
	shift 2
	timeout "$limit" "$@" >said 2>&1
	code=$?
	end=$(date +%s%N)
	{ echo "==== $name: $*"; cat said; } >>"$OUT/hour.log"
	printf '%-28s rc %d %6d ms  %s\n' "$name" $code $(((end - begin) / 1000000)) "$(grep -E 'tokens/s|"seconds"|perplexity|zeroth:|Error' said | tail -n 2 | tr '\n' ' ' | cut -c1-230)" | tee -a "$OUT/hour.txt"
}
# median FOLDER: the median step of the second half, from metrics.jsonl
median() {
	awk -F'"step_seconds":' 'NF > 1 { split($2, a, /[,}]/); t[n++] = a[1] } END { h = int(n / 2); for (i = h; i < n; i++) s[i - h] = t[i]; m = n - h; for (i = 1; i < m; i++) for (j = i; j > 0 && s[j - 1] > s[j]; j--) { x = s[j]; s[j] = s[j - 1]; s[j - 1] = x } printf "%-28s median of %d steps %.4f s\n", name, m, s[int(m / 2)] }' name="$1" "$1/metrics.jsonl" 2>/dev/null | tee -a "$OUT/hour.txt"
}
train() {
	name=$1; shift
	rm -rf "$name"
	job "$name" 90 "$Z" train "$@" --out "$name"
	median "$name"
}

for part in "$@"; do case $part in
clocks) # of the steps of a long run, five times a second
	nvidia-smi --query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active --format=csv,noheader,nounits -lms 200 >"$OUT/clocks.csv" &
	smi=$!
	train clocks-gpt2 $gpt $one $quiet --set train.steps=${LONG:-60}
	kill $smi ;;
speed)
	train gpt2 $gpt $one $quiet
	train gpt2-traced $gpt $one $quiet --trace gpt2.trace.json
	train gpt2-wgmma $gpt $one $quiet --set parallel.attention=wgmma # refused but on compute capability 9.0
	train gpt2-stage3 $gpt $one $quiet --set zero.stage=3
	train llama $llama $one $quiet
	train llama-wgmma $llama $one $quiet --set parallel.attention=wgmma ;;
compare) # with an older program, old.gz in this folder, in turns
	gunzip -c "$here/old.gz" >old && chmod 700 old || exit 2
	for n in 1 2 3; do for p in old zeroth; do
		Z=$work/$p
		train gpt2-$p-$n $gpt $one $quiet
		[ $n = 3 ] || train llama-$p-$n $llama $one $quiet
	done; done
	Z=$work/zeroth ;;
algorithms)
	for m in gpt2 llama; do
		[ -f $m/algorithms.json ] || continue
		job algorithms-$m 100 "$Z" bench gpu --seconds 0.03 --products $m/algorithms.json --write-algorithms $m.fast.json
	done
	[ -f gpt2.fast.json ] && train gpt2-fast $gpt $one $quiet --set parallel.algorithms=gpt2.fast.json
	[ -f llama.fast.json ] && train llama-fast $llama $one $quiet --set parallel.algorithms=llama.fast.json ;;
types)
	train gpt2-fp16 $gpt $one $quiet --set precision=fp16
	train gpt2-adamw8bit $gpt $one $quiet --set optimizer.type=adamw8bit
	train gpt2-muon $gpt $one $quiet --set "optimizer={type: muon}"
	train gpt2-dropout $gpt $one $quiet --set model.dropout=0.1 --set model.attention_dropout=0.1
	train gpt2-recompute $gpt $one $quiet --set zero.recompute=block ;;
offload)
	train gpt2-offload $gpt $one $quiet --set zero.stage=3 --set zero.offload.optimizer=host
	train gpt2-offload-half $gpt $one $quiet --set zero.stage=3 --set zero.offload.optimizer=host --set zero.offload.ratio=0.5
	train llama-offload-all $llama $one $quiet --set train.steps=4 --set zero.stage=3 --set zero.offload.optimizer=host --set zero.offload.parameters=host ;;
tune) # adapters on a Llama of four layers made here, in full, 8 and 4 bits; then text and perplexity
	train base $llama $one --set model.layers=4 --set train.steps=3
	for w in full int8 nf4; do
		train lora-$w $llama $one $quiet --set "model={from: base/model, context: ${SMALLT:-2048}, weights: $w}" --set train.steps=8 --set 'train.lora={rank: 16, alpha: 32, targets: [all-linear], dropout: 0.05}' --set zero.recompute=block
	done
	job eval 60 "$Z" eval $llama --run base --set device=cuda --set parallel.ranks=1 --set data.validation=0.002
	for p in bf16 fp32; do for n in 100 ${TOKENS:-500}; do job sample-$p-$n 60 "$Z" sample --run base --device cuda --precision $p --prompt func --tokens $n --temperature 0; done; done ;; # the difference is the time of 400 tokens
heads) # of 128 and 256, as in Llama 8B and Gemma, long sequences
	d128="$llama $one $quiet --set train.steps=6 --set model.layers=4 --set model.width=4096 --set model.heads=32 --set model.kv_heads=8 --set model.ffn=14336"
	[ -z "${SMALL:-}" ] || d128="$llama $one $quiet"
	train d128-T2048 $d128 --set train.micro_batch=4
	for how in auto wgmma; do
		train d128-T8192-$how $d128 --set model.context=${SMALLT:-8192} --set train.micro_batch=1 --set parallel.attention=$how --trace d128-$how.trace.json
	done ;;
gemma) # four layers of Gemma 2's and Gemma 3's shape, made here: attention on ordinary cores and on tensor cores
	for m in gemma2 gemma3_text; do
		python3 - $m ${SMALL:+small} <<'END' || exit 2
import json, os, struct, sys
kind, small = sys.argv[1], len(sys.argv) > 2
W, H, KV, D, F, V, L = (32, 2, 1, 136, 64, 256, 2) if small else (2304, 8, 4, 256, 9216, 32000, 4)
os.makedirs(kind, exist_ok=True)
c = dict(model_type=kind, hidden_size=W, num_attention_heads=H, num_key_value_heads=KV, head_dim=D, intermediate_size=F, vocab_size=V, num_hidden_layers=L, query_pre_attn_scalar=D)
json.dump(c, open(kind + "/config.json", "w"))
t = {"model.embed_tokens.weight": [V, W], "model.norm.weight": [W]}
for l in range(L):
    a = f"model.layers.{l}."
    t |= {a + f"self_attn.{n}_proj.weight": s for n, s in dict(q=[H * D, W], k=[KV * D, W], v=[KV * D, W], o=[W, H * D]).items()}
    t |= {a + f"mlp.{n}_proj.weight": s for n, s in dict(gate=[F, W], up=[F, W], down=[W, F]).items()}
    t |= {a + n + "_layernorm.weight": [W] for n in ("input", "post_attention", "pre_feedforward", "post_feedforward")}
    t |= {a + f"self_attn.{n}_norm.weight": [D] for n in "qk"} if kind == "gemma3_text" else {}
sizes = {n: 2 * s[0] * (s + [1])[1] for n, s in t.items()}
at, head = 0, {}
for n in t:
    head[n] = dict(dtype="BF16", shape=t[n], data_offsets=[at, at + sizes[n]])
    at += sizes[n]
text = json.dumps(head).encode()
sign = bytes(0x3c if i < 128 else 0xbc for i in range(256))  # values of 0.008 to 0.016, of either sign
with open(kind + "/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for n in t:
        data = bytearray(sizes[n])
        data[::2], data[1::2] = os.urandom(sizes[n] // 2), os.urandom(sizes[n] // 2).translate(sign)
        f.write(data)
END
		for how in auto mma; do
			train $m-$how llama.yaml $one $quiet --set "model={from: $m, context: ${SMALLT:-2048}}" --set train.micro_batch=${SMALL:-8} --set train.loss_chunk=4096 --set parallel.attention=$how --trace $m-$how.trace.json
		done
	done ;;
torch)
	small=; [ -z "${SMALL:-}" ] || small=--small
	for how in "" --padded "--padded --attention cudnn"; do
		job "torch-gpt2 $how" 120 python3 torch_model.py --model gpt2 --how compiled --batch "${SMALL:-64}" $small $how
	done
	job torch-llama 120 python3 torch_model.py --model llama --how compiled --batch "${SMALL:-8}" $small ;;
nccl) # two processes on the one GPU; NCCL takes them for two machines and moves data over lo
	# in a network namespace of their own, which nothing outside can reach
	[ -n "${OWN_NET:-}" ] || { OWN_NET=1 unshare -n sh "$here/hour.sh" nccl; continue; }
	# lo up (SIOCSIFFLAGS), with an address that is not a loopback one (SIOCSIFADDR), for ip may not be there
	python3 -c "
import fcntl, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(s, 0x8914, struct.pack('16sh', b'lo', 0x41))
fcntl.ioctl(s, 0x8916, struct.pack('16sHH4s8s', b'lo:1', 2, 0, socket.inet_aton('10.9.9.1'), b''))"
	cp quickstart.yaml two.yaml
	tinyq="$tiny"; [ -z "${SMALL:-}" ] || tinyq="$tiny --set data.validation=0"
	for how in exact nccl; do for stage in 0 3; do
		r=0; pids=; rm -rf two-$how-$stage
		begin=$(date +%s)
		while [ $r -lt 2 ]; do
			printf '%08d-0000-4000-8000-000000000000\n' $r >boot.$r
			NCCL_HOSTID=zeroth$r NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_DEBUG=WARN timeout 60 unshare -m sh -c 'mount --bind boot.'$r' /proc/sys/kernel/random/boot_id && exec "$@"' - \
				"$Z" train two.yaml $tinyq --set device=cuda --set parallel.ranks=2 --set zero.stage=$stage --set train.steps=4 --set train.eval_every=0 --set sample.tokens=0 --set parallel.collective=$how \
				--set parallel.bind=10.9.9.1 --insecure --world 2 --rank $r --addr 10.9.9.1:29411 --out two-$how-$stage >two.$r 2>&1 &
			pids="$pids $!"; r=$((r + 1))
		done
		code=0; for p in $pids; do wait $p || code=$?; done
		cat two.0 two.1 >>"$OUT/hour.log"
		printf '%-28s rc %d %6d s   %s\n' nccl-two-$how-$stage $code $(($(date +%s) - begin)) "$(grep -hE 'step 4|zeroth:|NCCL' two.0 | tail -n 2 | tr '\n' ' ' | cut -c1-230)" | tee -a "$OUT/hour.txt"
	done; done
	train two-alone two.yaml $tinyq --set device=cuda --set parallel.ranks=2 --set zero.stage=3 --set train.steps=4 --set train.eval_every=0 --set sample.tokens=0 --set parallel.collective=exact
	for f in two-exact-0 two-exact-3; do cmp $f/model/model.safetensors two-alone/model/model.safetensors && echo "$f: the bits of one process" | tee -a "$OUT/hour.txt"; done ;;
esac
tar czf "$OUT/files.tgz" *.json */metrics.jsonl */algorithms.json two.* 2>/dev/null || : # a part makes only some of them
done
