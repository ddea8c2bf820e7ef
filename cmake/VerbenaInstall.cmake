# `cmake --install`: public headers, one static library per room, proto files, the protoc plugin, the program verbena, a
# CMake package (find_package(verbena)) and a pkg-config file.
include(CMakePackageConfigHelpers)
set(verbena_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/verbena")
set(verbena_proto_dir "${CMAKE_INSTALL_DATADIR}/verbena/proto")

set(verbena_installed ${verbena_rooms})
foreach(target verbena_proto protoc-gen-verbena)
  if(TARGET ${target})
    list(APPEND verbena_installed ${target})
  endif()
endforeach()
set_target_properties(verbena_proto PROPERTIES EXPORT_NAME proto)
install(TARGETS ${verbena_installed} EXPORT verbenaTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS verbena EXPORT verbenaTargets
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET verbena_tool)
  install(TARGETS verbena_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(EXPORT verbenaTargets NAMESPACE verbena:: DESTINATION ${verbena_cmake_dir})

install(DIRECTORY "${PROJECT_SOURCE_DIR}/proto/" DESTINATION ${verbena_proto_dir} FILES_MATCHING PATTERN "*.proto")

# What the package has to find again for its user, beside what every build needs.
set(VERBENA_NEEDS_OPENSSL FALSE)
foreach(target IN LISTS verbena_installed)
  get_target_property(libraries ${target} INTERFACE_LINK_LIBRARIES)
  if(libraries MATCHES "OpenSSL::")
    set(VERBENA_NEEDS_OPENSSL TRUE)
  endif()
endforeach()
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/verbenaConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/verbenaConfig.cmake"
  INSTALL_DESTINATION ${verbena_cmake_dir} PATH_VARS verbena_proto_dir)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/verbenaConfigVersion.cmake" COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/verbenaConfig.cmake" "${PROJECT_BINARY_DIR}/verbenaConfigVersion.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/VerbenaGenerate.cmake"
  DESTINATION ${verbena_cmake_dir})

# The pkg-config file names what the rooms link to: absl::status is absl_status, and so on.
function(verbena_pkg_config_of LIBRARY REQUIRES LIBS)
  set(requires)
  set(libs)
  string(REGEX REPLACE "^\\$<LINK_ONLY:(.+)>$" "\\1" LIBRARY "${LIBRARY}")
  if(LIBRARY MATCHES "^absl::(.+)$")
    set(requires "absl_${CMAKE_MATCH_1}")
  elseif(LIBRARY MATCHES "^protobuf::libprotobuf$")
    set(requires protobuf)
  elseif(LIBRARY MATCHES "^PkgConfig::(.+)$")
    string(TOLOWER "${CMAKE_MATCH_1}" requires)
  elseif(LIBRARY MATCHES "^OpenSSL::")
    set(requires openssl)
  elseif(LIBRARY STREQUAL "Threads::Threads")
    set(libs -pthread)
  elseif(LIBRARY MATCHES "^verbena(_|::)" OR LIBRARY MATCHES "^\\$<")
    # Ours, listed below, or of one build only.
  elseif(LIBRARY MATCHES "::")
    message(FATAL_ERROR "${LIBRARY}: say its pkg-config name in cmake/VerbenaInstall.cmake")
  elseif(LIBRARY MATCHES "^-|^/")
    set(libs "${LIBRARY}")
  else()
    set(libs "-l${LIBRARY}")
  endif()
  set(${REQUIRES} "${requires}" PARENT_SCOPE)
  set(${LIBS} "${libs}" PARENT_SCOPE)
endfunction()

function(verbena_write_pkg_config)
  set(ours)
  set(all_requires)
  set(all_libs)
  foreach(target IN LISTS verbena_installed)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      continue()
    elseif(type STREQUAL "STATIC_LIBRARY")
      list(APPEND ours "-l${target}")
    endif()
    get_target_property(libraries ${target} INTERFACE_LINK_LIBRARIES)
    foreach(library IN LISTS libraries)
      verbena_pkg_config_of("${library}" requires libs)
      list(APPEND all_requires ${requires})
      list(APPEND all_libs ${libs})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES all_requires)
  list(REMOVE_DUPLICATES all_libs)
  list(JOIN ours " " VERBENA_PC_OURS)
  list(JOIN all_requires " " VERBENA_PC_REQUIRES)
  list(JOIN all_libs " " VERBENA_PC_LIBS)
  # The prefix is found from the file's own place, so a staged or moved tree works.
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
    BASE_DIRECTORY "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" OUTPUT_VARIABLE VERBENA_PC_PREFIX)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/verbena.pc.in" "${PROJECT_BINARY_DIR}/verbena.pc" @ONLY)
endfunction()

verbena_write_pkg_config()
install(FILES "${PROJECT_BINARY_DIR}/verbena.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
