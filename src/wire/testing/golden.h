// Control messages as they were recorded: the bytes of each release's protocol, which never change
// once it is out, and what each says, field by field. tests/golden/wire_v<N>.tsv holds a line for
// each: name, bytes in hex, fields. The tool wire_golden writes a file once, when a version is new;
// golden_test.cc holds every later build to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "wire/messages.h"

namespace baton::wire::testing {

struct Golden {
  std::string name;
  std::vector<std::byte> frame;
};

// What this build sends on a link that speaks `version`.
std::vector<Golden> golden_messages(std::uint16_t version);

// Every field of a decoded message as text.
std::string describe(const Message& message);

std::string to_hex(std::span<const std::byte> bytes);
std::vector<std::byte> from_hex(std::string_view text);

// The message in one whole frame, read as a socket's bytes are; `keep` owns what it points into.
Result<Message> read_frame(std::span<const std::byte> frame, FrameReader& keep);

}  // namespace baton::wire::testing
