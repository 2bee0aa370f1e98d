#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "engine/testing/fake_model.h"

namespace baton::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class SchedulerTest : public ::testing::Test {
 protected:
  Sequence& add(std::uint32_t prompt, bool remote = false) {
    Request request;
    request.id = std::to_string(sequences_.size());
    request.prompt.assign(prompt, 7);
    if (remote) request.remote_prefill = RemotePrefill{.transfer = TransferId{1, ++transfers_}};
    auto owned = std::make_unique<Sequence>(std::move(request), OutputCallback{}, tokenizer_);
    owned->arrival = sequences_.size() + 1;
    sequences_.push_back(std::move(owned));
    scheduler_->enqueue(*sequences_.back());
    return *sequences_.back();
  }

  // One step: who computed how many tokens. Everyone whose tokens are all computed gets one more.
  std::vector<std::pair<std::string, std::uint32_t>> step() {
    to_register_.clear();
    scheduler_->admit(to_register_);
    scheduler_->plan(work_);
    std::vector<std::pair<std::string, std::uint32_t>> result;
    for (const Work& work : work_) {
      result.emplace_back(work.sequence->request.id, work.num_tokens);
      work.sequence->computed += work.num_tokens;
      if (work.sequence->remaining() == 0) work.sequence->tokens.push_back(7);
    }
    return result;
  }

  void start(std::uint32_t blocks, SchedulerLimits limits) {
    pool_ = std::make_unique<BlockPool>(blocks);
    scheduler_ = std::make_unique<Scheduler>(*pool_, limits);
  }
  void end(Sequence& sequence) {
    scheduler_->remove(sequence);
    pool_->free(sequence.blocks);
    sequence.blocks.clear();
  }

  FakeTokenizer tokenizer_;
  std::uint64_t transfers_ = 0;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<Sequence*> to_register_;
  std::vector<Work> work_;
};

TEST_F(SchedulerTest, CutsPromptsAndLetsDecodesGoFirst) {
  start(100, {.block_size = 4, .max_num_seqs = 4, .max_num_batched_tokens = 10});
  add(6);
  add(25);
  EXPECT_THAT(step(), ElementsAre(Pair("0", 6), Pair("1", 4)));
  EXPECT_THAT(step(), ElementsAre(Pair("0", 1), Pair("1", 9)));
  EXPECT_THAT(step(), ElementsAre(Pair("0", 1), Pair("1", 9)));
  EXPECT_THAT(step(), ElementsAre(Pair("0", 1), Pair("1", 3)));
  EXPECT_THAT(step(), ElementsAre(Pair("0", 1), Pair("1", 1)));
}

TEST_F(SchedulerTest, RunsNoMoreThanItsPlaces) {
  start(100, {.block_size = 4, .max_num_seqs = 2, .max_num_batched_tokens = 100});
  Sequence& first = add(3);
  add(3);
  add(3);
  EXPECT_EQ(step().size(), 2U);
  EXPECT_EQ(scheduler_->waiting(), 1U);
  end(first);
  EXPECT_THAT(step(), ElementsAre(Pair("1", 1), Pair("2", 3)));
}

TEST_F(SchedulerTest, OneThatOnlyNeedsBlocksDoesNotWaitForAPlace) {
  start(100, {.block_size = 4, .max_num_seqs = 1, .max_num_batched_tokens = 100});
  add(3);
  add(3);
  Sequence& remote = add(9, true);
  (void)step();
  EXPECT_THAT(to_register_, ElementsAre(&remote));
  EXPECT_EQ(remote.blocks.size(), 3U);
  EXPECT_EQ(remote.phase, Phase::kRemoteKv);
}

TEST_F(SchedulerTest, FirstComeFirstServedForBlocks) {
  start(8, {.block_size = 4, .max_num_seqs = 8, .max_num_batched_tokens = 100});
  Sequence& first = add(20);
  add(16);
  add(1);  // would fit, and does not overtake
  EXPECT_THAT(step(), ElementsAre(Pair("0", 20)));
  EXPECT_THAT(step(), ElementsAre(Pair("0", 1)));
  end(first);
  EXPECT_THAT(step(), ElementsAre(Pair("2", 1), Pair("1", 16)));
}

TEST_F(SchedulerTest, TheYoungestGivesWayWhenThePoolIsDry) {
  start(5, {.block_size = 4, .max_num_seqs = 8, .max_num_batched_tokens = 100});
  Sequence& old = add(8);
  Sequence& young = add(7);
  EXPECT_THAT(step(), ElementsAre(Pair("0", 8), Pair("1", 7)));
  EXPECT_EQ(pool_->counts().free, 1U);
  EXPECT_THAT(step(), ElementsAre(Pair("0", 1), Pair("1", 1)));  // the old one grew
  EXPECT_EQ(pool_->counts().free, 0U);
  EXPECT_THAT(step(), ElementsAre(Pair("0", 1)));  // the young one had to grow: it waits again
  EXPECT_EQ(young.phase, Phase::kWaiting);
  EXPECT_EQ(young.computed, 0U);
  EXPECT_EQ(scheduler_->preemptions(), 1U);
  EXPECT_EQ(pool_->counts().free, 2U);
  end(old);
  EXPECT_THAT(step(), ElementsAre(Pair("1", 9)));  // its prompt and the two that it had sampled
}

