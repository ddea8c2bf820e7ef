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
  set_property(GLOBAL APPEND PROPERTY VERBENA_ROOM_TARGETS verbena_${NAME})
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

# verbena_test(NAME SOURCES ... DEPENDS ... [LABELS ...])
#   One test binary per room, registered with CTest under its name.
function(verbena_test NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(test_${NAME} ${ARG_SOURCES})
  verbena_warnings(test_${NAME})
  target_link_libraries(test_${NAME} PRIVATE ${ARG_DEPENDS} verbena_test_main)
  add_test(NAME ${NAME} COMMAND test_${NAME})
  set_tests_properties(${NAME} PROPERTIES TIMEOUT 120 LABELS "${ARG_LABELS}")
endfunction()
