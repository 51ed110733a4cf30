// Checkpoints of one process: what is read is what was written, other programs read it too, and bad files are
// refused.
#include "cartan/store/checkpoint.hpp"

#include <gmock/gmock.h>
#include <hdf5.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "cartan/core/file.hpp"
#include "cartan/core/json.hpp"
#include "checkpoint_data.hpp"

namespace cartan::store {
namespace {

using namespace cartan::testing;
using ::testing::HasSubstr;

/// What a command prints, and its exit status.
std::pair<std::string, int> run(const std::string& command) {
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer{};
  while (const auto got = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), got);
  return {text, ::pclose(pipe)};
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(Checkpoint, GivesBackTensorsAndState) {
  const ScratchFolder folder;
  const auto path = folder / "deep/er/step-7.h5";
  const WriteReport report = write_alone(path, 7);
  expect_content(path, sample_tensors());
  const CheckpointReader reader(path);
  EXPECT_EQ(reader.state(), sample_state(7));
  EXPECT_EQ(report.bytes, std::filesystem::file_size(path));
  EXPECT_EQ(report.bytes, reader.file_bytes());
  EXPECT_FALSE(report.collective);
  EXPECT_GT(report.seconds, 0);
}

TEST(Checkpoint, LeavesNoTemporaryFile) {
  const ScratchFolder folder;
  write_alone(folder / "step-1.h5", 1);
  write_alone(folder / "step-1.h5", 1);  // over an older one
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Checkpoint, ReadsAnyRangeOfElements) {
  const ScratchFolder folder;
  write_alone(folder / "a.h5", 1);
  const CheckpointReader reader(folder / "a.h5");
  const TensorInfo& tensor = reader.tensor("model/layers.1.f16");
  const auto all = tensor_bytes(tensor);
  for (const auto& [first, count] : {std::pair<Index, Index>{0, 0}, {131073, 0}, {131072, 1}, {1, 131000}}) {
    std::vector<std::byte> got(static_cast<std::size_t>(count) * 2);
    reader.read(tensor.path, first, count, got.data());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin() + 2 * first));
  }
  std::byte none{};
  EXPECT_THROW(reader.read(tensor.path, 131073, 1, &none), InternalError);
  EXPECT_THROW(reader.read(tensor.path, -1, 1, &none), InternalError);
}

TEST(Checkpoint, NamesATensorThatIsNotThere) {
  const ScratchFolder folder;
  write_alone(folder / "a.h5", 1);
  const CheckpointReader reader(folder / "a.h5");
  EXPECT_TRUE(reader.has("model/one"));
  EXPECT_FALSE(reader.has("model/two"));
  const std::string message = message_of<DataError>([&] { reader.tensor("model/embed.weigth"); });
  EXPECT_THAT(message, ::testing::AllOf(HasSubstr("a.h5"), HasSubstr("model/embed.weigth"),
                                        HasSubstr("near: model/embed.weight")));
}

TEST(Checkpoint, HoldsNothingOrManyTensors) {
  const ScratchFolder folder;
  write_alone(folder / "none.h5", 1, 1, {});
  expect_content(folder / "none.h5", {});
  std::vector<TensorInfo> many;
  for (int i = 0; i < 3000; ++i)
    many.push_back(
        {fmt::format("model/layers.{}.a_rather_long_name_of_a_parameter.weight", i), DType::f32, {i % 7}});
  write_alone(folder / "many.h5", 1, 1, many);
  const CheckpointReader reader(folder / "many.h5");
  EXPECT_EQ(reader.tensors(), many);
  reader.verify();
}

TEST(Checkpoint, HoldsTensorsOfManyBlocks) {
  const ScratchFolder folder;
  const std::vector<TensorInfo> tensors{{"model/a", DType::f32, {1000, 1501}}, {"model/b", DType::f32, {3}}};
  write_alone(folder / "a.h5", 1, 1, tensors);
  expect_content(folder / "a.h5", tensors);
}

