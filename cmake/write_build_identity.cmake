# cmake -DSOURCE=DIR -DFILE=FILE -P write_build_identity.cmake: writes FILE, unless it says the same already.

set(identity "unknown")
find_program(GIT git)
if(GIT)
  # A tarball that lies within somebody's checkout is not of that checkout's commit.
  execute_process(COMMAND "${GIT}" rev-parse --show-prefix WORKING_DIRECTORY "${SOURCE}"
    RESULT_VARIABLE failed OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed AND prefix STREQUAL "")
    execute_process(COMMAND "${GIT}" --no-optional-locks describe --always --dirty --abbrev=12 WORKING_DIRECTORY "${SOURCE}"
      RESULT_VARIABLE failed OUTPUT_VARIABLE said OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT failed AND said MATCHES "^[0-9A-Za-z._/-]+$")
      set(identity "${said}")
    endif()
  endif()
endif()

set(text "#include \"serving/version.h\"\n\nstd::string baton::serving::build_identity() {\n  return \"${identity}\";\n}\n")
set(before "")
if(EXISTS "${FILE}")
  file(READ "${FILE}" before)
endif()
if(NOT text STREQUAL before)
  file(WRITE "${FILE}" "${text}")
endif()
