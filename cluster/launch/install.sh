#!/usr/bin/env bash
# Installs what jobs and Ray Serve need, in the versions of requirements.lock, without packages for development:
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
versions=$(cat requirements.lock pyproject.toml cluster/runtime_requirements.py <(echo "$TORCH_INDEX") | sha256sum)
if [[ -f $venv/installed && $(<"$venv/installed") == "$versions" ]]; then
    exit 0
fi

[[ -x $venv/bin/python ]] || "${PYTHON:-python3.11}" -m venv "$venv"
wanted=$(mktemp)
trap 'rm -f "$wanted"' EXIT
"$venv/bin/python" cluster/runtime_requirements.py >"$wanted"
"$venv/bin/pip" install --progress-bar off --index-url "$TORCH_INDEX" "$(grep '^torch==' requirements.lock)"
"$venv/bin/pip" install --progress-bar off --constraint requirements.lock --requirement "$wanted"
"$venv/bin/pip" check
echo "$versions" >"$venv/installed"
