// Row-wise instructions: chains of norms, sums and activations; embeddings; rope angles.
#include <cmath>
#include <cstring>

#include "dequantize.h"
#include "instructions.h"
#include "matmul.h"

namespace tidemill {

RowChain::RowChain(std::string name, const Executor& executor, Domain domain,
                   std::vector<Slot> slots, std::vector<RowOp> ops, std::vector<Blocks> blocks)
    : Instruction(std::move(name)),
      domain_(domain),
      slots_(std::move(slots)),
      ops_(std::move(ops)),
      blocks_(std::move(blocks)),
      vectors_(ops_.size()),
      rope_tables_(ops_.size()) {
  if (slots_.size() > kMaxSlots) throw std::invalid_argument("a row chain of too many values");
  // Every slot has a place in scratch, also a shared output: threads that replicate a chain all
  // compute it, and one of them writes it.
  for (const Slot& slot : slots_) {
    scratch_offset_.push_back(scratch_floats_);
    if (!slot.is_input) scratch_floats_ += align_up(static_cast<std::size_t>(slot.width), 16);
    if (slot.is_shared) {
      executor.check_view(slot.view,
                          executor.limits().rows(slot.gather ? Domain::tokens : domain),
                          slot.width);
    }
  }
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].kind == RowOpKind::rms_norm) vectors_[i] = executor.vector(ops_[i].index);
    if (ops_[i].kind == RowOpKind::rope) rope_tables_[i] = executor.rope_table(ops_[i].index);
  }
}

void RowChain::run(const Step& step, Worker& worker) {
  const bool replicate = step.small && !blocks_.empty();
  const int n = step.rows(domain_);
  const RowRange rows =
      replicate ? RowRange{0, n} : share_rows(n, worker.rank, worker.team->size());
  const bool writes = !replicate || worker.rank == 0;
  auto* scratch = reinterpret_cast<float*>(worker.scratch);
  float* at[kMaxSlots];
  for (int row = rows.begin; row < rows.end; ++row) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      at[i] = slot.is_input || (slot.is_shared && writes)
                  ? step.row(slot.view, slot.gather ? step.selected_rows[row] : row)
                  : scratch + scratch_offset_[i];
    }
    run_row(step, worker, row, at);
  }
}

namespace {

// The k best of n probabilities, best first, the lower id first among equals.
void pick_experts(const float* probability, int n, int k, bool normalise, std::int32_t* ids,
                  float* weights) {
  float total = 0.0f;
  for (int j = 0; j < k; ++j) {
    int best = -1;
    for (int e = 0; e < n; ++e) {
      bool taken = false;
      for (int i = 0; i < j; ++i) taken = taken || ids[i] == e;
      // A NaN never compares greater: the first free id keeps the choice in range.
      if (!taken && (best < 0 || probability[e] > probability[best])) best = e;
    }
    ids[j] = best;
    weights[j] = probability[best];
    total += probability[best];
  }
  if (normalise) {
    for (int j = 0; j < k; ++j) weights[j] /= total;
  }
}

}  // namespace

