#!/bin/sh
# Makes the Python code for service.proto anew. A test compares what is in git with what this makes.
set -e
here=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-$here/.venv/bin/python}
out=${2:-$here/src}
mkdir -p "$out"
"$python" -m grpc_tools.protoc -I "$here/src" --python_out="$out" --pyi_out="$out" millstream/service/proto/service.proto
