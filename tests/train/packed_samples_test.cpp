// Instruction data packed into sequences trains as its samples do one by one: the same loss and, in sum, the
// same gradients, whatever shares a sequence, on every mesh that cuts it.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "cartan/data/indexed_dataset_writer.hpp"
#include "cartan/data/sampler.hpp"
#include "train/toy_run.hpp"

namespace cartan::train {
namespace {

constexpr Index kPlaces = 24;  // in a row: meshes of up to 4 ranks can cut it

struct Sample {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counted;
};

/// Samples of 2 to 13 tokens, of which the later ones count.
std::vector<Sample> make_samples() {
  const RandomStream random(5, std::uint64_t{1});
  std::vector<Sample> samples(24);
  std::uint64_t at = 0;
  for (Sample& sample : samples) {
    const std::size_t length = 2 + random.bits(at++) % 12;
    for (std::size_t i = 0; i < length; ++i) {
      sample.ids.push_back(static_cast<std::int32_t>(random.bits(at++) % 61));
      sample.counted.push_back(i > 0 && (i + 1 == length || (i > length / 3 && i % 5 != 4)) ? 1 : 0);
    }
  }
  return samples;
}

/// Writes the samples to files of this process and opens them.
std::shared_ptr<const data::IndexedDataset> dataset_of(const std::vector<Sample>& samples) {
  const std::string prefix =
      (std::filesystem::temp_directory_path() / fmt::format("cartan_packed_{}", ::getpid())).string();
  data::IndexedDatasetWriter writer(prefix, data::TokenType::u16, true);
  for (const Sample& sample : samples) {
    writer.add_tokens(sample.ids, sample.counted);
    writer.end_document();
  }
  writer.finish();
  auto dataset = std::make_shared<const data::IndexedDataset>(prefix);
  for (const char* ending : {".bin", ".idx", ".mask"}) std::filesystem::remove(prefix + ending);
  return dataset;
}

/// One sample a row; what is left of the row follows it and predicts nothing.
data::Batch alone_in_rows(const std::vector<Sample>& samples, LeafRange leaves) {
  data::Batch batch;
  batch.sequences = leaves.end - leaves.begin;
  batch.seq = kPlaces;
  for (Index s = leaves.begin; s < leaves.end; ++s) {
    const Sample& sample = samples[static_cast<std::size_t>(s)];
    for (std::size_t t = 0; t < static_cast<std::size_t>(kPlaces); ++t) {
      const bool predicts = t + 1 < sample.ids.size() && sample.counted[t + 1] != 0;
      batch.tokens.push_back(t + 1 < sample.ids.size() ? sample.ids[t] : 17);
      batch.targets.push_back(predicts ? sample.ids[t + 1] : data::kIgnoredTarget);
      batch.positions.push_back(static_cast<std::int32_t>(t));
      batch.document_start.push_back(0);
    }
  }
  return batch;
}

/// Two updates on the same batch.
Outcome train(Config config, comm::Mesh& mesh, const std::function<data::Batch(LeafRange)>& rows) {
  config.data.seq = kPlaces;
  config.batch.micro = 1;
  config.mesh = mesh.shape();
  config.run.threads = 1;
  config.run.device = cartan::testing::test_device_name();
  config.optim.clip = 0;
  config.optim.eps = 1e-2;  // else rounding decides where elements go whose gradients are nearly zero
  const auto device = cartan::testing::make_test_device(1);
  Engine engine(config, *device, mesh, testing::session().thread_multiple());
  engine.state().initialise(config.model, 7);
  Outcome outcome;
  for (int step = 1; step <= 2; ++step) {
    Index next = 0;
    const StepResult result = engine.train_step(step, 1e-2, [&](data::MicroBatch& micro) {
      const LeafRange leaves = engine.share().of(next++);
      micro.first_leaf = leaves.begin;
      micro.batch = rows(leaves);
    });
    outcome.numbers.insert(outcome.numbers.end(), {result.loss, result.grad_norm});
    outcome.numbers.push_back(static_cast<double>(result.targets));
  }
  outcome.parameters = testing::gather_tensors(
      config.model, testing::master_values(engine.state(), &shard::GradientPart::alone), mesh.world());
  return outcome;
}

std::vector<comm::MeshShape> meshes_of(int ranks) {
  if (ranks == 1) return {{1, 1, 1, 1}};
  if (ranks == 2) return {{1, 2, 1, 1}, {1, 1, 2, 1}, {1, 1, 1, 2}, {2, 1, 1, 1}};
  return {{1, 2, 2, 1}, {1, 1, 4, 1}};
}

TEST(PackedSamples, TrainAsEachSampleAloneDoes) {
  const std::vector<Sample> samples = make_samples();
  const auto dataset = dataset_of(samples);
  comm::Session& session = testing::session();
  for (const bool shuffle : {true, false}) {
    const data::Sampler sampler({{dataset, {0, dataset->tokens()}, 0}},
                                {.seq = kPlaces, .shuffle = shuffle, .vocab_size = 61});
    ASSERT_EQ(sampler.packing(0)->samples.size(), samples.size());
    const Index rows = sampler.samples();
    ASSERT_GE(static_cast<Index>(samples.size()), 2 * rows);
    for (const bool tied : {true, false}) {
      Config config = odd_config(tied);
      config.batch.global = static_cast<Index>(samples.size());
      comm::Mesh alone = comm::Mesh::alone();
      const Outcome expected =
          train(config, alone, [&](LeafRange leaves) { return alone_in_rows(samples, leaves); });
      for (const comm::MeshShape& shape : meshes_of(session.world_size())) {
        // As many rows for each replica: those beyond an epoch repeat the first ones, without their targets.
        config.batch.global = ceil_div(rows, Index{shape.dp}) * shape.dp;
        comm::Mesh mesh(session, shape, cartan::testing::test_device_kind());
        const Outcome found = train(config, mesh, [&](LeafRange leaves) {
          std::vector<Index> numbers;
          for (Index row = leaves.begin; row < leaves.end; ++row) numbers.push_back(row);
          data::Batch batch;
          sampler.fill(numbers, batch);
          const auto known =
              static_cast<std::ptrdiff_t>(std::clamp<Index>(rows - leaves.begin, 0, batch.sequences));
          std::fill(batch.targets.begin() + known * kPlaces, batch.targets.end(), data::kIgnoredTarget);
          return batch;
        });
        const std::string where =
            fmt::format("{}, tied {}, shuffle {}", comm::to_string(shape), tied, shuffle);
        EXPECT_EQ(found.numbers[2], expected.numbers[2]) << where;
        expect_near(found, expected, "fp32", where);
      }
    }
  }
}

}  // namespace
}  // namespace cartan::train
