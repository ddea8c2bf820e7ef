# Sourced by the examples' run scripts, in the root of the tree, with `example` set to the example's folder and `caller` to
# the folder from which the script was called.

# The text at the head of the example's script.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "examples/$example/run"; }

# wrong_use WHY: ends the script.
wrong_use() {
  { echo "$0: $1"; usage; } >&2
  exit 2
}

# from_caller PATH: the path as seen from here.
from_caller() { [[ $1 == /* ]] && echo "$1" || echo "$caller/$1"; }

# Takes a leading --transport NAME out of "$@", into `transport` (an array: the option, or nothing), and answers --help.
#   options "$@"; set -- "${rest[@]}"
options() {
  transport=()
  if [[ ${1:-} == --transport ]]; then
    [[ ${2:-} =~ ^(shm|verbs|tcp)$ ]] || wrong_use "--transport ${2:-}: it is shm, verbs or tcp"
    transport=("$1" "$2")
    shift 2
  fi
  case ${1:-} in
    -h | --help) usage; exit 0 ;;
    -*) wrong_use "unknown option $1" ;;
  esac
  rest=("$@")
}

# programs TARGET [BUILD_DIR]: sets `programs` to the folder of the example's programs; without BUILD_DIR it builds them.
programs() {
  local target=$1 build=${2:-}
  if [[ -z $build ]]; then
    cmake/setup
    source cmake/environment.sh
    configure release
    build release --target "$target"
    build=build/release
  else
    [[ -d $(from_caller "$build") ]] || wrong_use "$build is no BUILD_DIR"
    build=$(from_caller "$build")
  fi
  programs=$build/examples/$example
  if ! compgen -G "$programs/*server" >/dev/null; then
    echo "$0: no programs in $programs: build $target first" >&2
    return 1
  fi
}

# Seconds that a server has for its orderly end before it is killed.
stop_limit=5
server_pids=()
scratch=$(mktemp -d)
stop_servers() {
  local pid tries
  for pid in "${server_pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for ((tries = 0; tries < stop_limit * 20; ++tries)); do
    kill -0 "${server_pids[@]}" 2>/dev/null || break
    sleep 0.05
  done
  for pid in "${server_pids[@]}"; do
    if kill -KILL "$pid" 2>/dev/null; then echo "$0: process $pid did not stop and was killed" >&2; fi
    wait "$pid" 2>/dev/null || true
  done
  server_pids=()
}
# Whatever ends the script, its servers and files go with it.
trap 'stop_servers; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# serve PROGRAM ARGUMENT...: starts a server and returns when it has said "serving", or fails with what it said instead.
# It may take as long as it lives: a large file is read once before it is served.
serve() {
  local name=${1##*/} log
  log=$(mktemp "$scratch/server.XXXXXX")
  "$@" >"$log" &
  local pid=$!
  server_pids+=("$pid")
  until grep -q '^serving' "$log"; do
    if ! kill -0 "$pid" 2>/dev/null; then
      echo "$0: $name did not start" >&2
      cat "$log" >&2
      return 1
    fi
    sleep 0.05
  done
  sed "s/^/[$name] /" "$log"
}

# An address of this machine that was free a moment ago.
free_address() {
  local port
  while port=$((20000 + RANDOM % 12000)); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "127.0.0.1:$port"; return; }
  done
}
