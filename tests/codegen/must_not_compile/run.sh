#!/bin/bash
# Compiles each case of cases.cc alone and expects it to fail with the text that the case names.
# usage: run.sh WORK_DIR CASES COMPILER FLAG...      FLAGs: the target's own, include directories and all
set -euo pipefail
work=$1 cases=$2 compiler=$3
shift 3
here=$(dirname "$cases")
flags=("$@" -Wall -Wextra -Werror)

# The headers are most of the work, so they are compiled once. g++ finds the precompiled header beside the copy of the header,
# clang wants it named.
rm -rf "$work"
mkdir -p "$work/tests/codegen/must_not_compile"
prelude="$work/tests/codegen/must_not_compile/prelude.h"
cp "$here/prelude.h" "$prelude"
if "$compiler" --version | grep -q clang; then
  "$compiler" "-I$work" "${flags[@]}" -x c++-header "$prelude" -o "$prelude.pch"
  flags=(-include-pch "$prelude.pch" "${flags[@]}")
else
  "$compiler" "-I$work" "${flags[@]}" -x c++-header "$prelude" -o "$prelude.gch"
fi
compile() { "$compiler" "-I$work" "${flags[@]}" "-D$1" -fsyntax-only -x c++ "$cases" >"$work/$1.log" 2>&1; }

if ! compile NOTHING; then
  cat "$work/NOTHING.log"
  echo "FAILED: the file does not compile without a case"
  exit 1
fi
count=0
failed=0
while read -r _ condition _ _ expected; do
  name=${condition#defined(}
  name=${name%)}
  count=$((count + 1))
  if compile "$name"; then
    echo "FAILED: $name compiles"
    failed=1
  elif ! grep -E '(error|note):' "$work/$name.log" | grep -qE -e "$expected"; then
    cat "$work/$name.log"
    echo "FAILED: $name does not compile, and no line of it matches: $expected"
    failed=1
  fi
done < <(grep '^#elif defined' "$cases")
[[ $count -ge 25 ]] || { echo "FAILED: only $count cases found"; exit 1; }
[[ $failed -eq 0 ]] && echo "$count cases do not compile"
exit $failed
