#include "engine/testing/rig.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/random.h"

namespace baton::engine {

Answer::~Answer() {
  const std::lock_guard lock(link_->mutex);
  link_->answer = nullptr;
}

OutputCallback Answer::callback() {
  return [link = link_](Output&& output) {
    const std::lock_guard lock(link->mutex);
    if (link->answer != nullptr) link->answer->take(std::move(output));
  };
}

void Answer::take(Output&& output) {
  if (finishes > 0) told_after_finish = true;
  text += output.text;
  tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
  if (output.finish) {
    ++finishes;
    last = output;
  }
  outputs.push_back(std::move(output));
  changed_.notify_all();
}

void Answer::wait() {
  std::unique_lock lock(link_->mutex);
  EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [this] { return finishes > 0; }));
}

bool Answer::wait_for(const std::function<bool(const Answer&)>& condition) {
  std::unique_lock lock(link_->mutex);
  return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return condition(*this); });
}

EngineOptions small_options() {
  EngineOptions options;
  options.block_size = 4;
  options.num_blocks = 256;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 32;
  return options;
}

std::unique_ptr<Engine> make_fake_engine(EngineOptions options, FakeHub* hub,
                                         const std::string& engine_id, Role role,
                                         FakeModel** model) {
  AgentFactory factory;
  if (hub != nullptr) {
    factory = hub->factory();
    if (!options.agent) options.agent.emplace();
    options.agent->engine_id = engine_id;
    options.agent->role = role;
  }
  auto fake = std::make_unique<FakeModel>();
  if (model != nullptr) *model = fake.get();
  auto engine = make_engine(std::move(fake), std::make_shared<FakeTokenizer>(), options, factory);
  EXPECT_TRUE(engine.has_value()) << engine.error().message;
  return std::move(*engine);
}

std::vector<TokenId> make_prompt(std::uint64_t seed, std::uint32_t length) {
  Rng rng(seed);
  std::vector<TokenId> prompt;
  for (std::uint32_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<TokenId>(rng.below(kFakeVocab)));
  }
  return prompt;
}

SamplingParams greedy(std::uint32_t max_tokens) {
  SamplingParams params;
  params.temperature = 0.0;
  params.max_tokens = max_tokens;
  return params;
}

SamplingParams seeded(std::uint32_t max_tokens, std::uint64_t seed) {
  SamplingParams params;
  params.temperature = 0.9;
  params.top_p = 0.95;
  params.seed = seed;
  params.max_tokens = max_tokens;
  return params;
}

Request make_request(const std::string& id, std::vector<TokenId> prompt, std::uint32_t max_tokens) {
  Request request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.sampling = greedy(max_tokens);
  return request;
}

Request prefill_leg(const Request& request, TransferId transfer, FirstToken first) {
  Request leg = request;
  leg.remote_decode = RemoteDecode{.transfer = transfer, .first_token = first};
  return leg;
}

void submit(Engine& engine, Request request, Answer& answer) {
  const Status status = engine.submit(std::move(request), answer.callback());
  ASSERT_TRUE(status.has_value()) << status.error().message;
}

bool eventually(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool all_blocks_free(const Engine& engine) {
  return eventually([&] { return engine.blocks().free == engine.blocks().total; });
}

Seen seen(const Answer& answer) {
  return {.text = answer.text,
          .tokens = answer.tokens,
          .finish = answer.last.finish.value_or(FinishReason::kError),
          .stop_reason = answer.last.stop_reason,
          .completion_tokens = answer.last.completion_tokens};
}

void PrintTo(const Seen& seen, std::ostream* out) {
  *out << fmt::format("{{text '{}', tokens {}, finish {}, stop '{}', completion {}}}", seen.text,
                      seen.tokens, static_cast<int>(seen.finish), seen.stop_reason.value_or("-"),
                      seen.completion_tokens);
}

Seen answer_alone(const Request& request) {
  EngineOptions options = small_options();
  options.max_num_batched_tokens = 512;
  const auto engine = make_fake_engine(options);
  Request plain = request;
  plain.remote_decode.reset();
  plain.remote_prefill.reset();
  Answer answer;
  submit(*engine, std::move(plain), answer);
  answer.wait();
  return seen(answer);
}

}  // namespace baton::engine
