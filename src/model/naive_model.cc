#include "model/naive_model.h"

#include <cmath>

#include "model/dequantize.h"
#include "model/numbers.h"

namespace baton::model {
namespace {

double rounded(double value) {
  return static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(value))));
}

}  // namespace

std::size_t NaiveModel::count(const std::string& name) const {
  return file_->uint(std::string(file_->text("general.architecture").value()) + "." + name).value();
}

NaiveModel::Row NaiveModel::weights(const std::string& name) const {
  const GgufTensor* tensor = file_->find_tensor(name);
  std::vector<float> values(tensor->num_elements);
  dequantize(tensor->type, tensor->bytes, values);
  Row row(values.begin(), values.end());
  if (tensor->num_dims > 1) {
    for (double& value : row) value = rounded(value);  // the product keeps matrices in bfloat16
  }
  return row;
}

NaiveModel::Row NaiveModel::multiply(const std::string& name, const Row& x) const {
  const Row w = weights(name);
  Row y(w.size() / x.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    for (std::size_t k = 0; k < x.size(); ++k) y[i] += w[i * x.size() + k] * x[k];
  }
  return y;
}

NaiveModel::Row NaiveModel::norm(const Row& x, const Row& weight) const {
  double squares = 0.0;
  for (const double value : x) squares += value * value;
  const std::string key = std::string(file_->text("general.architecture").value()) +
                          ".attention.layer_norm_rms_epsilon";
  const double scale =
      1.0 / std::sqrt(squares / static_cast<double>(x.size()) + file_->real(key).value());
  Row out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight[i];
  return out;
}

void NaiveModel::rotate(Row& head, std::size_t position) const {
  const std::string architecture(file_->text("general.architecture").value());
  const double base = file_->real(architecture + ".rope.freq_base").value();
  const std::size_t half = head.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const double angle =
        static_cast<double>(position) *
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head.size()));
    double& a = architecture == "llama" ? head[2 * i] : head[i];
    double& b = architecture == "llama" ? head[2 * i + 1] : head[i + half];
    const double old_a = a;
    a = old_a * std::cos(angle) - b * std::sin(angle);
    b = old_a * std::sin(angle) + b * std::cos(angle);
  }
}

void NaiveModel::attention(std::size_t layer, std::vector<Row>& hidden, bool round_kv) const {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const std::size_t heads = count("attention.head_count");
  const std::size_t kv_heads = count("attention.head_count_kv");
  const bool head_norms = file_->find_tensor(prefix + "attn_q_norm.weight") != nullptr;
  std::vector<Row> keys;
  std::vector<Row> values;
  for (std::size_t t = 0; t < hidden.size(); ++t) {
    const Row x = norm(hidden[t], weights(prefix + "attn_norm.weight"));
    const Row q = multiply(prefix + "attn_q.weight", x);
    const std::size_t dim = q.size() / heads;
    const auto prepared = [&](const Row& from, std::size_t head, const std::string& which) {
      Row one(from.begin() + static_cast<std::ptrdiff_t>(head * dim),
              from.begin() + static_cast<std::ptrdiff_t>((head + 1) * dim));
      if (head_norms) one = norm(one, weights(prefix + which));
      rotate(one, t);
      return one;
    };
    const Row k = multiply(prefix + "attn_k.weight", x);
    Row all_keys;
    for (std::size_t h = 0; h < kv_heads; ++h) {
      for (const double value : prepared(k, h, "attn_k_norm.weight")) {
        all_keys.push_back(round_kv ? rounded(value) : value);
      }
    }
    keys.push_back(all_keys);
    values.push_back(multiply(prefix + "attn_v.weight", x));
    if (round_kv) {
      for (double& value : values.back()) value = rounded(value);
    }
    Row out(q.size());
    for (std::size_t h = 0; h < heads; ++h) {
      const Row query = prepared(q, h, "attn_q_norm.weight");
      const std::size_t kv = h / (heads / kv_heads) * dim;
      double sum = 0.0;
      for (std::size_t s = 0; s <= t; ++s) {
        double score = 0.0;
        for (std::size_t d = 0; d < dim; ++d) score += query[d] * keys[s][kv + d];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
        sum += weight;
        for (std::size_t d = 0; d < dim; ++d) out[h * dim + d] += weight * values[s][kv + d];
      }
      for (std::size_t d = 0; d < dim; ++d) out[h * dim + d] /= sum;
    }
    const Row added = multiply(prefix + "attn_output.weight", out);
    for (std::size_t i = 0; i < added.size(); ++i) hidden[t][i] += added[i];
  }
}

void NaiveModel::feed_forward(std::size_t layer, Row& hidden) const {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const Row x = norm(hidden, weights(prefix + "ffn_norm.weight"));
  Row gate = multiply(prefix + "ffn_gate.weight", x);
  const Row up = multiply(prefix + "ffn_up.weight", x);
  for (std::size_t i = 0; i < gate.size(); ++i)
    gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  const Row added = multiply(prefix + "ffn_down.weight", gate);
  for (std::size_t i = 0; i < added.size(); ++i) hidden[i] += added[i];
}

std::vector<std::vector<double>> NaiveModel::logits(std::span<const TokenId> tokens,
                                                    bool round_kv) const {
  const Row embedding = weights("token_embd.weight");
  const std::size_t width = count("embedding_length");
  std::vector<Row> hidden;
  for (const TokenId token : tokens) {
    const auto from = embedding.begin() + token * static_cast<std::ptrdiff_t>(width);
    hidden.emplace_back(from, from + static_cast<std::ptrdiff_t>(width));
  }
  for (std::size_t layer = 0; layer < count("block_count"); ++layer) {
    attention(layer, hidden, round_kv);
    for (Row& row : hidden) feed_forward(layer, row);
  }
  const bool tied = file_->find_tensor("output.weight") == nullptr;
  std::vector<Row> out;
  for (const Row& row : hidden) {
    out.push_back(multiply(tied ? "token_embd.weight" : "output.weight",
                           norm(row, weights("output_norm.weight"))));
  }
  return out;
}

}  // namespace baton::model
