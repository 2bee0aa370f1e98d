// The engine's front door: submissions and aborts from any thread, taken by the engine thread in
// the order in which they came. Never waits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "engine/sequence.h"
#include "engine/validate.h"

namespace baton::engine {

class Intake {
 public:
  // A submission (sequence set), or an abort of `id`.
  struct Item {
    std::unique_ptr<Sequence> sequence;
    std::string id;
  };
  // Tells the agent that a request is coming (claim, expect, or both).
  using Announce = std::function<Status(const Request&)>;

  Intake(RequestLimits limits, std::uint32_t waiting_max,
         std::shared_ptr<const model::Tokenizer> tokenizer, Announce announce);

  // Any thread.
  Status submit(Request request, OutputCallback callback);
  void abort(const std::string& id);
  void close();  // every later submit is refused with kUnavailable
  int wake_fd() const { return wake_.get(); }

  // The engine thread.
  void take(std::vector<Item>& items);
  void set_waiting(std::size_t waiting);       // how many of the taken ones still queue
  void forget_request(const std::string& id);  // the id may be used again
  void forget_transfer(Side side, TransferId transfer);

 private:
  Status check_in(Sequence& sequence);  // with mutex_ held
  void wake() const;

  const RequestLimits limits_;
  const std::uint32_t waiting_max_;
  const std::shared_ptr<const model::Tokenizer> tokenizer_;
  const Announce announce_;
  const UniqueFd wake_;

  std::mutex mutex_;
  bool closed_ = false;
  std::vector<Item> items_;
  std::size_t submissions_ = 0;  // in items_
  std::size_t waiting_ = 0;
  std::uint64_t arrivals_ = 0;
  std::unordered_set<std::string> ids_;
  std::set<std::pair<Side, TransferId>> transfers_;
};

// Which side this request is of its hand-over, if it has one, and the transfer's id. Of one that
// reads its beginning and hands over the whole: the latter.
std::optional<std::pair<Side, TransferId>> transfer_of(const Request& request);
// The transfer by which the beginning of a prompt to be handed over is read.
std::optional<TransferId> prefix_of(const Request& request);

}  // namespace baton::engine
