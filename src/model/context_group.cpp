// Which exchange brings the parts of a sequence together, and which configurations each can serve.
#include "cartan/model/context_group.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cartan/core/text.hpp"
#include "model/context_exchange.hpp"

namespace cartan::model {

using device::AttentionShape;
using device::ConstMatrix;
using device::ConstVector;
using device::Matrix;
using device::SequenceShape;
using device::Vector;

namespace {

/// "1, 2 or 4": the values up to `limit` with which `fits`.
template <class Fits>
std::string values_that_fit(Index limit, const Fits& fits) {
  std::vector<Index> values;
  for (Index value = 1; value <= limit; ++value) {
    if (fits(value)) values.push_back(value);
  }
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += i + 1 == values.size() ? " or " : ", ";
    text += fmt::format("{}", values[i]);
  }
  return text;
}

bool cuts_evenly(Index sequence, Index cp, Index tp) {
  return (cp == 1 || sequence % (2 * cp) == 0) && sequence % (cp * tp) == 0;
}

/// All-to-all over cp ranks with the heads of one place of tensor parallelism.
bool distributes_heads(const ModelConfig& part, Index cp) {
  return part.heads % cp == 0 && (part.kv_heads % cp == 0 || cp % part.kv_heads == 0);
}

}  // namespace

ContextExchange context_exchange_from_name(std::string_view name) {
  if (name == "ring") return ContextExchange::ring;
  if (name == "all-gather") return ContextExchange::all_gather;
  if (name == "all-to-all") return ContextExchange::all_to_all;
  throw ConfigError("context.exchange = {}: use ring, all-gather or all-to-all", name);
}

std::string why_not(const ModelConfig& config, Index sequence, int cp_ranks, int tp, ContextExchange exchange,
                    int rows) {
  const int cp = cp_ranks * rows;
  const std::string cp_key = rows == 1
                                 ? fmt::format("mesh.cp = {}", cp)
                                 : fmt::format("mesh.cp * rows of mesh.tp-grid = {} * {}", cp_ranks, rows);
  // Values of --cp beside the grid as it is.
  const auto ranks_that_fit = [rows](Index limit, const auto& fits) {
    return values_that_fit(limit, [&](Index c) { return fits(c * rows); });
  };
  if (!cuts_evenly(sequence, cp, tp)) {
    const Index unit = cp == 1 ? tp : std::lcm<Index>(2 * cp, Index{cp} * tp);
    const std::string why =
        cp > 1 && sequence % (2 * cp) != 0
            ? fmt::format("{} equal chunks, two for each of {} ranks", 2 * cp, cp_key)
            : fmt::format("equal rows for mesh.cp * mesh.tp = {} * {} ranks", cp_ranks, tp * rows);
    const std::string fitting =
        ranks_that_fit(cp_ranks, [&](Index c) { return cuts_evenly(sequence, c, tp); });
    return fmt::format("data.seq = {} cannot be cut into {}: use {}{}", sequence, why,
                       multiples_around(sequence, unit),
                       fitting.empty() ? "" : fmt::format(", or --cp {}", fitting));
  }
  if (cp == 1 || exchange != ContextExchange::all_to_all) return {};
  std::vector<ModelConfig> places;
  places.reserve(narrow<std::size_t>(tp));
  for (int place = 0; place < tp; ++place) places.push_back(part_of(config, TensorSlice{place, tp}));
  const auto works = [&](Index c) {
    return std::all_of(places.begin(), places.end(),
                       [c](const ModelConfig& part) { return distributes_heads(part, c); });
  };
  if (works(cp)) return {};
  const ModelConfig& part = *std::find_if_not(
      places.begin(), places.end(), [cp](const ModelConfig& each) { return distributes_heads(each, cp); });
  const std::string heads = tp == 1 ? "" : fmt::format(" a rank of mesh.tp = {}", tp * rows);
  const std::string why =
      part.heads % cp != 0
          ? fmt::format("{} query heads{} are not divisible by {}", part.heads, heads, cp_key)
          : fmt::format("{} key/value heads{} neither are divisible by {} nor divide it", part.kv_heads,
                        heads, cp_key);
  const std::string fitting =
      ranks_that_fit(part.heads, [&](Index c) { return works(c) && cuts_evenly(sequence, c, tp); });
  return fmt::format(
      "context.exchange = all-to-all distributes heads, but {}: use {}--context.exchange ring or all-gather",
      why, fitting.empty() ? "" : fmt::format("--cp {}, or ", fitting));
}

