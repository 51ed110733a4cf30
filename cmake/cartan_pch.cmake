# Headers that many sources include and that are slow to parse: parsed once for the rooms and once for the tests
# (-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON: not at all). Sources include what they need all the same.
#
# cartan_add_pch(NAME [HEADERS ...] [LIBRARIES ...]): NAME is for target_precompile_headers(... REUSE_FROM NAME) of
# targets with the same compiler flags.
function(cartan_add_pch name)
  cmake_parse_arguments(PCH "" "" "HEADERS;LIBRARIES" ${ARGN})
  set(source ${PROJECT_BINARY_DIR}/pch/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "// A target needs a source.\n")
  add_library(${name} OBJECT ${source})
  target_link_libraries(${name} PRIVATE cartan::options fmt::fmt nlohmann_json::nlohmann_json ${PCH_LIBRARIES})
  target_precompile_headers(
    ${name}
    PRIVATE
    <algorithm>
    <array>
    <chrono>
    <cmath>
    <filesystem>
    <functional>
    <map>
    <memory>
    <optional>
    <span>
    <string>
    <vector>
    <fmt/format.h>
    <nlohmann/json.hpp>
    ${PCH_HEADERS})
endfunction()

cartan_add_pch(cartan_pch)
set_target_properties(cartan_pch PROPERTIES POSITION_INDEPENDENT_CODE ON)