TEST(Checkpoint, DependsOnItsContentOnly) {
  const ScratchFolder folder;
  write_alone(folder / "a.h5", 3);
  write_alone(folder / "b.h5", 3);
  EXPECT_TRUE(read_file(folder / "a.h5") == read_file(folder / "b.h5"));
}

TEST(Checkpoint, IsDescribedForPeople) {
  const ScratchFolder folder;
  write_alone(folder / "a.h5", 7);
  const Json json = describe(CheckpointReader(folder / "a.h5"));
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["tokens"], 7 * 4096);
  EXPECT_EQ(json["tensors"].size(), sample_tensors().size());
  EXPECT_EQ(json["tensors"][0]["shape"], Json({257, 301}));
  EXPECT_EQ(json["tensors"][3]["dtype"], "bf16");
  EXPECT_EQ(json["parameters"], 257 * 301 + 65 + 65536 + 231 + 131073 + 0 + 1);
  EXPECT_EQ(json["bytes"], std::filesystem::file_size(folder / "a.h5"));
}

TEST(Checkpoint, IsReadByH5dump) {
  if (run("h5dump --version").second != 0) GTEST_SKIP() << "no h5dump";
  const ScratchFolder folder;
  const auto path = folder / "a.h5";
  write_alone(path, 7);
  const auto [header, status] = run("h5dump -H " + path.string());
  EXPECT_EQ(status, 0) << header;
  for (const char* word :
       {"GROUP \"model\"", "GROUP \"exp_avg_sq\"", "DATASET \"layers.0.norm.weight\"", "ATTRIBUTE \"step\"",
        "ATTRIBUTE \"format_version\"", "( 257, 301 )", "H5T_IEEE_F32LE"})
    EXPECT_THAT(header, HasSubstr(word));
  EXPECT_THAT(run("h5dump -a /step " + path.string()).first, HasSubstr("(0): 7"));
  EXPECT_THAT(run("h5dump -d /state " + path.string()).first, HasSubstr("loss_scale"));
}

TEST(Checkpoint, IsReadByH5py) {
  std::string python;
  for (const char* name : {"python3", "/usr/bin/python3"})
    if (python.empty() && run(std::string(name) + " -c 'import h5py'").second == 0) python = name;
  if (python.empty()) GTEST_SKIP() << "no h5py";
  const ScratchFolder folder;
  const std::vector<TensorInfo> tensors{
      {"model/f32", DType::f32, {2, 3}}, {"model/bf16", DType::bf16, {4}}, {"model/f16", DType::f16, {2}}};
  const std::vector<float> f32{0, 1, -2.5f, 3, 1e30f, 5};
  const std::vector<std::uint16_t> bf16{0x3f80, 0xc020, 0x7f00, 0x0000},
      f16{0x3c00, 0xc100};  // 1, -2.5, 2^127, 0
  std::vector<Slab> slabs{{0, 0, 6, const_cast<float*>(f32.data())},
                          {1, 0, 4, const_cast<std::uint16_t*>(bf16.data())},
                          {2, 0, 2, const_cast<std::uint16_t*>(f16.data())}};
  const auto comm = comm::make_local_communicator("alone");
  write_checkpoint(folder / "a.h5", {{"step", 4}}, tensors, slabs, *comm, {});
  write_text(folder / "read.py",
             "import h5py, json, sys\n"
             "f = h5py.File(sys.argv[1], 'r')\n"
             "print(f.attrs['step'], json.loads(f['state'][()])['step'], f['model/f32'][()].tolist(),\n"
             "      f['model/bf16'][()].tolist(), f['model/f16'][()].tolist(), f.userblock_size)\n");
  const auto [text, status] =
      run(python + " " + (folder / "read.py").string() + " " + (folder / "a.h5").string());
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text, fmt::format("4 4 [[0.0, 1.0, -2.5], [3.0, {}, 5.0]] [1.0, -2.5, {}, 0.0] [1.0, -2.5] 512\n",
                              "1.0000000150474662e+30", "1.7014118346046923e+38"));
}

