#include "bench/handover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/records.h"

namespace baton::bench {
namespace {

constexpr std::int64_t kMs = 1'000'000;

// D is there before P has computed: what a push is at its best.
Handover early_registration() {
  Handover h;
  h.has_prefill = h.has_decode = true;
  h.prefill.submitted = 10 * kMs;
  h.prefill.first_step = 15 * kMs;
  h.prefill.computed = h.prefill.ready = 115 * kMs;
  h.prefill.registered = 20 * kMs;
  h.prefill.first_write = 116 * kMs;
  h.prefill.last_write = 118 * kMs;
  h.prefill.last_byte = 130 * kMs;
  h.prefill.told = 131 * kMs;
  h.decode.submitted = 11 * kMs;
  h.decode.started = 19 * kMs;
  h.decode.last_byte = 130 * kMs;
  h.decode.final_came = 132 * kMs;
  h.decode.told = 133 * kMs;
  h.decode.first_step = 137 * kMs;
  h.decode.last_token = 200 * kMs;
  return h;
}

double sum_of_parts(const HandoverSplit& s) {
  return *s.register_wait + *s.match + *s.post + *s.wire + *s.detect + *s.first_step;
}

TEST(HandoverSplit, lays_every_part_between_its_moments) {
  const HandoverSplit s = split_of(early_registration());
  EXPECT_DOUBLE_EQ(*s.queue, 8);
  EXPECT_DOUBLE_EQ(*s.prefill_queue, 5);
  EXPECT_DOUBLE_EQ(*s.prefill, 100);
  EXPECT_DOUBLE_EQ(*s.register_wait, 0);
  EXPECT_DOUBLE_EQ(*s.match, 1);
  EXPECT_DOUBLE_EQ(*s.post, 2);
  EXPECT_DOUBLE_EQ(*s.wire, 12);
  EXPECT_DOUBLE_EQ(*s.detect, 1) << "from the final message: the bytes alone are not all";
  EXPECT_DOUBLE_EQ(*s.first_step, 4);
  EXPECT_DOUBLE_EQ(*s.total, 22);
  EXPECT_DOUBLE_EQ(*s.block_hold, 16);
}

// D is asked by the router at 6 ms; the client has its first token at 142 ms.
Handover routed() {
  Handover h = early_registration();
  h.has_router = true;
  h.router.arrived = 5 * kMs;
  h.router.decode_asked = 6 * kMs;
  h.router.decode_first_token = h.router.first_byte = 141 * kMs;
  return h;
}
constexpr ClientMoments kClient = {4 * kMs, 142 * kMs};

TEST(HandoverSplit, accounts_for_the_whole_time_to_first_token) {
  const HandoverSplit s = split_of(routed(), kClient);
  EXPECT_DOUBLE_EQ(*s.front_end, 6);
  EXPECT_DOUBLE_EQ(*s.decode_front_end, 5) << "from when D was asked, not from the client";
  EXPECT_DOUBLE_EQ(*s.first_token, 5);
  EXPECT_DOUBLE_EQ(*s.front_end + *s.prefill_queue + *s.prefill + *s.total + *s.first_token, 138);
}

// Then the hand-over keeps nobody waiting for a first token.
TEST(HandoverSplit, leaves_the_hand_over_out_where_p_gives_the_first_token) {
  Handover h = routed();
  h.router.first_byte = 116 * kMs;
  const HandoverSplit s = split_of(h, {4 * kMs, 117 * kMs});
  EXPECT_DOUBLE_EQ(*s.first_token, 2);
  EXPECT_DOUBLE_EQ(*s.front_end + *s.prefill_queue + *s.prefill + *s.first_token, 113);
  h.router.decode_first_token = 0;
  EXPECT_DOUBLE_EQ(*split_of(h, {4 * kMs, 117 * kMs}).first_token, 2) << "D never told of one";
}

// Clocks of two hosts that are laid on each other a little wrong.
TEST(HandoverSplit, has_no_negative_part) {
  Handover h = routed();
  h.prefill.submitted = 3 * kMs;
  h.decode.submitted = 5 * kMs;
  const HandoverSplit s = split_of(h, {4 * kMs, 136 * kMs});
  EXPECT_FALSE(s.front_end || s.decode_front_end || s.first_token);
  const HandoverSplit alone = split_of(early_registration(), kClient);
  EXPECT_FALSE(alone.decode_front_end || alone.first_token) << "without the router's record";
  EXPECT_FALSE(split_of(routed()).front_end || split_of(routed()).first_token);
}

TEST(HandoverSplit, shows_a_late_registration_as_the_wait_for_it) {
  Handover h = early_registration();
  h.prefill.registered = 115 * kMs + 30 * kMs;
  for (std::int64_t* at : {&h.prefill.first_write, &h.prefill.last_write, &h.decode.last_byte,
                           &h.decode.final_came, &h.decode.told, &h.decode.first_step}) {
    *at += 30 * kMs;
  }
  h.decode.final_came = h.decode.last_byte;
  const HandoverSplit s = split_of(h);
  EXPECT_DOUBLE_EQ(*s.register_wait, 30);
  EXPECT_DOUBLE_EQ(*s.match, 1);
  EXPECT_DOUBLE_EQ(sum_of_parts(s), *s.total);
}

// Pieces that crossed while P computed the rest cost nobody.
TEST(HandoverSplit, leaves_out_what_went_on_beside_the_computing) {
  Handover h = early_registration();
  h.prefill.ready = 40 * kMs;
  h.prefill.first_write = 41 * kMs;
  h.decode.final_came = 0;
  const HandoverSplit s = split_of(h);
  EXPECT_DOUBLE_EQ(*s.match, 1);
  EXPECT_DOUBLE_EQ(*s.post, 3);
  EXPECT_DOUBLE_EQ(*s.post + *s.wire + *s.detect + *s.first_step, *s.total);
}

// Pull: D chose itself when to begin, and read.
TEST(HandoverSplit, takes_the_moments_of_whoever_moves_the_bytes) {
  Handover h = early_registration();
  h.prefill.registered = h.prefill.first_write = h.prefill.last_write = 0;
  h.decode.registered = 120 * kMs;
  h.decode.first_write = 121 * kMs;
  h.decode.final_came = 0;
  const HandoverSplit s = split_of(h);
  EXPECT_DOUBLE_EQ(*s.register_wait, 5);
  EXPECT_DOUBLE_EQ(*s.match, 1);
  EXPECT_FALSE(s.post.has_value());
  EXPECT_DOUBLE_EQ(*s.wire, 9);
}

TEST(HandoverSplit, says_nothing_of_what_was_not_recorded) {
  Handover h = early_registration();
  h.prefill.last_write = 0;
  h.decode.first_step = 0;
  const HandoverSplit s = split_of(h);
  EXPECT_FALSE(s.post || s.total || s.first_step);
  EXPECT_DOUBLE_EQ(*s.wire, 14) << "from the first write, where the last is not known";
  EXPECT_FALSE(split_of(Handover{}).block_hold.has_value());
}

TEST(Spans, are_those_with_both_ends) {
  Handover h = early_registration();
  h.decode.told = 0;
  for (const Span& span : spans_of(h)) {
    EXPECT_GT(span.end, span.start);
    EXPECT_NE(span.name, "detect");
    EXPECT_NE(span.name, "register_wait") << "it was there before";
  }
  EXPECT_THAT(spans_of(h), ::testing::Contains(::testing::Field(&Span::name, "wire")));
}

TEST(Spans, begin_with_the_way_into_both_engines) {
  using ::testing::AllOf;
  using ::testing::Contains;
  using ::testing::Field;
  for (const auto& [side, start, end] :
       {std::tuple{"prefill", 4 * kMs, 10 * kMs}, {"decode", 6 * kMs, 11 * kMs}}) {
    EXPECT_THAT(spans_of(routed(), kClient),
                Contains(AllOf(Field(&Span::name, "front_end"), Field(&Span::side, side),
                               Field(&Span::start, start), Field(&Span::end, end))));
  }
}

TEST(Covered, counts_what_overlaps_once_and_stays_inside) {
  EXPECT_EQ(covered({{0, 10}, {5, 20}, {30, 40}}, {0, 100}), 30);
  EXPECT_EQ(covered({{0, 10}, {2, 3}, {90, 200}}, {5, 100}), 15);
  EXPECT_EQ(covered({}, {0, 100}), 0);
}

TEST(Occupancy, is_weighted_by_time) {
  const auto o = occupancy({{0, 50}, {10, 20}, {10, 11}}, {0, 100});
  ASSERT_TRUE(o.has_value());
  EXPECT_EQ(o->max, 3);
  EXPECT_DOUBLE_EQ(o->mean, 0.61);
  EXPECT_EQ(o->p99, 2);
  EXPECT_FALSE(occupancy({}, {0, 100}).has_value());
}

TEST(Bytes, of_a_full_prompt_follow_from_the_plan_of_its_blocks) {
  Handover h;
  h.decode.prompt_tokens = 100;
  h.decode.blocks = 3;
  h.decode.bytes_planned = 300;
  EXPECT_EQ(bytes_of_full_prompt(h, 16), 700U) << "D's cache kept four of seven blocks";
  h.decode.blocks = 0;
  EXPECT_EQ(bytes_of_full_prompt(h, 16), 0U);
}

constexpr char kRecordsPage[] = R"({"transfers": [
  {"side": "prefill", "transfer_id": "aa", "bytes": 64, "writes": 2, "fabric": "shm",
   "cached_prompt_tokens": 48,
   "times": {"submitted": 5, "pieces_ready": [7, 9], "registered": 8, "last_write": 0}},
  {"side": "decode", "transfer_id": "aa", "bytes": 64, "bytes_planned": 64, "blocks": 2,
   "outcome": "done", "times": {"told": 20}},
  {"side": "router", "transfer_id": "aa", "times": {"arrived": 1, "first_byte": 30},
   "decode": {"url": "http://d", "times": {"dispatched": 2, "first_token": 29}}},
  {"side": "prefill", "transfer_id": "bb", "times": {"submitted": 1}}],
  "clock": {"boot_id": "x", "monotonic_ns": 1}})";

