# baton_build_identity(TARGET): which commit a build is of, as `git describe --always --dirty` says it, becomes a function of
# TARGET. Asked at every build, in a file of its own that changes only with the answer: a commit costs one small file and
# the links. "unknown" where the source is no git checkout.

function(baton_build_identity target)
  set(file "${CMAKE_CURRENT_BINARY_DIR}/build_identity.cc")
  add_custom_target(${target}_build_identity
    COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}" "-DFILE=${file}"
      -P "${PROJECT_SOURCE_DIR}/cmake/write_build_identity.cmake"
    BYPRODUCTS "${file}"
    VERBATIM)
  target_sources(${target} PRIVATE "${file}")
  set_source_files_properties("${file}" PROPERTIES GENERATED ON SKIP_UNITY_BUILD_INCLUSION ON)
  add_dependencies(${target} ${target}_build_identity)
endfunction()
