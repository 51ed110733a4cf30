// Files of text or chats among data.train and data.valid.
#pragma once

#include <filesystem>

#include "cartan/comm/communicator.hpp"
#include "cartan/data/config.hpp"

namespace cartan::train {

/// `config` with each text source (data::is_text_source) of data.train and data.valid replaced by the prefix
/// of token files made of it in data.cache, else in `folder`, on a file system that all ranks see. Rank 0
/// makes them. Collective over `world`. Throws what data::cached_tokens() throws, ConfigError where `folder`
/// is empty and needed.
data::DataConfig with_token_files(data::DataConfig config, const std::filesystem::path& folder, int threads,
                                  comm::Communicator& world);

}  // namespace cartan::train