TEST_F(SchedulerTest, AnOldOneTakesFromAYoungOneThatHasNotStarted) {
  start(4, {.block_size = 4, .max_num_seqs = 1, .max_num_batched_tokens = 100});
  Sequence& old = add(8);
  Sequence& remote = add(8, true);
  (void)step();  // the reserve for the old one keeps the remote one out
  EXPECT_EQ(remote.phase, Phase::kWaiting);
  end(old);
  (void)step();
  ASSERT_EQ(remote.phase, Phase::kRemoteKv);
  old.tokens.resize(8);
  old.phase = Phase::kWaiting;
  scheduler_->enqueue(old);
  EXPECT_THAT(step(), ElementsAre(Pair("0", 8)));
  EXPECT_THAT(step(),
              ElementsAre());  // all other blocks are under transfer: it waits, and keeps its own
  EXPECT_EQ(old.phase, Phase::kRunning);
  EXPECT_EQ(scheduler_->preemptions(), 0U);
  remote.computed = 7;
  scheduler_->arrived(remote);
  EXPECT_THAT(step(), ElementsAre(Pair("0", 1)));  // now the younger one gives way
  EXPECT_EQ(remote.phase, Phase::kWaiting);
}

TEST_F(SchedulerTest, NeverPreemptsFinishedBlocksThatTheAgentKnows) {
  start(10, {.block_size = 4, .max_num_seqs = 8, .max_num_batched_tokens = 6});
  Sequence& old = add(4);
  Sequence& young = add(32);
  young.request.remote_decode = RemoteDecode{.transfer = TransferId{1, 1}};
  EXPECT_THAT(step(), ElementsAre(Pair("0", 4), Pair("1", 2)));
  EXPECT_THAT(step(), ElementsAre(Pair("0", 1), Pair("1", 5)));
  young.ready_sent = 4;  // its first block was announced
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(step(), ElementsAre(Pair("0", 1), Pair("1", 5)));
  }
  EXPECT_EQ(pool_->counts().free, 0U);
  EXPECT_THAT(step(), ElementsAre(Pair("1", 6)));  // the old one waits, and keeps its blocks
  EXPECT_EQ(old.phase, Phase::kRunning);
  EXPECT_EQ(old.blocks.size(), 2U);
  EXPECT_EQ(young.blocks.size(), 8U);
  EXPECT_EQ(scheduler_->preemptions(), 0U);
}

// One that gave its registration up stands behind another with the same arrival. The first of them
// must not lose its blocks in the step in which it computes.
TEST_F(SchedulerTest, OfTwoThatArrivedTogetherTheSecondGivesWay) {
  start(5, {.block_size = 4, .max_num_seqs = 8, .max_num_batched_tokens = 100});
  Sequence& first = add(5);
  Sequence& second = add(7);
  second.arrival = first.arrival;
  EXPECT_THAT(step(), ElementsAre(Pair("0", 5), Pair("1", 7)));
  std::vector<BlockId> taken;
  ASSERT_TRUE(pool_->allocate(1, taken));
  EXPECT_THAT(step(), ElementsAre(Pair("0", 1), Pair("1", 1)));
  EXPECT_THAT(step(), ElementsAre(Pair("0", 1)));  // the second had to grow
  EXPECT_EQ(first.phase, Phase::kRunning);
  EXPECT_EQ(second.phase, Phase::kWaiting);
}

TEST_F(SchedulerTest, SaysWhatTheHeadWaitsFor) {
  start(8, {.block_size = 4, .max_num_seqs = 8, .max_num_batched_tokens = 100});
  Sequence& first = add(20);
  (void)step();
  EXPECT_EQ(scheduler_->wanted_blocks(), 0U);
  Sequence& second = add(16);
  (void)step();
  EXPECT_EQ(scheduler_->wanted_blocks(), 4U + 1U);
  end(first);
  (void)step();
  EXPECT_EQ(second.phase, Phase::kRunning);
  EXPECT_EQ(scheduler_->wanted_blocks(), 0U);
}

TEST_F(SchedulerTest, WhatTheCacheHasIsSharedAndCountsAsComputed) {
  PrefixCache cache(4, 8);
  pool_ = std::make_unique<BlockPool>(8, [&cache](BlockId block) { cache.forget(block); });
  scheduler_ = std::make_unique<Scheduler>(
      *pool_, SchedulerLimits{.block_size = 4, .max_num_seqs = 8, .max_num_batched_tokens = 100},
      &cache);
  Sequence& first = add(9);
  EXPECT_THAT(step(), ElementsAre(Pair("0", 9)));
  const std::vector<TokenId> tokens(4, 7);
  const auto node = cache.insert(PrefixCache::kRoot, tokens, first.blocks[0]).node;
  (void)cache.insert(node, tokens, first.blocks[1]);
  pool_->mark_cached(first.blocks[0]);
  pool_->mark_cached(first.blocks[1]);

  Sequence& second = add(10);  // two blocks shared, one of its own
  EXPECT_THAT(step(), ElementsAre(Pair("0", 1), Pair("1", 2)));
  EXPECT_EQ(second.cached, 8U);
  EXPECT_EQ(second.blocks[1], first.blocks[1]);
  EXPECT_NE(second.blocks[2], first.blocks[2]);
  EXPECT_EQ(pool_->counts().used, 4U);

  // One that does not fit leaves the shared blocks as they were.
  Sequence& large = add(32);
  (void)step();
  EXPECT_EQ(large.phase, Phase::kWaiting);
  end(first);
  end(second);
  EXPECT_EQ(pool_->counts().free, 8U);
  (void)step();
  EXPECT_EQ(large.cached, 8U);
  EXPECT_EQ(large.blocks.size(), 8U);
}

}  // namespace
}  // namespace baton::engine
