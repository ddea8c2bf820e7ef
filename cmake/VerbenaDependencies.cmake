# What the core needs: protobuf, abseil, hwloc, threads. ccache is used when it is there.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(VERBENA_CCACHE ccache)
  if(VERBENA_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${VERBENA_CCACHE}")
  endif()
endif()
