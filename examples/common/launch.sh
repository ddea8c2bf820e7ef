# Sourced by the examples' run scripts, in the root of the tree.

# programs TARGET [BUILD_DIR]: sets `programs` to the folder of the example's programs; without BUILD_DIR it builds them.
programs() {
  local target=$1 build=${2:-}
  if [[ -z $build ]]; then
    cmake/setup
    source cmake/environment.sh
    configure release -DVERBENA_EXAMPLE_PROGRAMS=ON
    build release --target "$target"
    build=build/release
  fi
  programs=$build/examples/$example
  if ! compgen -G "$programs/*server" >/dev/null; then
    echo "$0: no programs in $programs: configure with -DVERBENA_EXAMPLE_PROGRAMS=ON, then build $target" >&2
    return 1
  fi
}

server_pids=()
logs=$(mktemp -d)
stop_servers() {
  local pid
  for pid in "${server_pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${server_pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$logs"
}
trap stop_servers EXIT

# serve PROGRAM ARGUMENT...: starts a server and returns when it has said "serving", or fails with what it said instead.
serve() {
  local name=${1##*/}
  "$@" >"$logs/$name" &
  local pid=$! tries
  server_pids+=("$pid")
  for ((tries = 0; tries < 1200; ++tries)); do
    if grep -q '^serving' "$logs/$name"; then
      sed "s/^/[$name] /" "$logs/$name"
      return
    fi
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.05
  done
  echo "$name did not start:" >&2
  cat "$logs/$name" >&2
  return 1
}

# An address of this machine that was free a moment ago.
free_address() {
  local port
  while port=$((20000 + RANDOM % 12000)); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "127.0.0.1:$port"; return; }
  done
}
