# Looks for the CUDA toolkit and NCCL without insisting on them: a machine without them builds everything else. Sets
# CARTAN_CUDA, and CARTAN_CUDA_STATE, one sentence for the summary.
set(oldest 12.4)
set(CARTAN_CUDA OFF)
if(NOT CARTAN_WITH_CUDA)
  set(CARTAN_CUDA_STATE "no (CARTAN_WITH_CUDA=OFF)")
elseif(CARTAN_SANITIZE)
  set(CARTAN_CUDA_STATE "no (a build with sanitizers)")
else()
  find_package(CUDAToolkit QUIET)
  find_path(CARTAN_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} $ENV{NCCL_HOME}/include)
  find_library(CARTAN_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} $ENV{NCCL_HOME}/lib)
  mark_as_advanced(CARTAN_NCCL_INCLUDE_DIR CARTAN_NCCL_LIBRARY)
  if(NOT CUDAToolkit_NVCC_EXECUTABLE)
    set(CARTAN_CUDA_STATE "no (nvcc not found; put it on PATH or set CUDAToolkit_ROOT)")
  elseif(CUDAToolkit_VERSION VERSION_LESS ${oldest})
    set(CARTAN_CUDA_STATE "no (toolkit ${CUDAToolkit_VERSION} found, ${oldest} is needed)")
  elseif(NOT TARGET CUDA::cublasLt)
    set(CARTAN_CUDA_STATE "no (toolkit ${CUDAToolkit_VERSION} found, but not its cuBLAS)")
  elseif(NOT CARTAN_NCCL_INCLUDE_DIR OR NOT CARTAN_NCCL_LIBRARY)
    set(CARTAN_CUDA_STATE "no (toolkit ${CUDAToolkit_VERSION} found, but no nccl.h or libnccl; set NCCL_HOME)")
  else()
    set(CARTAN_CUDA ON)
    set(CARTAN_CUDA_STATE "toolkit ${CUDAToolkit_VERSION}, NCCL ${CARTAN_NCCL_LIBRARY}")
  endif()
endif()
if(CARTAN_TEST_ON_GPU AND NOT CARTAN_CUDA)
  message(FATAL_ERROR "CARTAN_TEST_ON_GPU=ON needs a build with CUDA; CUDA: ${CARTAN_CUDA_STATE}")
endif()

# What the host code of the cuda device and of the communicators calls: kernels and the libraries of CUDA. A program with
# the property CARTAN_EMULATED gets their stand-ins (tests/emu) instead. Nobody links the driver: programs start without.
add_library(cartan_cuda_runtime INTERFACE)
add_library(cartan::cuda_runtime ALIAS cartan_cuda_runtime)
set_target_properties(cartan_cuda_runtime PROPERTIES EXPORT_NAME cuda_runtime)
set_property(GLOBAL APPEND PROPERTY CARTAN_ROOMS cartan_cuda_runtime)
if(CARTAN_CUDA)
  # CMake 3.25 does not know that nvcc speaks C++20.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
  endif()
  enable_language(CUDA)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  target_include_directories(cartan_cuda_runtime
                             INTERFACE $<BUILD_INTERFACE:${CUDAToolkit_INCLUDE_DIRS}>
                                       $<BUILD_INTERFACE:${CARTAN_NCCL_INCLUDE_DIR}>)
  target_link_libraries(
    cartan_cuda_runtime
    INTERFACE
      "$<BUILD_INTERFACE:$<IF:$<BOOL:$<TARGET_PROPERTY:CARTAN_EMULATED>>,cartan_emu,cartan_kernels>>"
      "$<INSTALL_INTERFACE:cartan::kernels>")
endif()
