# cartan_add_room(NAME [COLD] SOURCES ... [DEPENDS ...] [PRIVATE ...]): one room = one static library cartan::NAME.
# DEPENDS are other rooms (their headers are seen), PRIVATE are packages that stay inside. COLD rooms have no inner loops.
function(cartan_add_room name)
  cmake_parse_arguments(ROOM "COLD" "" "SOURCES;DEPENDS;PRIVATE" ${ARGN})
  set(target cartan_${name})
  add_library(${target} STATIC ${ROOM_SOURCES})
  add_library(cartan::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                       PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_precompile_headers(${target} REUSE_FROM cartan_pch)
  if(ROOM_COLD)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  target_link_libraries(${target} PUBLIC cartan::options ${ROOM_DEPENDS} PRIVATE ${ROOM_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY CARTAN_ROOMS ${target})
endfunction()

# cartan_slow_sources(SOURCES...): optimized in builds with sanitizers too, whose tests would spend minutes there.
function(cartan_slow_sources)
  if(CARTAN_SANITIZE)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -O1)
    set_property(SOURCE ${ARGN} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# cartan_vector_sources(SOURCES...): loops that Highway compiles once for each instruction set: baseline, SSE4, AVX2 and
# AVX-512 (the ones in between bring nothing); with sanitizers baseline and AVX2, which are the same source. GCC cannot
# compile its intrinsics without optimization.
function(cartan_vector_sources)
  set(options "")
  set(disabled "HWY_SSSE3|HWY_AVX3_DL")
  if(CARTAN_SANITIZE)
    string(APPEND disabled "|HWY_SSE4|HWY_AVX3")
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND (CARTAN_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL Debug))
    set(options -Og)
  endif()
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_DEFINITIONS "HWY_DISABLED_TARGETS=(${disabled})"
                                                 COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# cartan_add_mpi_test(TEST TARGET RANKS): more ranks than cores wait in the kernel.
function(cartan_add_mpi_test test target ranks)
  add_test(NAME ${test} COMMAND ${MPIEXEC_EXECUTABLE} --allow-run-as-root --oversubscribe --bind-to none --mca
                                mpi_yield_when_idle 1 ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${target}>)
  set_tests_properties(${test} PROPERTIES PROCESSORS 2 SKIP_RETURN_CODE 77)
endfunction()

# cartan_list_device_test(TEST TARGET RANKS): a line of device_tests.txt; 0 ranks: not under mpirun.
function(cartan_list_device_test test target ranks)
  set_property(GLOBAL APPEND_STRING PROPERTY CARTAN_DEVICE_TEST_LINES
               "${test} ${ranks} $<PATH:RELATIVE_PATH,$<TARGET_FILE:${target}>,${CMAKE_BINARY_DIR}>\n")
  set_property(GLOBAL APPEND PROPERTY CARTAN_DEVICE_TESTS ${target})
endfunction()

# cartan_add_test(NAME ROOM room [SOURCES ...] [KIND unit|mpi] [RANKS n...] [CUDA_RANKS n...] [SCHEDULES s...] [ON_CUDA]
#                 [TIMEOUT s] [PRIVATE ...]): one GoogleTest program from tests/ROOM/NAME.cpp. KIND mpi runs it under
# mpirun, once for each rank count, as NAME.mpiN. ON_CUDA runs a unit test, CUDA_RANKS an mpi test, once more on the
# emulated cuda device with its access checker, as NAME.cuda and NAME.cudaN; SCHEDULES once more for each schedule of
# streams, without the checker, as NAME.cudaN.lazy and the like. Labels: the room, the kind, cuda. With
# CARTAN_TEST_ON_GPU the device is the machine's GPU, one a rank, and the label gpu. cartan_device_tests builds these
# tests, device_tests.txt lists them for perf/gpu.sh.
function(cartan_add_test name)
  cmake_parse_arguments(TEST "ON_CUDA" "ROOM;KIND;TIMEOUT" "SOURCES;RANKS;CUDA_RANKS;SCHEDULES;PRIVATE" ${ARGN})
  if(NOT TEST_KIND)
    set(TEST_KIND unit)
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  if(CARTAN_SANITIZE)
    math(EXPR TEST_TIMEOUT "${TEST_TIMEOUT} * 5")
  endif()
  if(NOT TEST_SOURCES)
    set(TEST_SOURCES ${name}.cpp)
  endif()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE cartan::${TEST_ROOM} cartan_test_support_${TEST_KIND} ${TEST_PRIVATE})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  set(on_device OFF)
  if(CARTAN_CUDA AND (TEST_ON_CUDA OR TEST_CUDA_RANKS))
    set(on_device ON)
  endif()
  if(CARTAN_TEST_ON_GPU)
    set(device_label gpu)
    set(cuda_environment CARTAN_TEST_DEVICE=cuda)
    if(on_device)
      target_link_libraries(${name} PRIVATE cartan_test_gpu_count)
    endif()
  else()
    set(device_label cuda)
    set(cuda_environment "CARTAN_TEST_DEVICE=cuda;EMU_CHECK=1")
    set_target_properties(${name} PROPERTIES CARTAN_EMULATED ON)
    if(CARTAN_CUDA)
      target_link_libraries(${name} PRIVATE cartan_findings_listener)
    endif()
  endif()
  target_precompile_headers(${name} REUSE_FROM cartan_test_pch)
  # Tests spend their time in the rooms that they test.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  set(device_tests "")
  if(TEST_KIND STREQUAL mpi)
    foreach(ranks ${TEST_RANKS})
      cartan_add_mpi_test(${name}.mpi${ranks} ${name} ${ranks})
      set_tests_properties(${name}.mpi${ranks} PROPERTIES LABELS "${TEST_ROOM};mpi" TIMEOUT ${TEST_TIMEOUT})
    endforeach()
    if(CARTAN_CUDA)
      foreach(ranks ${TEST_CUDA_RANKS})
        cartan_add_mpi_test(${name}.cuda${ranks} ${name} ${ranks})
        list(APPEND device_tests ${name}.cuda${ranks})
        cartan_list_device_test(${name}.cuda${ranks} ${name} ${ranks})
        if(NOT CARTAN_TEST_ON_GPU)
          foreach(schedule ${TEST_SCHEDULES})
            string(REGEX REPLACE ":.*" "" word ${schedule})
            set(test ${name}.cuda${ranks}.${word})
            cartan_add_mpi_test(${test} ${name} ${ranks})
            # The lazy one goes without CUDA graphs, as run.graphs = false does.
            set(environment "CARTAN_TEST_DEVICE=cuda;EMU_SCHEDULE=${schedule}")
            if(word STREQUAL lazy)
              list(APPEND environment CARTAN_TEST_GRAPHS=0)
            endif()
            set_tests_properties(${test} PROPERTIES LABELS "${TEST_ROOM};mpi;cuda" TIMEOUT ${TEST_TIMEOUT} ENVIRONMENT
                                                    "${environment}")
          endforeach()
        endif()
      endforeach()
    endif()
  else()
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS "${TEST_ROOM};unit" TIMEOUT ${TEST_TIMEOUT} SKIP_RETURN_CODE 77)
    if(CARTAN_CUDA AND TEST_ON_CUDA)
      add_test(NAME ${name}.cuda COMMAND ${name})
      list(APPEND device_tests ${name}.cuda)
      cartan_list_device_test(${name}.cuda ${name} 0)
    endif()
  endif()
  # A machine without enough GPUs: support/gpu_count.cpp says so.
  if(device_tests)
    set_tests_properties(
      ${device_tests}
      PROPERTIES LABELS "${TEST_ROOM};${TEST_KIND};${device_label}" TIMEOUT ${TEST_TIMEOUT}
                 ENVIRONMENT "${cuda_environment}" SKIP_REGULAR_EXPRESSION "skipped, too few GPUs")
  endif()
  set_property(GLOBAL APPEND PROPERTY CARTAN_TEST_TARGETS ${name})
endfunction()
