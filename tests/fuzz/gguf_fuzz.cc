// A GGUF file of a stranger: opened, every value and tensor looked at, its configuration, tokenizer
// and chat template read.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/unique_fd.h"
#include "model/chat_template.h"
#include "model/gguf.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace baton::fuzz {
namespace {

std::uint64_t look_at(const model::GgufFile& file) {
  std::uint64_t sum = 0;
  const auto look = [&sum](std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) sum += static_cast<std::uint64_t>(b);
  };
  for (const auto key : file.keys()) {
    BATON_CHECK(file.find(key) != nullptr, "a key that is listed and not found");
    sum += file.uint(key).value_or(0) + (file.flag_or(key, true).value_or(false) ? 1 : 0);
    sum += static_cast<std::uint64_t>(file.real(key).has_value());
    if (const auto text = file.text(key)) look(std::as_bytes(std::span(*text)));
    if (const auto texts = file.texts(key)) {
      for (const auto text : *texts) look(std::as_bytes(std::span(text)));
    }
    if (const auto integers = file.integers(key)) sum += integers->size();
    if (const auto reals = file.reals(key)) sum += reals->size();
  }
  for (const auto& tensor : file.tensors()) look(tensor.bytes);
  return sum;
}

void read(const std::string& path) {
  const auto file = model::GgufFile::open(path);
  if (!file) return;
  static_cast<void>(look_at(**file));
  static_cast<void>((*file)->fingerprint());
  static_cast<void>(model::read_config(**file));
  const auto chat = model::ChatTemplate::from(**file);
  static_cast<void>(chat->render(std::vector<model::ChatMessage>{{"user", "hello"}}));
  const auto tokenizer = model::Tokenizer::load(**file);
  if (!tokenizer) return;
  for (const TokenId token : (*tokenizer)->encode("Hello <|im_end|> w\xC3\xB6rld", true)) {
    BATON_CHECK(static_cast<std::size_t>(token) < (*tokenizer)->vocab_size(), "a token outside");
    static_cast<void>((*tokenizer)->piece(token, true));
  }
}

}  // namespace
}  // namespace baton::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const baton::UniqueFd file(memfd_create("gguf", MFD_CLOEXEC));
  BATON_CHECK(write(file.get(), data, size) == static_cast<ssize_t>(size), "no memory");
  baton::fuzz::read("/proc/self/fd/" + std::to_string(file.get()));
  return 0;
}
