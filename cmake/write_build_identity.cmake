# cmake -DSOURCE=DIR -DFILE=FILE -P write_build_identity.cmake: writes FILE, unless it says the same already.

set(identity "unknown")
find_program(GIT git)
if(GIT)
  # A tarball that lies within somebody's checkout is not of that checkout's commit.
  execute_process(COMMAND "${GIT}" rev-parse --show-prefix WORKING_DIRECTORY "${SOURCE}"
    RESULT_VARIABLE failed OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed AND prefix STREQUAL "")
    # No tag in it: with one, a shallow clone, a full one and a later tag would name one source in three ways.
    execute_process(COMMAND "${GIT}" --no-optional-locks describe --always --dirty --abbrev=12 --exclude=* WORKING_DIRECTORY "${SOURCE}"
      RESULT_VARIABLE failed OUTPUT_VARIABLE said OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT failed AND said MATCHES "^[0-9A-Za-z._/-]+$")
      set(identity "${said}")
      if(said MATCHES "-dirty$")  # unlike changes of one commit are unlike builds
        execute_process(COMMAND "${GIT}" --no-optional-locks diff HEAD WORKING_DIRECTORY "${SOURCE}"
          OUTPUT_VARIABLE changes ERROR_QUIET)
        string(SHA1 hash "${changes}")
        string(SUBSTRING "${hash}" 0 8 hash)
        set(identity "${said}-${hash}")
      endif()
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
