// wire_golden VERSION: prints the messages of a protocol version for tests/golden/wire_v<N>.tsv.
// Run once, when the version is new: what a release has sent never changes.
#include <fmt/format.h>

#include <cstdlib>

#include "wire/testing/golden.h"

int main(int argc, char** argv) {
  using namespace baton::wire;
  if (argc != 2) {
    fmt::print(stderr, "usage: wire_golden VERSION\n");
    return 2;
  }
  for (const auto& golden :
       testing::golden_messages(static_cast<std::uint16_t>(std::strtoul(argv[1], nullptr, 10)))) {
    FrameReader reader;
    const auto message = testing::read_frame(golden.frame, reader);
    if (!message) {
      fmt::print(stderr, "{}: {}\n", golden.name, message.error().message);
      return 1;
    }
    fmt::print("{}\t{}\t{}\n", golden.name, testing::to_hex(golden.frame),
               testing::describe(*message));
  }
  return 0;
}
