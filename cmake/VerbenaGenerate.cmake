# verbena_generate(TARGET t PROTOS a.proto ... [IMPORT_DIRS dir ...] [OUT_DIR dir])
#   Compiles .proto files into the target t: messages by protoc, stubs, services and mocks by protoc-gen-verbena.
#     #include "a.verbena.h"        // and "a.verbena_mock.h" in tests
#   The path in an #include is the .proto's path below the first of IMPORT_DIRS that holds it (default: the current source
#   directory). verbena/v1/*.proto and google/protobuf/*.proto are found by themselves. OUT_DIR, by default one of the
#   target's own below the current binary directory, is added to the target's public include directories. Call it in the
#   directory that creates t, and link t with verbena::verbena.
#
# One protoc run per .proto, which says in a dependency file what was imported: a touched import regenerates its importers, a
# new plugin regenerates everything. Works inside Verbena's tree and with an installed package.

include_guard(GLOBAL)

function(verbena_generate)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "" "TARGET;OUT_DIR" "PROTOS;IMPORT_DIRS")
  if(ARG_UNPARSED_ARGUMENTS)
    message(WARNING "verbena_generate: unknown arguments: ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  _verbena_check_arguments("${ARG_TARGET}" "${ARG_PROTOS}")
  if(NOT ARG_IMPORT_DIRS)
    set(ARG_IMPORT_DIRS "${CMAKE_CURRENT_SOURCE_DIR}")
  endif()
  set(import_dirs)
  foreach(dir IN LISTS ARG_IMPORT_DIRS)
    cmake_path(ABSOLUTE_PATH dir NORMALIZE)
    string(REGEX REPLACE "(.)/$" "\\1" dir "${dir}")
    list(APPEND import_dirs "${dir}")
  endforeach()
  if(NOT ARG_OUT_DIR)
    set(ARG_OUT_DIR "${ARG_TARGET}.verbena")
  endif()
  cmake_path(ABSOLUTE_PATH ARG_OUT_DIR BASE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}" NORMALIZE)
  file(MAKE_DIRECTORY "${ARG_OUT_DIR}")
  _verbena_proto_dir(library_dir)

  foreach(proto IN LISTS ARG_PROTOS)
    cmake_path(ABSOLUTE_PATH proto NORMALIZE)
    _verbena_relative_proto("${proto}" "${import_dirs}" relative)
    _verbena_add_protoc_run("${ARG_TARGET}" "${proto}" "${relative}" "${ARG_OUT_DIR}" "${import_dirs};${library_dir}")
  endforeach()
  # As a system directory: protoc's headers do not pass every warning that a user may have made an error.
  target_include_directories(${ARG_TARGET} SYSTEM PUBLIC "$<BUILD_INTERFACE:${ARG_OUT_DIR}>")
endfunction()

function(_verbena_check_arguments target protos)
  if(NOT target OR NOT protos)
    message(FATAL_ERROR "verbena_generate: TARGET and PROTOS are needed")
  endif()
  if(NOT TARGET ${target})
    message(FATAL_ERROR "verbena_generate: there is no target ${target}")
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL INTERFACE_LIBRARY)
    message(FATAL_ERROR "verbena_generate: ${target} is an INTERFACE library, which compiles nothing")
  endif()
  get_target_property(directory ${target} SOURCE_DIR)
  if(NOT directory STREQUAL CMAKE_CURRENT_SOURCE_DIR)
    message(FATAL_ERROR "verbena_generate: ${target} belongs to ${directory}: call it there")
  endif()
endfunction()

# The directory that holds verbena/v1/*.proto: the source tree's, or the one that the installed package names.
function(_verbena_proto_dir out)
  foreach(dir "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../proto" "${VERBENA_PROTO_DIR}")
    if(EXISTS "${dir}/verbena/v1/tensor.proto")
      cmake_path(NORMAL_PATH dir)
      set(${out} "${dir}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "verbena_generate: verbena/v1/tensor.proto is not there; is the verbena package complete?")
endfunction()

# The name by which other files import `proto`.
function(_verbena_relative_proto proto import_dirs out)
  if(NOT EXISTS "${proto}")
    message(FATAL_ERROR "verbena_generate: ${proto} does not exist")
  endif()
  foreach(dir IN LISTS import_dirs)
    cmake_path(IS_PREFIX dir "${proto}" below)
    if(below)
      cmake_path(RELATIVE_PATH proto BASE_DIRECTORY "${dir}" OUTPUT_VARIABLE relative)
      set(${out} "${relative}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "verbena_generate: ${proto} is in none of the import directories: ${import_dirs}; name one with IMPORT_DIRS")
endfunction()

function(_verbena_add_protoc_run target proto relative out_dir import_dirs)
  string(REGEX REPLACE "\\.proto$" "" base "${relative}")
  set(base "${out_dir}/${base}")
  # .pb.cc first: protoc's dependency file names it first, and Ninja looks for the first output only.
  set(outputs "${base}.pb.cc" "${base}.pb.h" "${base}.verbena.cc" "${base}.verbena.h" "${base}.verbena_mock.h")
  list(TRANSFORM import_dirs PREPEND "-I")
  add_custom_command(
    OUTPUT ${outputs}
    COMMAND protobuf::protoc ${import_dirs} "--plugin=protoc-gen-verbena=$<TARGET_FILE:verbena::protoc-gen-verbena>"
      "--cpp_out=${out_dir}" "--verbena_out=${out_dir}" "--dependency_out=${base}.d" "${relative}"
    DEPENDS "${proto}" verbena::protoc-gen-verbena "$<TARGET_FILE:verbena::protoc-gen-verbena>"
    DEPFILE "${base}.d"
    COMMENT "Generating ${relative}"
    VERBATIM)
  cmake_path(GET base PARENT_PATH directory)
  file(MAKE_DIRECTORY "${directory}")
  set_source_files_properties(${outputs} PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION ON SKIP_AUTOGEN ON SKIP_LINTING ON)
  set_source_files_properties("${base}.pb.cc" PROPERTIES COMPILE_OPTIONS -w)
  target_sources(${target} PRIVATE ${outputs})
endfunction()
