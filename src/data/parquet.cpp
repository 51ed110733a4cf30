// Record batches of one column or two, which Arrow reads row group by row group.
#include "parquet.hpp"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/util/config.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>

#include <algorithm>
#include <utility>

#include "cartan/core/error.hpp"
#include "cartan/data/tokenize.hpp"

namespace cartan::data {
namespace {

/// Rows that Arrow hands over at a time.
constexpr std::int64_t kBatchRows = 4096;

void check(const arrow::Status& status, const std::string& path) {
  if (!status.ok()) throw DataError("{}: not a Parquet file that can be read: {}", path, status.message());
}

bool is_text(const arrow::DataType& type) {
  return type.id() == arrow::Type::STRING || type.id() == arrow::Type::LARGE_STRING;
}

/// Lists of integers that 64 bits with a sign hold.
bool is_id_list(const arrow::DataType& type) {
  const bool is_list = type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST;
  return is_list && arrow::is_integer(type.field(0)->type()->id()) &&
         type.field(0)->type()->id() != arrow::Type::UINT64;
}

template <class Array>
void append_texts(const arrow::Array& column, std::vector<std::string>& texts) {
  const auto& array = static_cast<const Array&>(column);
  for (std::int64_t i = 0; i < array.length(); ++i)
    texts.emplace_back(array.IsNull(i) ? std::string_view() : std::string_view(array.GetView(i)));
}

template <class Array>
void append_numbers(const arrow::Array& column, std::int64_t begin, std::int64_t end,
                    std::vector<std::int64_t>& numbers) {
  const auto& array = static_cast<const Array&>(column);
  // A null is no id of any vocabulary.
  for (std::int64_t i = begin; i < end; ++i)
    numbers.push_back(array.IsNull(i) ? -1 : static_cast<std::int64_t>(array.Value(i)));
}

void append_integers(const arrow::Array& values, std::int64_t begin, std::int64_t end,
                     std::vector<std::int64_t>& numbers) {
  switch (values.type_id()) {
    case arrow::Type::INT8:
      return append_numbers<arrow::Int8Array>(values, begin, end, numbers);
    case arrow::Type::UINT8:
      return append_numbers<arrow::UInt8Array>(values, begin, end, numbers);
    case arrow::Type::INT16:
      return append_numbers<arrow::Int16Array>(values, begin, end, numbers);
    case arrow::Type::UINT16:
      return append_numbers<arrow::UInt16Array>(values, begin, end, numbers);
    case arrow::Type::INT32:
      return append_numbers<arrow::Int32Array>(values, begin, end, numbers);
    case arrow::Type::UINT32:
      return append_numbers<arrow::UInt32Array>(values, begin, end, numbers);
    default:
      return append_numbers<arrow::Int64Array>(values, begin, end, numbers);
  }
}

template <class Array>
void append_lists(const arrow::Array& column, std::vector<std::vector<std::int64_t>>& lists) {
  const auto& array = static_cast<const Array&>(column);
  for (std::int64_t i = 0; i < array.length(); ++i) {
    lists.emplace_back();
    if (!array.IsNull(i))
      append_integers(*array.values(), array.value_offset(i), array.value_offset(i + 1), lists.back());
  }
}

void append_lists_of(const arrow::Array& column, std::vector<std::vector<std::int64_t>>& lists) {
  column.type_id() == arrow::Type::LIST ? append_lists<arrow::ListArray>(column, lists)
                                        : append_lists<arrow::LargeListArray>(column, lists);
}

}  // namespace

struct ParquetFile::Reader {
  std::string path;
  std::unique_ptr<parquet::arrow::FileReader> file;
  bool holds_ids = false;
  std::vector<int> columns;  ///< of the file's leaves: the text, or the ids and labels