Zigzag::Zigzag(const comm::Communicator& comm, SequenceShape own)
    : rank(comm.rank()), ranks(comm.size()), chunk_rows(own.length / 2) {
  if (own.length % 2 != 0)
    throw InternalError("a rank has {} rows of each sequence, but two equal chunks are expected", own.length);
}

AttentionShape attention_shape(const AttentionOperands& of, Index q_first, Index q_length, Index k_first,
                               Index k_length) {
  AttentionShape shape;
  shape.sequences = 1;
  shape.q_length = q_length;
  shape.k_length = k_length;
  shape.heads = of.heads;
  shape.kv_heads = of.kv_heads;
  shape.head_dim = of.head_dim;
  shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(of.head_dim)));
  shape.q_first = q_first;
  shape.k_first = k_first;
  return shape;
}

Matrix neighbouring(const Matrix& dk, const Matrix& dv) {
  CARTAN_ASSERT(dv.data == device::advance(dk.data, dk.dtype, dk.cols) && dv.stride == dk.stride &&
                dv.rows == dk.rows && dv.cols == dk.cols && dv.dtype == dk.dtype);
  Matrix both = dk;
  both.cols += dv.cols;
  return both;
}

ContextGroup::ContextGroup(comm::Communicator& comm, ContextExchange exchange, device::Device& device,
                           bool overlap)
    : comm_(comm.size() > 1 ? &comm : nullptr), exchange_(exchange) {
  if (is_alone() || exchange != ContextExchange::ring || !overlap) return;
  streams_ = std::make_shared<ContextStreams>();
  streams_->sending = device.make_stream("context send");
  streams_->receiving = device.make_stream("context receive");
}

void ContextGroup::forward(const AttentionOperands& of, Matrix out, Vector log_sum_exp,
                           const Workplace& work) const {
  if (is_alone()) {
    AttentionShape shape = attention_shape(of, 0, of.shape.length, 0, of.shape.length);
    shape.sequences = of.shape.sequences;
    work.ops().attention_forward(shape, of.q, of.k, of.v, of.document_start, out, log_sum_exp, work.stream());
    return;
  }
  const ContextLink link{*comm_, streams_.get(), {*comm_, of.shape}};
  switch (exchange_) {
    case ContextExchange::ring:
      return ring_forward(link, of, out, log_sum_exp, work);
    case ContextExchange::all_gather:
      return all_gather_forward(link, of, out, log_sum_exp, work);
    case ContextExchange::all_to_all:
      return all_to_all_forward(link, of, out, log_sum_exp, work);
  }
}

void ContextGroup::backward(const AttentionOperands& of, ConstMatrix out, ConstVector log_sum_exp,
                            ConstMatrix dout, Matrix dq, Matrix dk, Matrix dv, const Workplace& work) const {
  if (is_alone()) {
    AttentionShape shape = attention_shape(of, 0, of.shape.length, 0, of.shape.length);
    shape.sequences = of.shape.sequences;
    work.ops().attention_backward(shape, of.q, of.k, of.v, out, log_sum_exp, of.document_start, dout, dq,
                                  false, dk, dv, false, work.stream());
    return;
  }
  const ContextLink link{*comm_, streams_.get(), {*comm_, of.shape}};
  const AttentionGradients gradients{out, log_sum_exp, dout, dq, dk, dv};
  switch (exchange_) {
    case ContextExchange::ring:
      return ring_backward(link, of, gradients, work);
    case ContextExchange::all_gather:
      return all_gather_backward(link, of, gradients, work);
    case ContextExchange::all_to_all:
      return all_to_all_backward(link, of, gradients, work);
  }
}

}  // namespace cartan::model
