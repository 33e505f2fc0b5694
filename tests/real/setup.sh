#!/usr/bin/env bash
# Makes the environments of the peers that `pytest -m real` and bench/ compare with, each apart from ours, under
# ${RONDO_PEERS:-$HOME/.cache/rondo/peers}. A second run does nothing.
#
#   bash tests/real/setup.sh [PYTHON] [PEER ...]     PYTHON 3.11 or later; all peers by default
set -euo pipefail

python=${1:-python3}
shift || true
root=${RONDO_PEERS:-$HOME/.cache/rondo/peers}

# The packages of each peer, pinned; a changed line makes the environment anew.
declare -A packages=(
  [trl]="torch==2.13.0 trl==1.16.0"
)

make_peer() {
  local peer=$1 wanted=${packages[$1]} folder=$root/$1
  if [ "$(cat "$folder/stamp" 2>/dev/null)" = "$wanted" ]; then
    echo "$peer: ready in $folder"
    return
  fi
  echo "$peer: installing $wanted into $folder"
  rm -rf "$folder"
  mkdir -p "$root"
  "$python" -m venv "$folder"
  # torch by itself first: the build of the machine's own index, before anything else can choose another.
  for package in $wanted; do
    "$folder/bin/python" -m pip --disable-pip-version-check install --quiet --no-input "$package"
  done
  echo "$wanted" > "$folder/stamp"
}

# Servers that come from the system's own packages.
programs=(prometheus)

install_program() {
  if command -v "$1" > /dev/null; then
    echo "$1: ready in $(command -v "$1")"
  elif command -v apt-get > /dev/null && [ "$(id -u)" = 0 ]; then
    echo "$1: installing"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" > /dev/null
  else
    echo "error: $1 is missing; install it with your system's package manager" >&2
    exit 1
  fi
}

if [ $# = 0 ]; then
  for program in "${programs[@]}"; do install_program "$program"; done
fi
for peer in "${@:-${!packages[@]}}"; do
  if [ -z "${packages[$peer]:-}" ]; then
    echo "error: no peer is called $peer; there are: ${!packages[*]}" >&2
    exit 2
  fi
  make_peer "$peer"
done
