// The engine over a fake model whose tokens depend on every KV byte: continuous batching, chunks,
// preemption, stop rules, and that each request hears exactly one end.
#include "engine/engine.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <set>
#include <thread>

#include "engine/testing/rig.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;

std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  const std::uint32_t lengths[] = {1, 3, 4, 5, 8, 17, 31, 40, 2, 63, 9, 12};
  for (std::size_t i = 0; i < std::size(lengths); ++i) {
    Request request = make_request(fmt::format("r{}", i), make_prompt(i + 1, lengths[i]), 24);
    if (i % 2 == 1) request.sampling = seeded(24, i);
    request.sampling.ignore_eos = i % 3 == 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

struct Setting {
  const char* name;
  std::uint32_t max_num_seqs, max_num_batched_tokens, num_blocks, block_size;
  bool preempts;
};

TEST(Engine, AnswersDoNotDependOnHowTheWorkIsCut) {
  const std::vector<Request> requests = mixed_requests();
  std::vector<Seen> expected;
  for (const Request& request : requests) expected.push_back(answer_alone(request));
  const Setting settings[] = {
      {"roomy", 12, 512, 400, 4, false},       {"chunks of 5", 5, 5, 400, 4, false},
      {"chunks of 13", 4, 13, 400, 4, false},  {"one at a time", 1, 7, 400, 4, false},
      {"dry pool", 12, 64, 24, 4, true},       {"blocks of 1", 12, 32, 600, 1, false},
      {"dry, blocks of 1", 8, 8, 90, 1, true}, {"blocks of 16", 12, 32, 100, 16, false},
  };
  for (const Setting& setting : settings) {
    SCOPED_TRACE(setting.name);
    EngineOptions options;
    options.max_num_seqs = setting.max_num_seqs;
    options.max_num_batched_tokens = setting.max_num_batched_tokens;
    options.num_blocks = setting.num_blocks;
    options.block_size = setting.block_size;
    FakeModel* model = nullptr;
    const auto engine = make_fake_engine(options, nullptr, "", Role::kBoth, &model);
    StepGate gate;
    gate.hold(*model);
    std::vector<std::unique_ptr<Answer>> answers;
    for (const Request& request : requests) {
      answers.push_back(std::make_unique<Answer>());
      submit(*engine, request, *answers.back());
    }
    gate.open();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      answers[i]->wait();
      EXPECT_EQ(seen(*answers[i]), expected[i]) << "request " << i;
    }
    EXPECT_TRUE(all_blocks_free(*engine));
    EXPECT_EQ(engine->metrics().preemptions.value() > 0, setting.preempts);
  }
}

TEST(Engine, CountsAndTimesWhatItDid) {
  const auto engine = make_fake_engine(small_options());
  Request request = make_request("r", make_prompt(3, 9), 5);
  request.sampling.ignore_eos = true;
  Answer answer;
  submit(*engine, request, answer);
  answer.wait();
  EXPECT_EQ(answer.last.finish, FinishReason::kLength);
  EXPECT_EQ(answer.last.prompt_tokens, 9U);
  EXPECT_EQ(answer.last.completion_tokens, 5U);
  EXPECT_EQ(answer.last.computed_prompt_tokens, 9U);
  EXPECT_GT(answer.last.times.first_token, 0);
  EXPECT_GE(answer.last.times.second_token, answer.last.times.first_token);
  ASSERT_EQ(answer.tokens.size(), 5U);
  EXPECT_TRUE(answer.outputs[0].is_first_token);
  EXPECT_EQ(answer.outputs[0].tokens.size(), 1U);
  EXPECT_FALSE(answer.outputs[0].finish.has_value());
  EXPECT_EQ(engine->metrics().generation_tokens.value(), 5U);
  EXPECT_EQ(engine->metrics().prompt_tokens.value(), 9U);
  EXPECT_EQ(engine->metrics().computed_prompt_tokens.value(), 9U);
  EXPECT_EQ(engine->metrics().finished_length.value(), 1U);
}

// Prompts whose greedy first token satisfies a condition.
Request find_request(const std::function<bool(TokenId)>& wanted) {
  const auto engine = make_fake_engine(small_options());
  for (std::uint64_t seed = 1; seed < 5000; ++seed) {
    Request request = make_request("r", make_prompt(seed, 3), 1);
    Answer answer;
    submit(*engine, request, answer);
    answer.wait();
    if (wanted(answer.tokens.at(0))) return request;
  }
  ADD_FAILURE() << "no such prompt";
  return {};
}

