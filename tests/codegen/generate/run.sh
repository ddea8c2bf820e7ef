#!/bin/bash
# Builds a user's project with verbena_generate(), and again after changes.
# usage: run.sh WORK_DIR GENERATOR MODULE PLUGIN PROTO_DIR PROTO_LIBRARY PROTO_INCLUDES
set -euo pipefail
work=$1 generator=$2 module=$3 plugin=$4 proto_dir=$5 proto_library=$6 proto_includes=$7
here=$(cd "$(dirname "$0")" && pwd)
log="$work/log"

# Copies: of the project, because its files will change; of the module, so that it is not in the source tree and has to ask
# VERBENA_PROTO_DIR as an installed one; of the plugin, to be replaced by a newer one.
rm -rf "$work"
mkdir -p "$work/package" "$work/bin"
cp -r "$here/project" "$work/project"
cp "$module" "$work/package/VerbenaGenerate.cmake"
cp "$plugin" "$work/bin/protoc-gen-verbena"

configure() {
  cmake -S "$work/project" -B "$work/build" -G "$generator" -DCMAKE_UNITY_BUILD=ON \
    -DMODULE="$work/package/VerbenaGenerate.cmake" -DPLUGIN="$work/bin/protoc-gen-verbena" \
    -DVERBENA_PROTO_DIR="$proto_dir" -DPROTO_LIBRARY="$proto_library" -DPROTO_INCLUDES="$proto_includes" "$@" >"$log" 2>&1
}
build() { cmake --build "$work/build" >"$log" 2>&1 || fail "the build failed"; }
fail() { cat "$log"; echo "FAILED ($generator): $*"; exit 1; }
# CMake wraps its lines.
says() { tr -s '\n ' ' ' <"$log" | grep -q -e "$1" || fail "not said: $1"; }
generated() { grep -q "Generating $1\$" "$log" || fail "$1 was not generated $2"; }
not_generated() { ! grep -q "Generating $1\$" "$log" || fail "$1 was generated $2"; }

configure || fail "the project does not configure"
! grep -q Warning "$log" || fail "a warning without a reason"

# Built for the first time.
build
for name in outer.proto inner/inner.proto more/only.messages.proto; do generated $name "at first"; done
[[ $("$work/build/client") == outer ]] || fail "client"
"$work/build/user" || fail "user"

# Nothing has changed: nothing is generated.
build
for name in outer.proto inner/inner.proto more/only.messages.proto; do not_generated $name "without a change"; done

# An import changes: it and who imports it are generated, others are not.
sleep 1.1
sed -i 's/string text = 1;/string text = 1;\n  string more = 2;/' "$work/project/protos/inner/inner.proto"
build
generated outer.proto "after its import changed"
generated inner/inner.proto "after it changed"
not_generated more/only.messages.proto "although nothing of it changed"
grep -q set_more "$work/build/messages.verbena/inner/inner.pb.h" || fail "the change is not in the header"

# The plugin is newer: everything is generated, once.
sleep 1.1
touch "$work/bin/protoc-gen-verbena"
build
for name in outer.proto inner/inner.proto more/only.messages.proto; do generated $name "by the new plugin"; done
build
not_generated outer.proto "twice by the new plugin"

# What is not understood is said, what cannot work stops.
configure -DMISUSE=UNKNOWN_ARGUMENT || fail "an unknown argument is a warning only"
says "verbena_generate: unknown arguments: QUICKLY"
! configure -DMISUSE=NO_SUCH_FILE || fail "a file that does not exist was taken"
says "nobody.proto does not exist"
! configure -DMISUSE=OUTSIDE || fail "a file outside the import directories was taken"
says "is in none of the import directories"
says "name one with IMPORT_DIRS"
! configure -DMISUSE=INTERFACE || fail "an interface library was taken"
says "which compiles nothing"
