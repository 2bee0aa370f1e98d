#include "engine/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace baton::engine {
namespace {

using ::testing::HasSubstr;

constexpr RequestLimits kLimits{.vocab_size = 100,
                                .max_model_len = 64,
                                .block_size = 16,
                                .total_blocks = 3,
                                .role = Role::kBoth};

Request good() {
  Request request;
  request.id = std::string("r");
  request.prompt = {1, 2, 3};
  return request;
}

void announce(Request& request, std::vector<std::vector<BlockId>> ids) {
  request.remote_prefill = RemotePrefill{.transfer = {1, 2}};
  request.remote_prefill->source =
      SourceBlocks{{0, static_cast<std::uint32_t>(request.prompt.size())}, std::move(ids)};
}

struct Fault {
  const char* name;
  std::function<void(Request&, RequestLimits&)> spoil;
  const char* message;
};

TEST(Validate, NamesTheFieldAndBothValues) {
  ASSERT_TRUE(validate(good(), kLimits).has_value());
  const TransferId transfer{1, 2};
  const std::vector<Fault> cases{
      {"no id", [](Request& r, RequestLimits&) { r.id.clear(); }, "id is empty"},
      {"no prompt", [](Request& r, RequestLimits&) { r.prompt = {}; }, "prompt is empty"},
      {"long prompt", [](Request& r, RequestLimits&) { r.prompt.assign(64, 1); },
       "prompt has 64 tokens, and with one token to generate max_model_len 64"},
      {"negative token", [](Request& r, RequestLimits&) { r.prompt[1] = -1; },
       "token -1 at position 1 is not in the vocabulary of 100"},
      {"token too large", [](Request& r, RequestLimits&) { r.prompt[2] = 100; },
       "token 100 at position 2"},
      {"too long together", [](Request& r, RequestLimits&) { r.sampling.max_tokens = 62; },
       "3 tokens and max_tokens 62 make 65, over max_model_len 64"},
      {"never fits", [](Request& r, RequestLimits&) { r.sampling.max_tokens = 46; },
       "need 4 blocks of 16 tokens, and the pool has 3"},
      {"no tokens", [](Request& r, RequestLimits&) { r.sampling.max_tokens = 0; },
       "max_tokens is 0"},
      {"cold", [](Request& r, RequestLimits&) { r.sampling.temperature = -0.5; },
       "temperature is -0.5"},
      {"nan", [](Request& r, RequestLimits&) { r.sampling.temperature = NAN; },
       "temperature is nan"},
      {"top_p 0", [](Request& r, RequestLimits&) { r.sampling.top_p = 0; }, "top_p is 0"},
      {"top_p 2", [](Request& r, RequestLimits&) { r.sampling.top_p = 2; }, "top_p is 2"},
      {"stop", [](Request& r, RequestLimits&) { r.sampling.stop = {"a", ""}; },
       "stop string is empty"},
      {"announced in push", [&](Request& r, RequestLimits&) { announce(r, {{7}}); },
       "mode of this instance is push"},
      {"nothing announced",
       [&](Request& r, RequestLimits& l) {
         announce(r, {{7}});
         r.remote_prefill->source.reset();
         l.mode = Mode::kPull;
       },
       "no blocks are announced (remote_block_ids)"},
      {"announced for another prompt",
       [&](Request& r, RequestLimits& l) {
         announce(r, {{7}});
         r.remote_prefill->source->range.end = 4;
         l.mode = Mode::kPull;
       },
       "hold tokens [0, 4), and the prompt has 3"},
      {"two groups",
       [&](Request& r, RequestLimits& l) {
         announce(r, {{7}, {7}});
         l.mode = Mode::kPull;
       },
       "are of 2 cache groups, and this model has 1"},
      {"too many blocks",
       [&](Request& r, RequestLimits& l) {
         announce(r, {{7, 8}});
         l.mode = Mode::kPull;
       },
       "are 2, and 3 tokens in blocks of 16 need 1"},
      {"a block twice",
       [&](Request& r, RequestLimits& l) {
         r.prompt.assign(20, 1);
         announce(r, {{7, 7}});
         l.mode = Mode::kPull;
       },
       "name block 7 twice"},
      {"a strange first token",
       [&](Request& r, RequestLimits& l) {
         announce(r, {{7}});
         r.remote_prefill->announced_token = 100;
         l.mode = Mode::kPull;
       },
       "(remote_first_token) 100 is not in the vocabulary of 100"},
      {"both roles",
       [&](Request& r, RequestLimits&) {
         r.remote_decode = RemoteDecode{.transfer = transfer};
         r.remote_prefill = RemotePrefill{.transfer = transfer};
       },
       "remote_decode and remote_prefill are both set"},
      {"P on a consumer",
       [&](Request& r, RequestLimits& l) {
         r.remote_decode = RemoteDecode{.transfer = transfer};
         l.role = Role::kConsumer;
       },
       "remote_decode is set, and the role of this instance is kv_consumer"},
      {"D on a producer",
       [&](Request& r, RequestLimits& l) {
         r.remote_prefill = RemotePrefill{.transfer = transfer};
         l.role = Role::kProducer;
       },
       "remote_prefill is set, and the role of this instance is kv_producer"},
      {"no agent",
       [&](Request& r, RequestLimits& l) {
         r.remote_prefill = RemotePrefill{.transfer = transfer};
         l.role.reset();
       },
       "remote_prefill is set, and this instance has no hand-over configured"},
      {"null transfer", [](Request& r, RequestLimits&) { r.remote_decode = RemoteDecode{}; },
       "remote_decode: the transfer id is null"},
  };
  for (const Fault& c : cases) {
    SCOPED_TRACE(c.name);
    Request request = good();
    RequestLimits limits = kLimits;
    c.spoil(request, limits);
    const Status status = validate(request, limits);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(status.error().message, HasSubstr(c.message));
  }
}

TEST(Validate, TakesWhatJustFits) {
  Request request = good();
  request.sampling.max_tokens = 45;  // 48 tokens: three blocks
  EXPECT_TRUE(validate(request, kLimits).has_value());
}

}  // namespace
}  // namespace baton::engine