TEST(Engine, EndOfGenerationEndsUnlessIgnored) {
  Request request = find_request([](TokenId token) { return token == 0; });
  request.sampling.max_tokens = 6;
  const Seen stopped = answer_alone(request);
  EXPECT_EQ(stopped, (Seen{"", {0}, FinishReason::kStop, {}, 1}));
  request.sampling.ignore_eos = true;
  const Seen ignored = answer_alone(request);
  EXPECT_EQ(ignored.tokens.size(), 6U);
  EXPECT_EQ(ignored.finish, FinishReason::kLength);
}

TEST(Engine, StopStringsEndTheTextAcrossTokens) {
  Request request = make_request("r", make_prompt(11, 7), 60);
  request.sampling.ignore_eos = true;
  const Seen whole = answer_alone(request);
  ASSERT_GT(whole.text.size(), 40U);
  // A piece of the answer that is longer than any token's text and so crosses tokens.
  const std::string stop = whole.text.substr(20, 9);
  const std::size_t at = whole.text.find(stop);
  request.sampling.stop = {"never said", stop};
  const Seen cut = answer_alone(request);
  EXPECT_EQ(cut.text, whole.text.substr(0, at));
  EXPECT_EQ(cut.finish, FinishReason::kStop);
  EXPECT_EQ(cut.stop_reason, stop);
  EXPECT_LT(cut.tokens.size(), whole.tokens.size());
  EXPECT_EQ(cut.completion_tokens, cut.tokens.size());
  request.sampling.include_stop_str_in_output = true;
  EXPECT_EQ(answer_alone(request).text, whole.text.substr(0, at + stop.size()));
}

TEST(Engine, AnUnsetSeedIsDrawnOnceForEachRequest) {
  std::set<std::vector<TokenId>> answers;
  for (int i = 0; i < 5; ++i) {
    Request request = make_request("r", make_prompt(2, 4), 12);
    request.sampling.temperature = 2.0;
    request.sampling.ignore_eos = true;
    answers.insert(answer_alone(request).tokens);
  }
  EXPECT_GT(answers.size(), 1U);
}

TEST(Engine, RefusesWhatItCannotTake) {
  EngineOptions options = small_options();
  options.waiting_max = 2;
  options.max_num_seqs = 1;
  FakeModel* model = nullptr;
  const auto engine = make_fake_engine(options, nullptr, "", Role::kBoth, &model);
  std::promise<void> gate;
  std::promise<void> started;
  const std::shared_future<void> opened = gate.get_future().share();
  std::atomic<bool> first{true};
  model->before_forward = [&](auto) {
    if (first.exchange(false)) started.set_value();
    opened.wait();
  };
  Answer running;
  Answer waiting[2];
  Answer refused;
  submit(*engine, make_request("a", {7}, 3), running);
  started.get_future().wait();
  submit(*engine, make_request("b", {7}, 3), waiting[0]);
  const auto same = engine->submit(make_request("b", {7}, 3), refused.callback());
  EXPECT_EQ(same.error().code, Errc::kAlreadyExists);
  submit(*engine, make_request("c", {7}, 3), waiting[1]);
  const auto full = engine->submit(make_request("d", {7}, 3), refused.callback());
  EXPECT_EQ(full.error().code, Errc::kResourceExhausted);
  EXPECT_THAT(full.error().message, HasSubstr("2 requests are waiting, and the queue holds 2"));
  EXPECT_EQ(engine->submit(make_request("e", {}, 3), refused.callback()).error().code,
            Errc::kInvalidArgument);
  gate.set_value();
  running.wait();
  waiting[0].wait();
  waiting[1].wait();
  EXPECT_TRUE(refused.outputs.empty());
  Answer again;
  submit(*engine, make_request("b", {7}, 3), again);  // the id is free again
  again.wait();
}

