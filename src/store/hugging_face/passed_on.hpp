// What writers of Hugging Face folders do alike.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cartan::store {

/// Makes the folder. Throws IoError, and ConfigError for one that is not empty unless it may be.
void check_export_folder(const std::filesystem::path& folder, bool overwrite);
/// Removes parameters of an earlier model, which would be taken for this one's: all files of tensors but
/// those that are named, and their index.
void remove_parameters(const std::filesystem::path& folder, const std::vector<std::string>& kept);
/// Copies what belongs to a tokenizer and to generation; nothing from an empty path.
void pass_on(const std::filesystem::path& from, const std::filesystem::path& folder);

}  // namespace cartan::store
