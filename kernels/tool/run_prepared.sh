#!/usr/bin/env bash
# Runs prepared directories on the GPUs of this host within a time limit; needs orrery-gpu alone.
#
#   run_prepared.sh ORRERY_GPU LIST SECONDS
#
# LIST has a line per run, in the order of their worth, paths relative to it:
#
#   GPUS SECONDS COMMAND DIR [ARGUMENT…]          COMMAND: execute, serve, …
#
# Runs on one GPU go first, one at a time on each GPU here; then those on several, one after the other on the first
# GPUs. None begins when less than 5 s of the limit is left, and none runs longer than what is left. What a run prints is
# in DIR/<command>.log; a line per run goes to standard output. Exit code: 0 when all ran and ended with 0, else 1.
set -u

if [ $# -ne 3 ] || [ ! -x "$1" ] || [ ! -r "$2" ]; then
  sed -n '2,12p' "$0" >&2
  exit 2
fi
binary=$(realpath "$1")
list=$(realpath "$2")
deadline=$((SECONDS + $3))
num_gpus=$(nvidia-smi --list-gpus | wc -l)
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
cd "$(dirname "$list")" || exit 2
sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$list" >"$state/all"
awk '$1 == 1' "$state/all" >"$state/single"
awk '$1 > 1' "$state/all" >"$state/several"

# run DEVICES GPUS SECONDS COMMAND DIR [ARGUMENT…]
run() {
  local devices=$1 limit=$3 command=$4 dir=$5 code began=$SECONDS
  shift 5
  local left=$((deadline - SECONDS))
  if [ "$left" -lt 5 ]; then
    echo "$command $dir: not run, the time is over"
    touch "$state/failed"
    return
  fi
  CUDA_VISIBLE_DEVICES=$devices timeout -k 5 $((limit < left ? limit : left)) \
    "$binary" "$command" "$dir" "$@" >"$dir/$command.log" 2>&1 </dev/null
  code=$?
  [ $code -eq 0 ] || touch "$state/failed"
  echo "$command $dir: exit $code after $((SECONDS - began)) s on GPU $devices"
}

# Lines of `single` one after the other on GPU $1, shared with the other GPUs' loops.
lane() {
  local line
  while line=$(flock "$state/single.lock" sed -n -e '1{p;q}' "$state/single") && [ -n "$line" ]; do
    # Taken only if it is still the first: another lane may have been faster.
    if flock "$state/single.lock" bash -c '[ "$(head -n 1 "$0")" = "$1" ] && sed -i 1d "$0"' "$state/single" "$line"; then
      # shellcheck disable=SC2086
      run "$1" $line
    fi
  done
}

for ((gpu = 0; gpu < num_gpus; ++gpu)); do
  lane "$gpu" &
done
wait
while read -r line; do
  gpus=${line%% *}
  if [ "$gpus" -gt "$num_gpus" ]; then
    echo "$line: not run, there are $num_gpus GPUs"
    touch "$state/failed"
    continue
  fi
  # shellcheck disable=SC2086
  run "$(seq -s, 0 $((gpus - 1)))" $line
done <"$state/several"
[ ! -e "$state/failed" ]
