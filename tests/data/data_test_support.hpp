// What the tests of this room share: a folder that disappears, and small datasets in it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cartan/core/file.hpp"
#include "cartan/data/indexed_dataset_writer.hpp"

namespace cartan::data {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "cartan_data_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  const std::string& path() const { return path_; }
  /// Writes a new file, and the folders above it; not synced to disk, which is slow.
  std::string put(std::string_view name, std::string_view content) const {
    const std::string file = *this / name;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::filesystem::remove(file);
    std::ofstream(file, std::ios::binary) << content;
    return file;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_;
};

using Documents = std::vector<std::vector<std::int32_t>>;

/// One sequence a document.
inline void write_documents(const std::string& prefix, const Documents& documents,
                            TokenType type = TokenType::u16) {
  IndexedDatasetWriter writer(prefix, type);
  for (const auto& ids : documents) {
    writer.add_tokens(ids);
    writer.end_document();
  }
  writer.finish();
}

/// Documents of the given lengths; the tokens of the whole file count 0, 1, 2, ...
inline Documents counting_documents(const std::vector<Index>& lengths) {
  Documents documents;
  std::int32_t next = 0;
  for (const Index length : lengths) {
    documents.emplace_back(static_cast<std::size_t>(length));
    std::iota(documents.back().begin(), documents.back().end(), next);
    next += static_cast<std::int32_t>(length);
  }
  return documents;
}

inline std::vector<std::int32_t> all_tokens(const IndexedDataset& dataset) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(dataset.tokens()));
  dataset.read_tokens(0, ids);
  return ids;
}

/// The message of the exception of type E that `function` throws.
template <class E, class Function>
std::string message_of(Function&& function) {
  try {
    function();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no exception";
  return {};
}

}  // namespace cartan::data
