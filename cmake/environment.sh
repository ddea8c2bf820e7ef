# Sourced by the entry scripts, in the root of the tree. Clones in different folders share one compiler cache.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}
export CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
jobs=${VERBENA_JOBS:-$(nproc)}

# Fails with the cure where the tree is somebody else's.
writable_build() {
  mkdir -p build 2>/dev/null && [[ -w build ]] && return
  echo "$PWD/build cannot be written: use a copy of the tree that is yours" >&2
  return 1
}

# configure PRESET [ARGUMENT...]: quiet unless it fails.
configure() {
  local output
  writable_build || return
  output=$(cmake --preset "$@" 2>&1) || { printf '%s\n' "$output" >&2; return 1; }
}

# announce_build NAME LOG: a first build takes many minutes and is silent until its end.
announce_build() {
  local first=
  [[ -e $2 ]] || first=", minutes the first time"
  echo "build $1: started, $jobs at a time$first; its log: $2"
}

# build PRESET [ARGUMENT...]: one line before, one that says what was done, and everything when it fails.
build() {
  local preset=$1 what=${*:2} start=$SECONDS
  local log=build/$preset/build.log
  what=${what#--target }
  announce_build "$preset (${what:-all})" "$log"
  if ! cmake --build --preset "$preset" -j "$jobs" "${@:2}" >"$log" 2>&1; then
    grep -E -A20 'FAILED|error|Error' "$log" | tail -n 80 >&2 || tail -n 80 "$log" >&2
    echo "build $preset: FAILED (all of it: $log)" >&2
    return 1
  fi
  echo "build $preset: $((SECONDS - start)) s"
}

# run_tests PRESET [ARGUMENT...]: by ctest, which gives a test that fails a second try, since another process of the machine
# may have had its CPUs for as long as a test waits. Those that needed it are named: a test that does so often is broken.
run_tests() {
  local preset=$1 status=0
  local log=build/$preset/Testing/tests.log
  mkdir -p "build/$preset/Testing"
  ctest --preset "$preset" --output-log "$log" "${@:2}" || status=$?
  local twice
  twice=$(sed -nE 's/.*Test +#[0-9]+: ([^ ]+) .*\*\*\*(Failed|Timeout|Exception).*/\1/p' "$log" | sort -u | tr '\n' ' ')
  [[ -z $twice ]] || echo "failed at least once: $twice"
  return "$status"
}
