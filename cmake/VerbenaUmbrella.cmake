# verbena::verbena: every room, the generated code of proto/, and the public headers. What a program links.
get_property(verbena_rooms GLOBAL PROPERTY VERBENA_ROOM_TARGETS)
file(GLOB_RECURSE verbena_public_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/rpc/include/verbena/*.h")

add_library(verbena INTERFACE)
add_library(verbena::verbena ALIAS verbena)
target_compile_features(verbena INTERFACE cxx_std_20)
target_link_libraries(verbena INTERFACE ${verbena_rooms} verbena_proto)
target_sources(verbena INTERFACE
  FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/rpc/include" FILES ${verbena_public_headers})

# Target all_verify_interface_header_sets compiles each public header alone.
set_target_properties(verbena PROPERTIES VERIFY_INTERFACE_HEADER_SETS ${PROJECT_IS_TOP_LEVEL})

# verbena_collect(TARGET FOLDER): one target that builds everything declared in a folder and below.
function(verbena_collect TARGET FOLDER)
  verbena_targets_below("${PROJECT_SOURCE_DIR}/${FOLDER}" targets)
  add_custom_target(${TARGET} DEPENDS ${targets})
endfunction()

function(verbena_targets_below FOLDER RESULT)
  get_property(targets DIRECTORY "${FOLDER}" PROPERTY BUILDSYSTEM_TARGETS)
  get_property(folders DIRECTORY "${FOLDER}" PROPERTY SUBDIRECTORIES)
  set(wanted)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(excluded ${target} EXCLUDE_FROM_ALL)
    if(NOT type MATCHES "INTERFACE_LIBRARY|UTILITY" AND NOT excluded)
      list(APPEND wanted ${target})
    endif()
  endforeach()
  foreach(folder IN LISTS folders)
    verbena_targets_below("${folder}" below)
    list(APPEND wanted ${below})
  endforeach()
  set(${RESULT} "${wanted}" PARENT_SCOPE)
endfunction()