TEST(Records, are_joined_by_transfer_and_moved_to_our_clock) {
  Records records;
  ASSERT_TRUE(read_records(kRecordsPage, 100, {"aa"}, records));
  ASSERT_EQ(records.by_transfer.size(), 1U) << "another run's is nothing of ours";
  const Handover& h = records.by_transfer.at("aa");
  EXPECT_TRUE(h.has_router && h.has_prefill && h.has_decode);
  EXPECT_EQ(h.router.first_byte, 130);
  EXPECT_EQ(h.router.decode_asked, 102);
  EXPECT_EQ(h.router.decode_first_token, 129);
  EXPECT_EQ(h.prefill.submitted, 105);
  EXPECT_EQ(h.prefill.computed, 109);
  EXPECT_EQ(h.prefill.last_write, 0) << "what did not happen stays so";
  EXPECT_EQ(h.decode.told, 120);
  EXPECT_EQ(h.decode.blocks, 2U);
  EXPECT_EQ(h.prefill.cached_tokens, 48U);
  EXPECT_EQ(h.decode.cached_tokens, 0U);
  EXPECT_EQ(h.writes, 2U);
}

TEST(Records, take_no_page_that_is_none) {
  Records records;
  for (const char* page : {"", "[]", "{}", R"({"transfers": 3})"}) {
    EXPECT_FALSE(read_records(page, 0, {"aa"}, records)) << page;
  }
  EXPECT_TRUE(
      read_records(R"({"transfers": [3, {"side": 4, "transfer_id": "aa"}]})", 0, {"aa"}, records));
  EXPECT_TRUE(
      read_records(R"({"transfers": [{"side": "router", "transfer_id": "aa", "decode": [1]}]})", 0,
                   {"aa"}, records));
}

}  // namespace
}  // namespace baton::bench
