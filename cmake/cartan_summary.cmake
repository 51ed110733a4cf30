# What was found, at the end of the configure output.
message(STATUS "cartan ${PROJECT_VERSION} (${CMAKE_BUILD_TYPE})")
