#!/usr/bin/env bash
# Tests the PyTorch backend with the current PyTorch of the package index, or with VERSION. The
# package has gigabytes, with libraries for GPUs, so no other test uses it.
#
#   bindings/tests/torch.sh [VERSION]
#
# PyTorch stays in target/ for the next run.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
version=${1:-}
venv=$root/target/torch$version
python3 -m venv "$venv" || {
    echo "torch.sh: no virtual environment; run apt-get install python3-venv" >&2
    exit 1
}
"$venv/bin/python" -m pip install --quiet "torch${version:+==$version}" numpy
export PYTHONPATH=$root/bindings/python KUMI_COLL_LIBRARY=$root/target/release/libkumi.so
"$venv/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
"$venv/bin/python" "$root/bindings/tests/groups.py"
export OMP_NUM_THREADS=1
"$venv/bin/python" -m torch.distributed.run --standalone --nproc-per-node 3 "$root/examples/train_ddp.py"
