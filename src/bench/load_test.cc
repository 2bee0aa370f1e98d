#include "bench/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <mutex>

#include "bench/bench_run.h"
#include "bench/progress.h"
#include "bench/serve_command.h"
#include "bench/testing/fake_server.h"

namespace baton::bench {
namespace {

using testing::answer_tokens;
using ::testing::ElementsAre;
using testing::FakeServer;
using ::testing::HasSubstr;
using ::testing::Pair;

BenchOptions options_for(const FakeServer& server, std::uint32_t requests) {
  BenchOptions o;
  o.base_url = server.url();
  o.num_prompts = requests;
  o.request_rate = 2000;
  o.random_input_len = 8;
  o.random_output_len = 4;
  o.disable_tqdm = true;
  o.ready_check_timeout_sec = 20;
  o.request_timeout = 20;
  return o;
}

// It answers nobody before the last one has arrived: a load that waits for answers would never
// bring that one, and its first requests would end timed out.
TEST(Load, arrivals_do_not_wait_for_a_server_that_does_not_answer) {
  constexpr std::size_t kRequests = 300;
  std::mutex mutex;
  std::vector<FakeServer::Writer> held;
  std::atomic<bool> gave_up{false};  // the load did, on a first request
  FakeServer server([&](std::size_t, const http::Request&, const FakeServer::Writer& writer) {
    if (gave_up) return writer->respond(503, "text/plain", "");
    writer->on_closed([&gave_up] { gave_up = true; });
    const std::lock_guard lock(mutex);
    held.push_back(writer);
    if (held.size() < kRequests) return;
    for (const FakeServer::Writer& one : held) answer_tokens(one, 4);
  });
  const auto run = run_bench(options_for(server, kRequests));
  ASSERT_TRUE(run.has_value()) << run.error().message;
  EXPECT_EQ(run->metrics.completed, kRequests);
  EXPECT_EQ(run->load.most_open, kRequests);
}

TEST(Load, sends_in_the_order_of_the_plan_and_never_before_its_time) {
  FakeServer server([](std::size_t, const http::Request&, const FakeServer::Writer& writer) {
    answer_tokens(writer, 2);
  });
  const auto run = run_bench(options_for(server, 50));
  ASSERT_TRUE(run.has_value());
  Duration last = Duration::zero();
  for (const RequestResult& result : run->load.results) {
    EXPECT_GE(result.sent, result.due);
    EXPECT_GE(result.sent, last);
    last = result.sent;
  }
}

TEST(Load, keeps_at_most_so_many_open_where_that_is_asked_for) {
  std::atomic<int> open{0}, most{0};
  FakeServer server([&](std::size_t, const http::Request&, const FakeServer::Writer& writer) {
    most = std::max(most.load(), ++open);
    --open;
    answer_tokens(writer, 2);
  });
  BenchOptions o = options_for(server, 40);
  o.max_concurrency = 3;
  const auto run = run_bench(o);
  ASSERT_TRUE(run.has_value());
  EXPECT_LE(run->load.most_open, 3U);
  EXPECT_EQ(run->metrics.completed, 40U);
}

TEST(Load, counts_failures_by_cause_and_goes_on) {
  FakeServer server([](std::size_t i, const http::Request&, const FakeServer::Writer& writer) {
    if (i % 5 == 0) return writer->respond(429, "application/json", "{}");
    if (i % 5 == 1) {
      return writer->respond(502, "application/json",
                             R"({"error":{"message":"gone","baton":{"cause":"peer_died"}}})");
    }
    if (i % 5 == 2) {
      writer->start_stream(200, std::string(http::kSseContentType));
      writer->write(http::format_sse(R"({"choices":[{"text":"x"}]})"));
      return writer->finish();
    }
    answer_tokens(writer, 2);
  });
  const auto run = run_bench(options_for(server, 20));
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->metrics.completed, 8U);
  EXPECT_THAT(run->metrics.failures,
              ElementsAre(Pair("http_429", 4), Pair("peer_died", 4), Pair("stream_cut", 4)));
}

TEST(Load, takes_the_servers_model_and_asks_for_token_ids_below_its_vocabulary) {
  std::mutex mutex;
  std::string body, id;
  FakeServer server([&](std::size_t, const http::Request& request, const auto& writer) {
    const std::lock_guard lock(mutex);
    body = request.body;
    id = request.headers.get("X-Request-Id");
    answer_tokens(writer, 4);
  });
  const auto run = run_bench(options_for(server, 1));
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->model_id, "fake");
  EXPECT_THAT(body, HasSubstr(R"("model":"fake")"));
  EXPECT_TRUE(id.starts_with("bench-") && id.ends_with("-0") && id.size() == 16) << id;
  EXPECT_EQ(run->metrics.total_input_tokens, 8U);
  EXPECT_EQ(run->metrics.total_output_tokens, 4U);
}

TEST(Load, waits_for_a_server_that_lists_its_models_and_still_reads_them) {
  FakeServer server([](std::size_t, const http::Request&,
                       const FakeServer::Writer& writer) { answer_tokens(writer, 2); },
                    3);
  const auto run = run_bench(options_for(server, 1));
  ASSERT_TRUE(run.has_value()) << run.error().message;
  EXPECT_EQ(run->model_id, "fake");
}

TEST(Load, says_what_was_in_the_way_of_a_server_that_is_not_ready) {
  BenchOptions o;
  o.base_url = "http://127.0.0.1:1";
  o.ready_check_timeout_sec = 0;
  const auto run = run_bench(o);
  ASSERT_FALSE(run.has_value());
  EXPECT_EQ(run.error().code, Errc::kUnavailable);
  EXPECT_THAT(run.error().message, HasSubstr("127.0.0.1:1"));
}

TEST(Load, knows_the_length_that_each_answer_was_asked_for) {
  FakeServer server([](std::size_t, const http::Request&, const FakeServer::Writer& writer) {
    answer_tokens(writer, 2);
  });
  BenchOptions o = options_for(server, 3);
  EXPECT_EQ(run_bench(o).value().load.results[2].asked_len, 4U);
  o.extra_body = R"({"max_tokens": 2})";
  EXPECT_EQ(run_bench(o).value().load.results[2].asked_len, 2U);
}

TEST(ServeCommand, makes_no_folder_where_nothing_is_saved_or_a_value_is_wrong) {
  BenchOptions o;
  o.base_url = "http://127.0.0.1:1";
  o.ready_check_timeout_sec = 0;
  o.result_dir = ::testing::TempDir() + "no-results";
  std::filesystem::remove_all(o.result_dir);
  EXPECT_EQ(run_bench_serve(o), serving::Exit::kOther);
  EXPECT_FALSE(std::filesystem::exists(o.result_dir));
  o.save_result = true;
  o.num_prompts = 0;
  EXPECT_EQ(run_bench_serve(o), serving::Exit::kUsage);
  EXPECT_FALSE(std::filesystem::exists(o.result_dir));
}

TEST(Progress, says_how_far_it_is_and_what_is_left) {
  ProgressState s;
  s.total = 100;
  s.sent = 30;
  s.done = 25;
  s.failed = 1;
  s.elapsed = std::chrono::seconds(10);
  s.last_arrival = std::chrono::seconds(20);
  EXPECT_EQ(progress_line(s),
            "[######..................] 25/100 done, 5 running, 1 failed, 10 s, 30 s left");
  s.done = 90;
  EXPECT_EQ(time_left(s), std::chrono::seconds(10)) << "arrivals go on until then";
  s.done = 0;
  EXPECT_EQ(time_left(s), std::chrono::seconds(10));
}

}  // namespace
}  // namespace baton::bench
