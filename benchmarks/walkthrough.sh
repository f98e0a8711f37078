#!/usr/bin/env bash
# The walk through of docs/choosing.md: recommendation, measurement, decision, sizing.
#
#   benchmarks/walkthrough.sh [FOLDER]       keeps what comes of it there (./walkthrough)
#
# It takes about ten minutes, in which the machine should have nothing else to do. ENGINES are the
# targets of `tidemill bench run`, each with the program to start behind an = if it is not on PATH.
# One that is not there is said, and the others are measured all the same.
set -uo pipefail

OUT=${1:-walkthrough}
TIDEMILL=${TIDEMILL:-tidemill}
ENGINES=${ENGINES:-tidemill:smollm2 llama.cpp:smollm2 openvino:smollm2}
SCENARIOS=${SCENARIOS:-short-chat multi-turn-chat json-extraction}
SECONDS_EACH=${SECONDS_EACH:-30}
CASE=$(dirname "$0")/walkthrough.toml
WALK=walk-$(date +%m%d-%H%M)

mkdir -p "$OUT"
: >"$OUT/commands.txt"

# step FILE SECONDS COMMAND...: show the command, bound its time, keep what it says.
step() {
  local file=$OUT/$1 seconds=$2 code
  shift 2
  echo "$ $*" | tee -a "$OUT/commands.txt"
  timeout --kill-after=10 "$seconds" "$@" >"$file" 2>"$file.err"
  code=$?
  [ $code -eq 0 ] || echo "  ended with $code: $(tail -n 1 "$file.err")"
  [ -s "$file.err" ] || rm -f "$file.err"
}

echo "== What is recommended, before anything is measured (or with what was measured before)"
step advice-before.txt 60 "$TIDEMILL" advise --answers "$CASE"
grep -E "^(Recommended|A hybrid)" "$OUT/advice-before.txt"

echo "== How the engines answer; what the load generator adds to that"
step selftest.txt 60 "$TIDEMILL" bench selftest
NAMES=()
for engine in $ENGINES; do
  target=${engine%%=*}
  name=$WALK-${target%%:*}
  program=()
  [ "$target" = "$engine" ] || program=(--binary "${engine#*=}")
  for scenario in $SCENARIOS; do
    step "bench-${target%%:*}-$scenario.txt" 120 "$TIDEMILL" bench run --target "$target" \
      "${program[@]}" --scenario "$scenario" --concurrency 4 --seconds "$SECONDS_EACH" \
      --slo ttft=1,tpot=0.1 --name "$name"
  done
  NAMES+=("$name")
done
for name in "${NAMES[@]:1}"; do
  step "compare-${name#"$WALK"-}.txt" 60 "$TIDEMILL" bench compare "${NAMES[0]}" "$name"
done
step report.txt 120 "$TIDEMILL" bench report "${NAMES[@]}" --html "$OUT/report.html"

echo "== Is the recommendation confirmed, now that it was measured?"
step advice-after.txt 120 "$TIDEMILL" advise --answers "$CASE"
grep -E "^(Recommended|A hybrid)" "$OUT/advice-after.txt"

echo "== What 100 times the load takes: with this machine as it was measured, and with others"
step calibrate.txt 120 "$TIDEMILL" calibrate smollm2 --quick
step size.txt 180 "$TIDEMILL" size --workload short-chat --model smollm2 --peak-concurrency 400 \
  --slo ttft=1,tpot=0.1 --hardware local,cloud-vm-8,epyc-9654,l40s --bits 8
grep -A 3 -E "^[0-9]+ x " "$OUT/size.txt"

echo "All of it is in $OUT; the commands in $OUT/commands.txt."
