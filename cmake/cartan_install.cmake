# `cmake --install` gives bin/cartan, the headers, the room libraries and a package that find_package() finds.
include(CMakePackageConfigHelpers)
