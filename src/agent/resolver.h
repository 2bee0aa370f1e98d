// Host names to addresses without holding the owner thread up: the system's resolver may take many
// seconds and cannot be told to stop, so each question gets a thread of its own that outlives
// whoever has lost interest.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/tcp.h"
#include "baton/result.h"

namespace baton {

class Resolver {
 public:
  static constexpr int kRunningMax = 8;

  Resolver();

  // False: too many questions are open, ask later. `tag` comes back with the answer.
  bool ask(std::uint64_t tag, const std::string& host, std::uint16_t port);

  struct Answer {
    std::uint64_t tag = 0;
    Result<tcp::Address> address;
  };
  // Readable when answers wait.
  int fd() const;
  std::vector<Answer> take();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace baton
