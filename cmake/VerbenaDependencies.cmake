# What the core needs: protobuf, abseil, hwloc, libibverbs, threads. ccache is used when it is there.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(PkgConfig REQUIRED)

# Libraries with no CMake package of their own: NAME is target PkgConfig::NAME in capitals, here and for a user.
set(VERBENA_PKG_CONFIG_MODULES hwloc libibverbs)
foreach(module IN LISTS VERBENA_PKG_CONFIG_MODULES)
  string(TOUPPER "${module}" prefix)
  pkg_check_modules(${prefix} IMPORTED_TARGET ${module})
  if(NOT ${prefix}_FOUND)
    string(REGEX REPLACE "^(lib)?" "lib" package "${module}-dev")
    message(FATAL_ERROR "Verbena needs ${module}, of which pkg-config knows nothing. "
      "On Debian and Ubuntu: apt-get install ${package} (cmake/setup installs all that is needed)")
  endif()
endforeach()

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(VERBENA_CCACHE ccache)
  if(VERBENA_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${VERBENA_CCACHE}")
  endif()
endif()
