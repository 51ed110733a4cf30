# Runs a job of which rank 1 fails, and checks that it ends within seconds, with the failing rank's exit code and its
# one message; or with exit code CODE and messages that all match MESSAGE.
execute_process(
  COMMAND ${MPIEXEC} --allow-run-as-root --oversubscribe --bind-to none -n 3 ${JOB}
  RESULT_VARIABLE code
  OUTPUT_VARIABLE output
  ERROR_VARIABLE errors
  TIMEOUT 15)
set(most 3)
if(NOT DEFINED CODE)
  set(CODE 78)
  set(MESSAGE "^cartan: rank 1 cannot work$")
  set(most 1)
endif()
if(NOT code EQUAL CODE)
  message(FATAL_ERROR "expected exit code ${CODE}, found ${code}:\n${output}${errors}")
endif()
string(REPLACE ";" "," errors "${errors}")
string(REGEX MATCHALL "cartan: [^\n]*" messages "${errors}")
list(LENGTH messages count)
set(others ${messages})
list(FILTER others EXCLUDE REGEX "${MESSAGE}")
if(count EQUAL 0 OR count GREATER most OR NOT others STREQUAL "")
  message(FATAL_ERROR "expected \"${MESSAGE}\", found \"${messages}\" in:\n${output}${errors}")
endif()
