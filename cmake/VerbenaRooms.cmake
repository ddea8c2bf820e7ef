# verbena_room(NAME SOURCES ... HEADERS ... DEPENDS ...)
#   One static library per room of rpc/: target verbena_NAME, alias verbena::NAME. Includes are relative to the root
#   of the tree ("rpc/NAME/x.h") and to rpc/include ("verbena/x.h").
function(verbena_room NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;DEPENDS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "verbena_room(${NAME}): unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(ARG_SOURCES)
    set(kind PUBLIC)
    add_library(verbena_${NAME} STATIC ${ARG_SOURCES} ${ARG_HEADERS})
    verbena_warnings(verbena_${NAME})
  else()
    set(kind INTERFACE)
    add_library(verbena_${NAME} INTERFACE)
  endif()
  add_library(verbena::${NAME} ALIAS verbena_${NAME})
  target_include_directories(verbena_${NAME} ${kind}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/rpc/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(verbena_${NAME} ${kind} cxx_std_20)
  target_link_libraries(verbena_${NAME} ${kind} ${ARG_DEPENDS} Threads::Threads)
  set_target_properties(verbena_${NAME} PROPERTIES EXPORT_NAME ${NAME})
  set_property(GLOBAL APPEND PROPERTY VERBENA_ROOM_TARGETS verbena_${NAME})
  verbena_headers_alone(${NAME} "${ARG_SOURCES}" "${ARG_HEADERS}")
endfunction()

# A header must compile alone. One with a source file of its own name is included first there, which proves it; this
# compiles the others, in target verbena_NAME_headers (all of them: verbena_headers). Public headers: VerbenaUmbrella.
function(verbena_headers_alone NAME SOURCES HEADERS)
  set(lonely)
  foreach(header IN LISTS HEADERS)
    string(REGEX REPLACE "\\.h$" ".cc" source "${header}")
    if(NOT source IN_LIST SOURCES)
      cmake_path(ABSOLUTE_PATH header BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE OUTPUT_VARIABLE path)
      set(unit "${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.cc")
      file(CONFIGURE OUTPUT "${unit}" CONTENT "#include \"${path}\"\n" @ONLY)
      list(APPEND lonely "${unit}")
    endif()
  endforeach()
  if(lonely AND PROJECT_IS_TOP_LEVEL)
    add_library(verbena_${NAME}_headers OBJECT EXCLUDE_FROM_ALL ${lonely})
    verbena_warnings(verbena_${NAME}_headers)
    target_link_libraries(verbena_${NAME}_headers PRIVATE verbena_${NAME})
    if(NOT TARGET verbena_headers)
      add_custom_target(verbena_headers)
    endif()
    add_dependencies(verbena_headers verbena_${NAME}_headers)
  endif()
endfunction()

# Warnings are properties of our own targets, never of a user's.
function(verbena_warnings TARGET)
  target_compile_options(${TARGET} PRIVATE -Wall -Wextra -Wconversion -Wshadow -Wno-sign-conversion)
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    target_compile_options(${TARGET} PRIVATE -Wthread-safety)
  endif()
  if(VERBENA_WERROR)
    target_compile_options(${TARGET} PRIVATE -Werror)
  endif()
endfunction()

# Only what hangs is stopped: others may use the machine. A sanitizer costs up to fifteen times the run time.
set(VERBENA_TEST_TIMEOUT_S 300)
if(VERBENA_SANITIZE)
  set(VERBENA_TEST_TIMEOUT_S 900)
endif()

# verbena_test(NAME SOURCES ... DEPENDS ... [LABELS ...])
#   One test binary per room, registered with CTest under its name. Labels with a meaning: `slow` is left out by
#   tests/run --fast and by the sanitizer presets; `unsanitized` by the latter (it times, or counts allocations). `verbs`
#   needs an RDMA device: see verbena_verbs_test.
function(verbena_test NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(test_${NAME} ${ARG_SOURCES})
  verbena_warnings(test_${NAME})
  target_link_libraries(test_${NAME} PRIVATE ${ARG_DEPENDS} verbena_test_main)
  if("verbs" IN_LIST ARG_LABELS)
    verbena_verbs_test(${NAME} COMMAND $<TARGET_FILE:test_${NAME}> LABELS ${ARG_LABELS})
    return()
  endif()
  add_test(NAME ${NAME} COMMAND test_${NAME})
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${VERBENA_TEST_TIMEOUT_S} LABELS "${ARG_LABELS}")
endfunction()

# verbena_verbs_test(NAME COMMAND ... [LABELS ...])
#   A test that needs an RDMA device: skipped where there is none, and run by tests/run --verbs, which has guests for it.
#   Such as the cases of a binary that concern verbs: COMMAND $<TARGET_FILE:test_contract> "[verbs]".
function(verbena_verbs_test NAME)
  cmake_parse_arguments(ARG "" "" "COMMAND;LABELS" ${ARGN})
  add_test(NAME ${NAME} COMMAND "${PROJECT_SOURCE_DIR}/tests/guest/on_device" ${ARG_COMMAND})
  set(labels verbs ${ARG_LABELS})
  list(REMOVE_DUPLICATES labels)
  # An emulated machine takes up to twenty times as long.
  math(EXPR timeout "4 * ${VERBENA_TEST_TIMEOUT_S}")
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${timeout} LABELS "${labels}" SKIP_RETURN_CODE 77)
endfunction()

# verbena_guest_test(NAME COMMAND ...)
#   A test that boots guests of its own (several, with two NUMA nodes, ones that die): COMMAND calls tests/guest/run, and
#   exits with 77 where no guest can be had. Labelled `guest`: only tests/run --verbs runs it.
function(verbena_guest_test NAME)
  cmake_parse_arguments(ARG "" "" "COMMAND" ${ARGN})
  add_test(NAME ${NAME} COMMAND ${ARG_COMMAND})
  set_tests_properties(${NAME} PROPERTIES TIMEOUT 1200 LABELS guest SKIP_RETURN_CODE 77 RUN_SERIAL TRUE)
endfunction()