TEST(Checkpoint, RefusesWhatIsNotOne) {
  const ScratchFolder folder;
  const auto refuse = [&](const std::string& name) {
    const auto message = message_of<DataError>([&] { CheckpointReader reader(folder / name); });
    EXPECT_THAT(message, HasSubstr((folder / name).string()));
    return message;
  };
  EXPECT_THROW(CheckpointReader(folder / "missing.h5"), MissingError);
  write_text(folder / "empty.h5", "");
  EXPECT_THAT(refuse("empty.h5"), HasSubstr("empty"));
  write_text(folder / "text.h5", "It was a dark and stormy night");
  EXPECT_THAT(refuse("text.h5"), HasSubstr("not a checkpoint"));
  write_text(folder / "zeros.h5", std::string(5000, '\0'));
  EXPECT_THAT(refuse("zeros.h5"), HasSubstr("never finished"));
  std::filesystem::create_directory(folder / "folder.h5");
  EXPECT_THAT(refuse("folder.h5"), HasSubstr("folder"));
  ::mkfifo((folder / "pipe.h5").c_str(), 0600);
  EXPECT_THAT(refuse("pipe.h5"), HasSubstr("regular file"));
  H5Fclose(H5Fcreate((folder / "foreign.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  EXPECT_THAT(refuse("foreign.h5"), HasSubstr("HDF5"));
}

TEST(Checkpoint, RefusesANewerFormatByItsVersion) {
  const ScratchFolder folder;
  write_alone(folder / "a.h5", 1);
  std::string bytes = read_file(folder / "a.h5");
  const auto version = bytes.find("format 1");
  bytes.replace(version, 8, "format 9");
  write_text(folder / "a.h5", bytes);
  EXPECT_THAT(message_of<DataError>([&] { CheckpointReader reader(folder / "a.h5"); }),
              HasSubstr("newer cartan"));
}

/// Opens and verifies; true if the file was accepted.
bool accepts(const std::filesystem::path& path) {
  try {
    CheckpointReader(path).verify();
    return true;
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path.string()));
    return false;
  }
}

const std::vector<TensorInfo> kSmall{{"model/a", DType::f32, {37}}, {"model/b", DType::bf16, {3, 5}}};

TEST(Checkpoint, NoticesEveryTruncation) {
  const ScratchFolder folder;
  const auto path = folder / "a.h5";
  write_alone(path, 1, 1, kSmall);
  ASSERT_TRUE(accepts(path));
  const std::string whole = read_file(path);
  for (std::size_t size = 0; size < whole.size(); size += size < 600 ? 1 : 97) {
    write_text(path, std::string_view(whole).substr(0, size));
    EXPECT_FALSE(accepts(path)) << size;
  }
  write_text(path, whole + "x");
  EXPECT_FALSE(accepts(path));
}

TEST(Checkpoint, NoticesEveryFlippedBit) {
  const ScratchFolder folder;
  const auto path = folder / "a.h5";
  write_alone(path, 1, 1, kSmall);
  const std::string whole = read_file(path);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](std::size_t at, char value) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(value);
    file.flush();
  };
  for (std::size_t at = 0; at < whole.size(); ++at) {
    put(at, static_cast<char>(whole[at] ^ (1 << (at % 8))));
    EXPECT_FALSE(accepts(path)) << at;
    put(at, whole[at]);
  }
  EXPECT_TRUE(accepts(path));
}

TEST(Checkpoint, SaysWhichElementsAreDamaged) {
  const ScratchFolder folder;
  const auto path = folder / "a.h5";
  const std::vector<TensorInfo> tensors{{"model/a", DType::f32, {100}},
                                        {"model/b", DType::f32, {65536 + 10}}};
  write_alone(path, 1, 1, tensors);
  std::string bytes = read_file(path);
  bytes[bytes.size() - 3] ^= 4;
  write_text(path, bytes);
  const CheckpointReader reader(path);  // opens: values are looked at by verify() only
  EXPECT_THAT(message_of<DataError>([&] { reader.verify(); }), HasSubstr("model/b, elements [65536, 65546)"));
  EXPECT_NO_THROW(reader.verify_part(0, 3));
  EXPECT_THROW(reader.verify_part(2, 3), DataError);
}

}  // namespace
}  // namespace cartan::store