void RowChain::run_row(const Step& step, const Worker& worker, int row, float* const* at) const {
  const RowKernels& kernels = step.kernels->rows;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const RowOp& op = ops_[i];
    const float* x = at[op.x] + op.x_col;
    const float* y = at[op.y] + op.y_col;
    float* out = at[op.out] + op.out_col;
    const int n = op.width * op.heads;
    switch (op.kind) {
      case RowOpKind::copy:
        std::memmove(out, x, static_cast<std::size_t>(n) * sizeof(float));
        break;
      case RowOpKind::rms_norm:
        for (int h = 0; h < op.heads; ++h) {
          kernels.rms_norm(x + h * op.width, vectors_[i].data(step.weights), op.width, op.factor,
                           out + h * op.width);
        }
        break;
      case RowOpKind::add: kernels.add(x, y, n, out); break;
      case RowOpKind::mul: kernels.mul(x, y, n, out); break;
      case RowOpKind::scale: kernels.scale(x, op.factor, n, out); break;
      case RowOpKind::softcap: kernels.softcap(x, op.factor, n, out); break;
      case RowOpKind::activation: kernels.activate[op.activation](x, n, out); break;
      case RowOpKind::gated:
        for (int h = 0; h < op.heads; ++h) {
          const float* gate = x + 2 * h * op.width;
          kernels.gated[op.activation](gate, gate + op.width, op.width, out + h * op.width);
        }
        break;
      case RowOpKind::rope: {
        const int source = domain_ == Domain::tokens ? row : step.selected_rows[row];
        for (int h = 0; h < op.heads; ++h) {
          rotate_head(step, rope_tables_[i], source, x + h * op.width, op.width,
                      out + h * op.width);
        }
        break;
      }
      case RowOpKind::route: {
        float* probability = at[op.spare];
        kernels.softmax(x, op.width, probability);
        pick_experts(probability, op.width, op.heads, op.normalise,
                     reinterpret_cast<std::int32_t*>(at[op.ids]), out);
        break;
      }
      case RowOpKind::combine:
        kernels.scale(x, y[0], op.width, out);
        for (int j = 1; j < op.heads; ++j) {
          kernels.accumulate(x + j * op.width, y[j], op.width, out);
        }
        break;
      case RowOpKind::quantize: {
        const Blocks& blocks = blocks_[static_cast<std::size_t>(op.index)];
        step.kernels->matmul.quantize(x, n, blocks.row(step, worker, row));
        break;
      }
    }
  }
}

EmbedRows::EmbedRows(std::string name, const Executor& executor, int table, const View& out,
                     float scale)
    : Instruction(std::move(name)), executor_(executor), table_(table), out_(out), scale_(scale) {
  executor.check_view(out, executor.limits().max_tokens, executor.table(table).cols);
}

void EmbedRows::run(const Step& step, Worker& worker) {
  const Table& table = executor_.table(table_);
  const RowRange rows = share_rows(step.n_tokens, worker.rank, worker.team->size());
  const std::size_t bytes = row_bytes(table.type, table.cols);
  PackedMatrix packed;
  if (table.matrix >= 0) packed = executor_.matrix(table.matrix).view(step.weights);
  for (int r = rows.begin; r < rows.end; ++r) {
    float* out = step.row(out_, r);
    const int token = step.tokens[r];
    if (table.matrix >= 0) {
      dequantize_packed_row(packed, token, out);
    } else {
      dequantize_row(table.type, table.data + static_cast<std::size_t>(token) * bytes, table.cols,
                     out);
    }
    if (scale_ != 1.0f) step.kernels->rows.scale(out, scale_, table.cols, out);
  }
}

RopeAngles::RopeAngles(std::string name, const RopeTable& table, std::vector<double> inv_freq,
                       double magnitude)
    : Instruction(std::move(name)),
      table_(table),
      inv_freq_(std::move(inv_freq)),
      magnitude_(magnitude) {
  if (inv_freq_.size() != static_cast<std::size_t>(table.pairs)) {
    throw std::invalid_argument("a rotation needs one frequency per pair");
  }
}

void RopeAngles::run(const Step& step, Worker& worker) {
  const RowRange rows = share_rows(step.n_tokens, worker.rank, worker.team->size());
  const int pairs = table_.pairs;
  for (int r = rows.begin; r < rows.end; ++r) {
    float* cos = step.row(table_.view, r);
    float* sin = cos + pairs;
    const double position = step.positions[r];
    for (int i = 0; i < pairs; ++i) {
      const double angle = position * inv_freq_[static_cast<std::size_t>(i)];
      cos[i] = static_cast<float>(std::cos(angle) * magnitude_);
      sin[i] = static_cast<float>(std::sin(angle) * magnitude_);
    }
  }
}

}  // namespace tidemill
