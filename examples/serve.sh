#!/bin/sh
# Serve a target and its DSpark draft: stock SGLang, no command of ours.
#
#   examples/serve.sh                                        the bundled pair, port 30000
#   TARGET=my/target DRAFT=my/draft examples/serve.sh        another pair
#   examples/serve.sh --speculative-dspark-block-size 3      any option of SGLang
set -eu
pair=$(dirname "$0")/tiny

exec "${PYTHON:-python3}" -m sglang.launch_server \
    --model-path "${TARGET:-$pair/target}" \
    --speculative-algorithm DSPARK \
    --speculative-draft-model-path "${DRAFT:-$pair/draft}" \
    --dtype "${DTYPE:-float32}" \
    --port "${PORT:-30000}" \
    "$@"
