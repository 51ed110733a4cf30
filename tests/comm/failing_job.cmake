# Runs a job of which rank 1 fails, and checks that it ends within seconds, with the failing rank's exit code and its
# one message.
execute_process(
  COMMAND ${MPIEXEC} --allow-run-as-root --oversubscribe --bind-to none -n 3 ${JOB}
  RESULT_VARIABLE code
  OUTPUT_VARIABLE output
  ERROR_VARIABLE errors
  TIMEOUT 15)
if(NOT code EQUAL 78)
  message(FATAL_ERROR "expected exit code 78, found ${code}:\n${output}${errors}")
endif()
string(REGEX MATCHALL "cartan: [^\n]*" messages "${errors}")
if(NOT messages STREQUAL "cartan: rank 1 cannot work")
  message(FATAL_ERROR "expected one message of rank 1, found \"${messages}\" in:\n${output}${errors}")
endif()
