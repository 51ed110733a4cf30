# What every target of cartan is compiled with: cartan::options carries it, no directory-wide flags.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(cartan_options INTERFACE)
add_library(cartan::options ALIAS cartan_options)
set_target_properties(cartan_options PROPERTIES EXPORT_NAME options)
target_compile_features(cartan_options INTERFACE cxx_std_20)
# A fused multiply-add is used only where the source asks for one: the same bits from every compiler.
target_compile_options(
  cartan_options
  INTERFACE $<BUILD_INTERFACE:-ffp-contract=off>
            $<BUILD_INTERFACE:-Wall>
            $<BUILD_INTERFACE:-Wextra>
            $<BUILD_INTERFACE:-Wshadow>
            $<BUILD_INTERFACE:-Wnon-virtual-dtor>
            $<BUILD_INTERFACE:-Woverloaded-virtual>
            $<$<BOOL:${CARTAN_WERROR}>:$<BUILD_INTERFACE:-Werror>>)
if(CARTAN_SANITIZE)
  target_compile_definitions(cartan_options INTERFACE $<BUILD_INTERFACE:CARTAN_SANITIZED>)
  target_compile_options(cartan_options INTERFACE $<BUILD_INTERFACE:-fsanitize=${CARTAN_SANITIZE}>
                                                  $<BUILD_INTERFACE:-fno-omit-frame-pointer>)
  target_link_options(cartan_options INTERFACE $<BUILD_INTERFACE:-fsanitize=${CARTAN_SANITIZE}>)
endif()
