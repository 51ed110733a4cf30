// The name of the JSON type, for headers that only pass it on: the library's whole header costs a second a
// source.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace cartan {

using Json = nlohmann::ordered_json;

}  // namespace cartan
