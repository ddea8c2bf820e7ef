# What the core needs: protobuf, abseil, hwloc, threads. ccache is used when it is there.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(PkgConfig REQUIRED)

# Libraries with no CMake package of their own: NAME is target PkgConfig::NAME in capitals, here and for a user.
set(VERBENA_PKG_CONFIG_MODULES hwloc)
foreach(module IN LISTS VERBENA_PKG_CONFIG_MODULES)
  string(TOUPPER "${module}" prefix)
  pkg_check_modules(${prefix} REQUIRED IMPORTED_TARGET ${module})
endforeach()

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(VERBENA_CCACHE ccache)
  if(VERBENA_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${VERBENA_CCACHE}")
  endif()
endif()
