# ThreadSanitizer and an abseil that is not instrumented: see tsan_absl.cc.
if(VERBENA_SANITIZE STREQUAL "thread")
  add_library(verbena_tsan_absl OBJECT "${CMAKE_CURRENT_LIST_DIR}/tsan_absl.cc")
  set_target_properties(verbena_tsan_absl PROPERTIES CXX_VISIBILITY_PRESET default)
  target_link_libraries(verbena_tsan_absl PRIVATE absl::synchronization)
  link_libraries(
    "$<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<TARGET_OBJECTS:verbena_tsan_absl>>"
    "$<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:absl::synchronization>")
endif()
