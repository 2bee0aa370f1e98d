# How every target of this project is compiled, and the three verbs that rooms use.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(BATON_CCACHE ccache)
if(BATON_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${BATON_CCACHE}")
endif()

set(BATON_SANITIZER "" CACHE STRING "address,undefined or thread")
if(BATON_SANITIZER)
  add_compile_options(-fsanitize=${BATON_SANITIZER} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${BATON_SANITIZER})
endif()

option(BATON_FUZZERS "Build tests/fuzz and instrument everything for libFuzzer (clang only)" OFF)
if(BATON_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

add_library(baton_flags INTERFACE)
target_compile_options(baton_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wold-style-cast -Wswitch-enum -Werror
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
target_include_directories(baton_flags INTERFACE
  "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")

# A room's files, or a test program's, in few translation units: half the compile time is headers and the templates that
# every file would instantiate again. Off where one file is worked on at a time: presets dev and tidy.
option(BATON_UNITY "Compile the files of a target together" ON)
function(baton_unity target)
  if(BATON_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

# baton_room(NAME SOURCES.. DEPS.. LIBS..): one library a room. DEPS are rooms, LIBS are packages.
function(baton_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPS;LIBS;PRIVATE_LIBS" ${ARGN})
  list(TRANSFORM ROOM_DEPS PREPEND baton_ OUTPUT_VARIABLE deps)
  if(ROOM_SOURCES)
    add_library(baton_${name} STATIC ${ROOM_SOURCES})
    target_link_libraries(baton_${name} PUBLIC baton_flags ${deps} ${ROOM_LIBS} PRIVATE ${ROOM_PRIVATE_LIBS})
    baton_unity(baton_${name})
  else()
    add_library(baton_${name} INTERFACE)
    target_link_libraries(baton_${name} INTERFACE baton_flags ${deps} ${ROOM_LIBS})
  endif()
endfunction()

# A test's own code runs once: optimising it costs more than it saves. And it is full of what only clang counts as a
# conversion; that word must stand behind baton_flags' -Wconversion, which takes it back.
set(BATON_TEST_FLAGS -O0)
add_library(baton_test_warnings INTERFACE)
target_compile_options(baton_test_warnings INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>)

# baton_reads_flags(FILES..): CLI11 is all templates, and reading a command line once needs no more than this; -O3 takes
# twice the time to compile.
function(baton_reads_flags)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O1)
endfunction()

# baton_test(NAME SOURCES.. DEPS.. LIBS.. LABELS.. TIMEOUT n): one GoogleTest program, one CTest entry.
function(baton_test name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "SOURCES;DEPS;LIBS;LABELS" ${ARGN})
  list(TRANSFORM TEST_DEPS PREPEND baton_ OUTPUT_VARIABLE deps)
  if(NOT TEST_LABELS)
    set(TEST_LABELS unit)
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  add_executable(${name} ${TEST_SOURCES})
  baton_unity(${name})
  target_link_libraries(${name} PRIVATE baton_flags ${deps} ${TEST_LIBS} GTest::gmock GTest::gtest_main
    baton_test_warnings)
  target_compile_options(${name} PRIVATE ${BATON_TEST_FLAGS})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${TEST_LABELS}" TIMEOUT ${TEST_TIMEOUT} ENVIRONMENT GTEST_BRIEF=1)
endfunction()
