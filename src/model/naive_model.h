// The forward pass in double precision, written down as in the papers and sharing nothing with the
// product but the reading of tensors: what forward_test.cc compares with. Qwen3 and Llama.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "baton/ids.h"
#include "model/gguf.h"

namespace baton::model {

class NaiveModel {
 public:
  explicit NaiveModel(const GgufFile& file) : file_(&file) {}
  // The logits after each token. `round_kv`: keys and values are rounded to bfloat16 as the pool
  // keeps them.
  std::vector<std::vector<double>> logits(std::span<const TokenId> tokens, bool round_kv) const;

 private:
  using Row = std::vector<double>;
  std::size_t count(const std::string& name) const;
  Row weights(const std::string& name) const;
  Row multiply(const std::string& name, const Row& x) const;
  void attention(std::size_t layer, std::vector<Row>& hidden, bool round_kv) const;
  void feed_forward(std::size_t layer, Row& hidden) const;
  void rotate(Row& head, std::size_t position) const;
  Row norm(const Row& x, const Row& weight) const;

  const GgufFile* file_;
};

}  // namespace baton::model
