// baton-make-gguf: writes the model files that tests and the golden file need.

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "model/gguf.h"
#include "model/random_model.h"

namespace {

int report(const baton::Status& status, const std::string& path) {
  if (!status) {
    fmt::print(stderr, "baton-make-gguf: {}\n", status.error().message);
    return 1;
  }
  const auto written = baton::model::GgufFile::open(path);
  if (!written) {
    fmt::print(stderr, "baton-make-gguf: {}\n", written.error().message);
    return 1;
  }
  fmt::print("{} {}\n", (*written)->fingerprint(), path);
  return 0;
}

int copy_as_bf16(const std::string& from, const std::string& to) {
  const auto file = baton::model::GgufFile::open(from);
  if (!file) return report(tl::unexpected<baton::Error>(file.error()), to);
  return report(baton::model::write_bf16_copy(**file, to), to);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Writes GGUF files: a random test model, or the bfloat16 copy of a model.");
  app.require_subcommand(1);
  baton::model::RandomModelSpec spec;
  std::string from;
  std::string to;

  CLI::App* random = app.add_subcommand(
      "random", "a small random Qwen3-shaped model; the same options, the same bytes");
  random->add_option("output", to, "the file to write")->required();
  random->add_option("--seed", spec.seed)->capture_default_str();
  random->add_option("--layers", spec.layers)->capture_default_str();
  random->add_option("--embedding-size", spec.embedding_size)->capture_default_str();
  random->add_option("--feed-forward-size", spec.feed_forward_size)->capture_default_str();
  random->add_option("--heads", spec.heads)->capture_default_str();
  random->add_option("--kv-heads", spec.kv_heads)->capture_default_str();
  random->add_option("--head-dim", spec.head_dim)->capture_default_str();
  random->add_option("--vocab-size", spec.vocab_size)->capture_default_str();
  random->add_option("--context-length", spec.context_length)->capture_default_str();

  CLI::App* bf16 =
      app.add_subcommand("bf16", "every matrix of a model dequantised and rounded to bfloat16");
  bf16->add_option("input", from, "a GGUF file")->required();
  bf16->add_option("output", to, "the file to write")->required();

  CLI11_PARSE(app, argc, argv);
  if (random->parsed()) return report(baton::model::write_random_model(spec, to), to);
  return copy_as_bf16(from, to);
}
