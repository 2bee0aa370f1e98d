// libFuzzer target: arbitrary bytes through the frame reader and the decoder, and every accepted
// Register and Hello through validation. Built with -DBATON_FUZZERS=ON by clang.
#include <cstring>

#include "layout/test_geometry.h"
#include "wire/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace baton;
  static const layout::TestPool pool = layout::make_pool(2, 8);
  static wire::DuplicateFinder finder(8);
  if (size < 2) return 0;
  // The checksum would keep a fuzzer out, so payloads also go past the reader.
  std::vector<std::uint64_t> aligned((size + 5) / 8 + 1);
  std::memcpy(aligned.data(), data + 1, size - 1);
  const auto type = static_cast<wire::MessageType>(data[0] % 16);
  const auto message = wire::decode({type, std::as_bytes(std::span(aligned)).first(size - 1)});
  if (message) {
    if (const auto* r = std::get_if<wire::Register>(&*message)) {
      static_cast<void>(wire::check_register(pool.geometry, pool.geometry, *r, finder));
    }
    if (const auto* hello = std::get_if<wire::Hello>(&*message)) {
      wire::Hello ours;
      ours.geometry = pool.geometry;
      static_cast<void>(wire::check_handshake(ours, *hello, Role::kConsumer));
    }
  }
  wire::FrameReader reader;
  const auto room = reader.prepare();
  const std::size_t n = std::min(room.size(), size);
  std::memcpy(room.data(), data, n);
  reader.commit(n);
  for (auto frame = reader.next(); frame && *frame; frame = reader.next()) {
    static_cast<void>(wire::decode(**frame));
  }
  return 0;
}
