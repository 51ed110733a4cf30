# `cmake --install` gives bin/cartan, the headers, the room libraries and a package that find_package() finds.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cartan)
set(share_dir ${CMAKE_INSTALL_DATADIR}/cartan)

get_property(rooms GLOBAL PROPERTY CARTAN_ROOMS)
install(TARGETS cartan_options ${rooms} EXPORT cartan-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT cartan-targets NAMESPACE cartan:: DESTINATION ${package_dir})
if(TARGET cartan)
  # Libraries outside the system's paths (spack, modules) are found without LD_LIBRARY_PATH.
  set_target_properties(cartan PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS cartan RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/cartan DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.hpp")

# The package looks for the same third-party packages in the same way as the build: by the same file.
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/cartan-config.cmake.in ${PROJECT_BINARY_DIR}/cartan-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cartan-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cartan-config.cmake ${PROJECT_BINARY_DIR}/cartan-config-version.cmake
              ${PROJECT_SOURCE_DIR}/cmake/cartan_dependencies.cmake
        DESTINATION ${package_dir})

install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${share_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/slurm DESTINATION ${share_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
