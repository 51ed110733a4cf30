# Third-party packages, found and never vendored. Each is in Debian 12 and in spack.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(MPI REQUIRED COMPONENTS CXX)
# Debian keeps serial and parallel HDF5 side by side; the parallel one is asked for.
set(HDF5_PREFER_PARALLEL ON)
find_package(HDF5 REQUIRED COMPONENTS C)
if(NOT HDF5_IS_PARALLEL)
  message(FATAL_ERROR "cartan needs parallel HDF5 (Debian: libhdf5-openmpi-dev; spack: hdf5+mpi), found a serial one "
                      "in ${HDF5_INCLUDE_DIRS}")
endif()
find_package(Boost 1.74 REQUIRED COMPONENTS program_options)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(hwy REQUIRED)
find_package(yaml-cpp 0.7 REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # the name since 0.8
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
# 10.40 knows the property White_Space.
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.40)

# cartan_find_library(NAME HEADER LIBRARY [SUFFIX]): an imported target for a library without a usable package file.
# (Debian's dnnl-config.cmake asks for OpenCL, which cartan does not use.)
function(cartan_find_library target header library)
  find_path(${target}_INCLUDE_DIR ${header} PATH_SUFFIXES ${ARGN} REQUIRED)
  find_library(${target}_LIBRARY ${library} REQUIRED)
  add_library(${target} UNKNOWN IMPORTED)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${${target}_LIBRARY}
                                             INTERFACE_INCLUDE_DIRECTORIES ${${target}_INCLUDE_DIR})
endfunction()
cartan_find_library(onednn dnnl.hpp dnnl)
cartan_find_library(utf8proc utf8proc.h utf8proc)
# Apache Arrow is not in Debian 12, so it is used only where it is asked for. Libraries without package files are
# those of Python's pyarrow.
set(CARTAN_ARROW_STATE "no (CARTAN_WITH_ARROW=OFF)")
if(CARTAN_WITH_ARROW)
  find_package(Arrow CONFIG QUIET)
  find_package(Parquet CONFIG QUIET)
  add_library(cartan_arrow INTERFACE IMPORTED)
  if(TARGET Parquet::parquet_shared)
    set(CARTAN_ARROW_STATE "${Arrow_VERSION}")
    target_link_libraries(cartan_arrow INTERFACE Arrow::arrow_shared Parquet::parquet_shared)
  else()
    cartan_find_library(arrow arrow/api.h arrow)
    cartan_find_library(parquet parquet/arrow/reader.h parquet)
    set(CARTAN_ARROW_STATE "${arrow_LIBRARY}")
    target_link_libraries(cartan_arrow INTERFACE parquet arrow)
  endif()
endif()
