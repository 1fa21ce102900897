#!/usr/bin/env bash
# Installs what jobs and Ray Serve need: the files of requirements.lock, whose hashes are checked:
#
#     cluster/launch/install.sh VENV
#
# The image, bare hosts and Slurm nodes are all installed by this script. Again in the same versions: does nothing.
# Environment:
#   PYTHON       interpreter of the new environment (python3.11)
#   TORCH_INDEX  package index of PyTorch; by default PyPI's build with CUDA where there is an NVIDIA driver, elsewhere
#                PyTorch's own build without
set -euo pipefail
venv=${1:?usage: install.sh VENV}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ -z ${TORCH_INDEX:-} ]]; then
    TORCH_INDEX=https://download.pytorch.org/whl/cpu
    if command -v nvidia-smi >/dev/null; then TORCH_INDEX=https://pypi.org/simple; fi
fi
versions=$(cat requirements.lock <(echo "$TORCH_INDEX") | sha256sum)
if [[ -f $venv/installed && $(<"$venv/installed") == "$versions" ]]; then
    exit 0
fi

[[ -x $venv/bin/python ]] || "${PYTHON:-python3.11}" -m venv "$venv"
torch=$(grep -o '^torch==[^ ]*' requirements.lock)
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
# torch's entry alone, which comes from an index of its own; then all others.
sed -n '/^torch==/,/[^\\]$/p' requirements.lock >"$pins"
"$venv/bin/pip" install --progress-bar off --require-hashes --no-deps --index-url "$TORCH_INDEX" --requirement "$pins"
"$venv/bin/pip" install --progress-bar off --require-hashes --no-deps --requirement requirements.lock
# A CUDA build needs NVIDIA's libraries, in the versions that torch names; a build without needs nothing more.
"$venv/bin/pip" install --progress-bar off "$torch"
"$venv/bin/pip" check
"$venv/bin/pip" freeze >"$venv/constraints.txt"
echo "$versions" >"$venv/installed"
