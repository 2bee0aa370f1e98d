#include "bench/stream_reader.h"

#include <gtest/gtest.h>

namespace baton::bench {
namespace {

using std::chrono::milliseconds;

class Reader : public ::testing::Test {
 protected:
  void start(Api api = Api::kCompletions, int status = 200) {
    reader_.emplace(api, true, result_);
    reader_->on_headers(status, {{"x-baton-transfer-id", "0123"}});
  }
  void say(const std::string& data, int at_ms) {
    reader_->on_data("data: " + data + "\n\n", milliseconds(at_ms));
  }
  void token(const std::string& text, int at_ms) {
    say(R"({"choices":[{"index":0,"text":")" + text + R"("}]})", at_ms);
  }
  RequestResult result_;
  std::optional<StreamReader> reader_;
};

TEST_F(Reader, times_every_event_and_takes_the_servers_count) {
  start();
  token("a", 100);
  token("", 110);  // a token whose text is not whole yet
  token("bc", 130);
  say(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4}})", 135);
  say("[DONE]", 140);
  reader_->on_end();
  EXPECT_TRUE(result_.ok);
  EXPECT_EQ(result_.first, milliseconds(100));
  EXPECT_EQ(result_.second, milliseconds(110));
  EXPECT_EQ(result_.last, milliseconds(130));
  EXPECT_EQ(result_.gaps.size(), 2U);
  EXPECT_EQ(result_.input_len, 7U);
  EXPECT_EQ(result_.output_len, 4U);
  EXPECT_TRUE(result_.is_counted);
  EXPECT_EQ(result_.text, "abc");
  EXPECT_EQ(result_.transfer_id, "0123");
}

TEST_F(Reader, counts_events_where_the_server_says_nothing) {
  start();
  token("a", 1);
  token("b", 2);
  say("[DONE]", 3);
  reader_->on_end();
  EXPECT_EQ(result_.output_len, 2U);
  EXPECT_FALSE(result_.is_counted);
}

TEST_F(Reader, counts_events_where_usage_names_no_tokens_of_the_answer) {
  start();
  say(R"({"choices":[{"text":"a"}],"usage":{"prompt_tokens":7,"completion_tokens":null}})", 1);
  say("[DONE]", 3);
  reader_->on_end();
  EXPECT_EQ(result_.output_len, 1U);
  EXPECT_FALSE(result_.is_counted);
  EXPECT_EQ(result_.input_len, 7U);
}

TEST_F(Reader, reads_a_stream_however_it_is_cut_with_comments_and_either_line_end) {
  start();
  const std::string stream =
      ": ping\r\n\r\ndata: {\"choices\":[{\"text\":\"a\"}]}\r\n\r\n"
      "data: {\"object\":\"x\"}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\ndata: [DONE]\n\n";
  for (std::size_t i = 0; i < stream.size(); ++i) {
    reader_->on_data(std::string_view(stream).substr(i, 1), milliseconds(static_cast<int>(i)));
  }
  reader_->on_end();
  EXPECT_TRUE(result_.ok) << result_.error;
  EXPECT_EQ(result_.text, "ab");
  EXPECT_EQ(result_.output_len, 2U);
}

TEST_F(Reader, takes_the_word_who_speaks_for_no_token) {
  start(Api::kChat);
  say(R"({"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]})", 5);
  EXPECT_FALSE(result_.first.has_value());
  say(R"({"choices":[{"delta":{"content":"x"}}]})", 9);
  EXPECT_EQ(result_.first, milliseconds(9));
  EXPECT_EQ(result_.text, "x");
}

TEST_F(Reader, names_the_cause_that_a_refusal_names) {
  start(Api::kCompletions, 503);
  reader_->on_data(R"({"error":{"message":"no P","baton":{"cause":"no_prefill)", {});
  reader_->on_data(R"(_instance"}}})", {});
  reader_->on_end();
  EXPECT_FALSE(result_.ok);
  EXPECT_EQ(result_.cause, "no_prefill_instance");
  EXPECT_EQ(result_.error, "no P");
}

TEST_F(Reader, names_the_status_of_a_refusal_without_a_cause) {
  start(Api::kCompletions, 429);
  reader_->on_data("busy", {});
  reader_->on_end();
  EXPECT_EQ(result_.cause, "http_429");
  EXPECT_EQ(result_.error, "busy");
}

TEST_F(Reader, names_the_cause_of_an_error_in_the_stream) {
  start();
  token("a", 1);
  reader_->on_data(
      "event: error\ndata: {\"error\":{\"message\":\"gone\",\"baton\":"
      "{\"cause\":\"peer_died\"}}}\n\n",
      milliseconds(2));
  reader_->on_end();
  EXPECT_FALSE(result_.ok);
  EXPECT_EQ(result_.cause, "peer_died");
}

TEST_F(Reader, calls_a_stream_without_its_end_cut) {
  start();
  token("a", 1);
  reader_->on_end();
  EXPECT_EQ(result_.cause, "stream_cut");
}

TEST_F(Reader, calls_a_connection_that_broke_while_answering_cut_too) {
  start();
  token("a", 1);
  http::CallError error;
  error.failure = http::CallFailure::kReset;
  reader_->on_error(error);
  EXPECT_EQ(result_.cause, "stream_cut");
}

TEST_F(Reader, names_how_a_call_failed_before_an_answer) {
  reader_.emplace(Api::kCompletions, false, result_);
  http::CallError error;
  error.failure = http::CallFailure::kTimedOut;
  reader_->on_error(error);
  EXPECT_EQ(result_.cause, "timed_out");
}

TEST_F(Reader, takes_an_answer_without_tokens_for_none) {
  start();
  say("[DONE]", 1);
  reader_->on_end();
  EXPECT_EQ(result_.cause, "no_tokens");
  start();
  say("{oops", 1);
  reader_->on_end();
  EXPECT_EQ(result_.cause, "bad_stream");
}

}  // namespace
}  // namespace baton::bench