// From the engine thread itself, between two steps, so that each phase is certain.
TEST(Engine, AbortsWhatQueuesComputesAndDecodes) {
  EngineOptions options = small_options();
  options.max_num_seqs = 2;
  options.max_num_batched_tokens = 4;
  FakeModel* model = nullptr;
  const auto engine = make_fake_engine(options, nullptr, "", Role::kBoth, &model);
  Answer decoding;
  Answer prefilling;
  Answer queued;
  int steps = 0;
  model->before_forward = [&](auto) {
    ++steps;
    if (steps == 3) {
      submit(*engine, make_request("prefilling", make_prompt(1, 400), 100), prefilling);
      submit(*engine, make_request("queued", make_prompt(2, 4), 4), queued);
    }
    if (steps == 6) engine->abort("queued");
    if (steps == 9) engine->abort("prefilling");
    if (steps == 12) engine->abort("decoding");
  };
  Request endless = make_request("decoding", {9}, 400);
  endless.sampling.ignore_eos = true;
  submit(*engine, endless, decoding);
  for (Answer* answer : {&decoding, &prefilling, &queued}) {
    answer->wait();
    EXPECT_EQ(answer->last.finish, FinishReason::kAborted);
    EXPECT_EQ(answer->finishes, 1);
    EXPECT_FALSE(answer->told_after_finish);
  }
  EXPECT_EQ(decoding.last.completion_tokens, 12U);
  EXPECT_GT(prefilling.last.computed_prompt_tokens, 0U);
  EXPECT_EQ(queued.last.computed_prompt_tokens, 0U);
  engine->abort("decoding");
  engine->abort("nobody");
  EXPECT_TRUE(all_blocks_free(*engine));
  EXPECT_EQ(engine->metrics().finished_aborted.value(), 3U);
  Answer after;
  submit(*engine, make_request("after", {9}, 3), after);
  after.wait();
}

TEST(Engine, EndsEveryRequestWhenItIsDestroyed) {
  EngineOptions options = small_options();
  options.max_num_seqs = 2;
  FakeModel* model = nullptr;
  auto engine = make_fake_engine(options, nullptr, "", Role::kBoth, &model);
  Engine* raw = engine.get();
  // The first step takes until the engine is stopping.
  model->before_forward = [raw](auto) {
    while (raw->submit(make_request("r0", {9}, 3), OutputCallback()).error().code !=
           Errc::kUnavailable) {
      std::this_thread::yield();
    }
  };
  std::vector<std::unique_ptr<Answer>> answers;
  for (int i = 0; i < 6; ++i) {
    answers.push_back(std::make_unique<Answer>());
    submit(*engine, make_request(fmt::format("r{}", i), make_prompt(1, 10), 400), *answers.back());
  }
  engine.reset();
  for (const auto& answer : answers) {
    EXPECT_EQ(answer->finishes, 1);
    EXPECT_EQ(answer->last.finish, FinishReason::kAborted);
  }
}

TEST(Engine, MayBeCalledFromItsCallbacks) {
  const auto engine = make_fake_engine(small_options());
  Answer second;
  std::atomic<bool> accepted{false};
  const Status status = engine->submit(make_request("r", {9}, 2), [&](Output&& output) {
    engine->abort("r");  // already over, or soon
    if (output.finish) {
      accepted = engine->submit(make_request("r", {10}, 2), second.callback()).has_value();
    }
  });
  ASSERT_TRUE(status.has_value());
  second.wait();
  EXPECT_TRUE(accepted);
}

TEST(Engine, ChoosesWhatIsLeftToIt) {
  EngineOptions options;
  options.kv_cache_bytes = 1 << 20;
  options.max_num_seqs = 2;
  const auto engine = make_fake_engine(options);
  EXPECT_EQ(engine->options().max_model_len, 512U);
  EXPECT_EQ(engine->options().num_blocks, 2 * 512U / 16);
  EXPECT_EQ(engine->blocks().total, 64U);
  EXPECT_EQ(engine->agent(), nullptr);

  const auto refused = [](const EngineOptions& bad) {
    auto result = make_engine(std::make_unique<FakeModel>(), std::make_shared<FakeTokenizer>(), bad,
                              AgentFactory());
    return result.has_value() ? std::string("accepted") : result.error().message;
  };
  EngineOptions bad;
  bad.max_num_batched_tokens = 8;
  EXPECT_THAT(refused(bad), HasSubstr("max_num_batched_tokens 8 is smaller than max_num_seqs 64"));
  bad = {};
  bad.max_model_len = 513;
  EXPECT_THAT(refused(bad), HasSubstr("max_model_len 513 is over the model's context of 512"));
  bad = {};
  bad.kv_cache_bytes = 10;
  EXPECT_THAT(refused(bad), HasSubstr("kv_cache_bytes 10 does not hold one block of"));
  bad = {};
  bad.block_size = 0;
  EXPECT_THAT(refused(bad), HasSubstr("block_size is 0"));
}

}  // namespace
}  // namespace baton::engine
