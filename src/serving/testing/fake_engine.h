// An engine that does what a test says, and one character a token.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"

namespace baton::serving::testing {

class FakeAgent : public Agent {
 public:
  Status claim(TransferId, const PeerAddress&) override { return {}; }
  Status register_blocks(Registration) override { return {}; }
  Status withdraw(TransferId) override { return {}; }
  Status expect(TransferId, std::uint32_t) override { return {}; }
  Status ready(ReadyPiece) override { return {}; }
  Status cancel(TransferId) override { return {}; }
  int event_fd() const override { return -1; }
  std::size_t poll_events(std::span<Event>) override { return 0; }
  const PeerId& id() const override { return id_; }
  PeerAddress control_address() const override { return {"127.0.0.1", 5600, "engine-1", 0xabc}; }
  const AgentMetrics& metrics() const override { return metrics_; }

 private:
  PeerId id_{"engine-1", 0xabc};
  AgentMetrics metrics_;
};

class FakeEngine : public engine::Engine {
 public:
  explicit FakeEngine(bool with_agent) {
    options_.max_model_len = 100;
    config_.fingerprint = "f00d";
    if (with_agent) {
      options_.agent.emplace();
      options_.agent->engine_id = "engine-1";
    }
  }

  Status submit(engine::Request request, engine::OutputCallback callback) override {
    const std::lock_guard lock(mutex_);
    if (refusal_) return tl::unexpected<Error>(*refusal_);
    callbacks_.push_back(std::move(callback));
    requests_.push_back(std::move(request));
    return {};
  }
  void abort(const std::string& id) override {
    std::size_t at = 0;
    {
      const std::lock_guard lock(mutex_);
      aborted_.push_back(id);
      while (at < requests_.size() && requests_[at].id != id) ++at;
      if (at == requests_.size()) return;
    }
    engine::Output output;
    output.finish = engine::FinishReason::kAborted;
    say(at, std::move(output));
  }
  void drain() override { ++drains_; }
  void abandon() override { ++abandons_; }
  int drains() const { return drains_; }
  int abandons() const { return abandons_; }
  const engine::EngineOptions& options() const override { return options_; }
  const model::ModelConfig& model_config() const override { return config_; }
  const std::string& kernel_family() const override { return family_; }
  const engine::EngineMetrics& metrics() const override { return metrics_; }
  const Agent* agent() const override { return options_.agent ? &agent_ : nullptr; }
  Blocks blocks() const override { return {7, 2, 1, 10}; }

  void refuse(Error error) {
    const std::lock_guard lock(mutex_);
    refusal_ = std::move(error);
  }
  std::size_t submitted() const {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }
  engine::Request request(std::size_t i) const {
    const std::lock_guard lock(mutex_);
    return requests_.at(i);
  }
  std::vector<std::string> aborted() const {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }
  void say(std::size_t i, engine::Output output) {
    engine::OutputCallback callback;
    {
      const std::lock_guard lock(mutex_);
      callback = callbacks_.at(i);
      if (output.finish) callbacks_.at(i) = nullptr;
    }
    if (callback) callback(std::move(output));
  }
  void set_mode(Mode mode) { options_.agent->mode = mode; }
  engine::EngineMetrics& mutable_metrics() { return metrics_; }

 private:
  mutable std::mutex mutex_;
  std::atomic<int> drains_ = 0, abandons_ = 0;
  std::optional<Error> refusal_;
  std::vector<engine::Request> requests_;
  std::vector<engine::OutputCallback> callbacks_;
  std::vector<std::string> aborted_;
  engine::EngineOptions options_;
  model::ModelConfig config_;
  std::string family_ = "fake";
  engine::EngineMetrics metrics_;
  FakeAgent agent_;
};

class FakeTokenizer : public model::Tokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, bool) const override {
    return {text.begin(), text.end()};
  }
  std::string_view piece(TokenId, bool) const override { return "x"; }
  std::size_t vocab_size() const override { return 256; }
  bool is_end_of_generation(TokenId) const override { return false; }
  std::optional<TokenId> bos() const override { return {}; }
  bool add_bos() const override { return false; }
};

class FakeChatTemplate : public model::ChatTemplate {
 public:
  Result<std::string> render(std::span<const model::ChatMessage> messages) const override {
    std::string text;
    for (const model::ChatMessage& message : messages) text += message.role + ":" + message.content;
    return text;
  }
};

}  // namespace baton::serving::testing