  /// Adds a column; false where there is none of this name.
  bool add(const std::string& name, bool wants_ids) {
    std::shared_ptr<arrow::Schema> schema;
    check(file->GetSchema(&schema), path);
    const std::shared_ptr<arrow::Field> field = schema->GetFieldByName(name);
    if (!field) {
      if (schema->GetAllFieldIndices(name).size() > 1)
        throw DataError("{}: the column {} is there twice", path, name);
      return false;
    }
    if (wants_ids ? !is_id_list(*field->type()) : !is_text(*field->type()))
      throw DataError(
          "{}: the column {} has the type {}, expected {}", path, name, field->type()->ToString(),
          wants_ids ? "a list of integers (token ids)" : "string; choose another column with --json-key");
    const auto& leaves = *file->parquet_reader()->metadata()->schema();
    for (int leaf = 0; leaf < leaves.num_columns(); ++leaf)
      if (leaves.GetColumnRoot(leaf)->name() == name) columns.push_back(leaf);
    return true;
  }
};

ParquetFile::ParquetFile(const std::string& path, std::string_view json_key)
    : reader_(std::make_unique<Reader>()) {
  reader_->path = path;
  try {
    const auto input = arrow::io::ReadableFile::Open(path);
    if (!input.ok()) throw IoError("cannot read {}: {}", path, input.status().message());
    parquet::arrow::FileReaderBuilder builder;
    check(builder.Open(*input), path);
    parquet::ArrowReaderProperties properties;
    properties.set_batch_size(kBatchRows);
    properties.set_pre_buffer(false);
    builder.properties(properties);
    check(builder.Build(&reader_->file), path);
    reader_->file->set_use_threads(false);
    if (reader_->add(std::string(json_key), false)) return;
    reader_->holds_ids = reader_->add("input_ids", true);
    if (reader_->holds_ids) {
      reader_->add("labels", true);
      return;
    }
    std::shared_ptr<arrow::Schema> schema;
    check(reader_->file->GetSchema(&schema), path);
    throw DataError("{}: no column {} and no input_ids, found {}; choose one with --json-key", path, json_key,
                    fmt::join(schema->field_names(), ", "));
  } catch (const parquet::ParquetException& error) {
    throw DataError("{}: not a Parquet file that can be read: {}", path, error.what());
  }
}

ParquetFile::~ParquetFile() = default;

bool ParquetFile::holds_ids() const { return reader_->holds_ids; }

void ParquetFile::for_each_batch(Index chunk_bytes, const std::function<void(ParquetRows&&)>& visit) {
  const std::string& path = reader_->path;
  ParquetRows rows;
  rows.has_labels = reader_->columns.size() > 1;
  Index bytes = 0, number = 0;
  const auto hand_over = [&] {
    const bool has_labels = rows.has_labels;
    visit(std::exchange(rows, ParquetRows{.first_row = number, .has_labels = has_labels}));
    bytes = 0;
  };
  try {
    for (int group = 0; group < reader_->file->num_row_groups(); ++group) {
      const auto opened = reader_->file->GetRecordBatchReader({group}, reader_->columns);
      check(opened.status(), path);
      const std::unique_ptr<arrow::RecordBatchReader>& batches = *opened;
      for (;;) {
        std::shared_ptr<arrow::RecordBatch> batch;
        check(batches->ReadNext(&batch), path);
        if (!batch) break;
        if (reader_->holds_ids) {
          const std::size_t before = rows.ids.size();
          append_lists_of(*batch->GetColumnByName("input_ids"), rows.ids);
          for (std::size_t i = before; i < rows.ids.size(); ++i)
            bytes += static_cast<Index>(rows.ids[i].size() * sizeof(std::int64_t));
          if (rows.has_labels) append_lists_of(*batch->GetColumnByName("labels"), rows.labels);
        } else {
          const std::size_t before = rows.texts.size();
          const arrow::Array& column = *batch->column(0);
          column.type_id() == arrow::Type::STRING ? append_texts<arrow::StringArray>(column, rows.texts)
                                                  : append_texts<arrow::LargeStringArray>(column, rows.texts);
          for (std::size_t i = before; i < rows.texts.size(); ++i)
            bytes += static_cast<Index>(rows.texts[i].size());
        }
        number += batch->num_rows();
        if (bytes >= chunk_bytes) hand_over();
      }
    }
  } catch (const parquet::ParquetException& error) {
    throw DataError("{}: not a Parquet file that can be read: {}", path, error.what());
  }
  if (!rows.texts.empty() || !rows.ids.empty()) hand_over();
}

std::string parquet_library() { return "Apache Arrow " ARROW_VERSION_STRING; }

}  // namespace cartan::data
