#include "bench/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "http/server.h"

namespace baton::bench {
namespace {

using ::testing::IsEmpty;
using Writer = std::shared_ptr<http::ResponseWriter>;

constexpr char kTransfer[] = "0123456789abcdef0123456789abcdef";

std::string page_of(const std::string& record) {
  return R"({"transfers":[)" + record + "]}";
}
std::string record_of(const std::string& side) {
  return R"({"transfer_id":")" + std::string(kTransfer) + R"(","side":")" + side +
         R"(","outcome":"done","bytes":512})";
}

// One instance; its page of records is what `page` says of the number of the look, from 0.
class RecordServer {
 public:
  explicit RecordServer(std::function<std::string(int)> page) : page_(std::move(page)) {
    server_ = std::move(
        http::Server::start({}, [this](const http::Request& request, const Writer& writer) {
          const bool records = request.path == "/debug/transfers";
          writer->respond(200, "application/json", records ? page_(looks_++) : "{}");
        }).value());
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }
  int looks() const { return looks_; }

 private:
  const std::function<std::string(int)> page_;
  std::atomic<int> looks_{0};
  std::unique_ptr<http::Server> server_;
};

// P's last completion, and its record with it, may be after D's answer.
TEST(Records, of_prefill_are_waited_for_where_decode_has_its_own) {
  RecordServer prefill([](int look) { return page_of(look < 3 ? "" : record_of("prefill")); });
  RecordServer decode([](int) { return page_of(record_of("decode")); });
  const Records records = collect_records({decode.url(), prefill.url(), decode.url()}, {kTransfer});
  EXPECT_THAT(records.troubles, IsEmpty());
  ASSERT_EQ(records.by_transfer.count(kTransfer), 1U);
  EXPECT_TRUE(records.by_transfer.at(kTransfer).has_decode);
  EXPECT_TRUE(records.by_transfer.at(kTransfer).has_prefill);
  EXPECT_EQ(records.by_transfer.at(kTransfer).prefill.bytes, 512U);
  EXPECT_EQ(prefill.looks(), 4);
}

// Of a hand-over that failed P may have none.
TEST(Records, of_what_failed_are_not_waited_for) {
  std::string failed = record_of("decode");
  failed.replace(failed.find("done"), 4, "failed");
  RecordServer prefill([](int) { return page_of(""); });
  RecordServer decode([&](int) { return page_of(failed); });
  const Records records = collect_records({decode.url(), prefill.url(), decode.url()}, {kTransfer});
  EXPECT_TRUE(records.by_transfer.at(kTransfer).has_decode);
  EXPECT_FALSE(records.by_transfer.at(kTransfer).has_prefill);
  EXPECT_EQ(prefill.looks(), 1);
}

}  // namespace
}  // namespace baton::bench
