#include "http/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <queue>

#include "base/failure_log.h"
#include "base/random.h"
#include "http/test_socket.h"

namespace baton::http {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Writer = std::shared_ptr<ResponseWriter>;

// Says back what it understood.
void echo(const Request& request, const Writer& writer) {
  writer->respond(200, "text/plain",
                  request.method + "|" + request.path + "|" + request.query + "|" +
                      std::string(request.headers.get("x-test")) + "|" + request.body);
}

std::unique_ptr<Server> start(Handler handler, ServerOptions options = {}) {
  auto server = Server::start(std::move(options), std::move(handler));
  EXPECT_TRUE(server.has_value()) << server.error().message;
  return std::move(*server);
}

// The bytes of a chunked body; "CUT" at the end if its last chunk is missing.
std::string unchunk(std::string_view text) {
  std::string body;
  text.remove_prefix(std::min(text.size(), text.find("\r\n\r\n") + 4));
  while (!text.empty()) {
    const std::size_t size =
        std::stoul(std::string(text.substr(0, text.find("\r\n"))), nullptr, 16);
    text.remove_prefix(text.find("\r\n") + 2);
    if (size == 0) return body;
    body.append(text.substr(0, size));
    text.remove_prefix(std::min(text.size(), size + 2));
  }
  return body + "CUT";
}

// Gives the writers of requests to the test's thread.
class Desk {
 public:
  Handler handler() {
    return [this](Request, Writer writer) {
      const std::lock_guard lock(mutex_);
      writers_.push(std::move(writer));
    };
  }
  Writer next() {
    Writer writer;
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard lock(mutex_);
      if (writers_.empty()) return false;
      writer = std::move(writers_.front());
      writers_.pop();
      return true;
    }));
    return writer;
  }

 private:
  std::mutex mutex_;
  std::queue<Writer> writers_;
};

constexpr std::string_view kGet = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

void expect_serving(const Server& server) {
  TestSocket socket = TestSocket::connect(server.port());
  socket.send("GET /still HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(socket.read_to_end(), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("/still")));
}

TEST(HttpServer, HandsOverTheWholeRequest) {
  const auto server = start(echo);
  TestSocket socket = TestSocket::connect(server->port());
  socket.send(
      "POST /v1/x?a=b&c=%20d HTTP/1.1\r\nHost: x\r\nX-TEST: yes\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_THAT(socket.read_response(), EndsWith("POST|/v1/x|a=b&c=%20d|yes|hello"));
  socket.send(
      "POST / HTTP/1.1\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n");
  EXPECT_THAT(socket.read_response(), EndsWith("POST|/|||abcdefg"));
}

TEST(HttpServer, SaysWhoAsks) {
  const auto server = start([](const Request& request, const Writer& writer) {
    writer->respond(200, "text/plain", request.peer);
  });
  TestSocket socket = TestSocket::connect(server->port());
  socket.send(kGet);
  EXPECT_THAT(socket.read_response(), HasSubstr("\r\n\r\n127.0.0.1:"));
}

// The process may open no more while this lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{0, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(HttpServer, SaysThatItHasNoDescriptorsAndLetsInWhoWaitedOnceItHas) {
  const auto told = [] {
    const auto counts = log::failure_counts();
    return std::any_of(counts.begin(), counts.end(),
                       [](const auto& one) { return one.cause == "cannot_accept"; });
  };
  const auto server = start(echo);
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  log::write(log::Level::kInfo, "soon without descriptors");  // the sanitizer needs some once
  {
    const NoDescriptors none;
    const sockaddr_in address = loopback(server->port());
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_TRUE(eventually(told));
  }
  TestSocket socket(std::move(fd));
  socket.send(kGet);
  EXPECT_THAT(socket.read_response(), StartsWith("HTTP/1.1 200 OK"));
}

TEST(HttpServer, KeepsTheConnection) {
  const auto server = start(echo);
  TestSocket socket = TestSocket::connect(server->port());
  for (int i = 0; i < 50; ++i) {
    socket.send("GET /" + std::to_string(i) + " HTTP/1.1\r\n\r\n");
    EXPECT_THAT(socket.read_response(), HasSubstr("GET|/" + std::to_string(i) + "|"));
  }
  EXPECT_EQ(server->open_connections(), 1U);
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  const auto server = start(echo);
  TestSocket socket = TestSocket::connect(server->port());
  std::string requests;
  for (int i = 0; i < 3000; ++i) requests += "GET /" + std::to_string(i) + " HTTP/1.1\r\n\r\n";
  std::thread sender([&] { socket.send(requests); });
  for (int i = 0; i < 3000; ++i) {
    ASSERT_THAT(socket.read_response(), EndsWith("GET|/" + std::to_string(i) + "|||"));
  }
  sender.join();
}

TEST(HttpServer, TakesRequestsThatComeWhileOthersAreAnswered) {
  std::vector<std::string> paths;
  Desk desk;
  const Handler keep = desk.handler();
  const auto server = start([&](Request request, Writer writer) {
    paths.push_back(request.path);
    keep(std::move(request), std::move(writer));
  });
  TestSocket socket = TestSocket::connect(server->port());
  socket.send("GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
  desk.next()->respond(200, "text/plain", "1");
  EXPECT_THAT(socket.read_response(), EndsWith("1"));
  const Writer second = desk.next();
  socket.send("GET /c/long/path HTTP/1.1\r\n\r\nGET /d HTTP/1.1\r\n\r\n");
  second->respond(200, "text/plain", "2");
  EXPECT_THAT(socket.read_response(), EndsWith("2"));
  desk.next()->respond(200, "text/plain", "3");
  EXPECT_THAT(socket.read_response(), EndsWith("3"));
  desk.next()->respond(200, "text/plain", "4");
  EXPECT_THAT(socket.read_response(), EndsWith("4"));
  EXPECT_THAT(paths, ::testing::ElementsAre("/a", "/b", "/c/long/path", "/d"));
}

TEST(HttpServer, TakesARequestByteByByte) {
  const auto server = start(echo);
  TestSocket socket = TestSocket::connect(server->port());
  for (const char c : std::string("POST /slow HTTP/1.1\r\nContent-Length: 2\r\n\r\nab")) {
    socket.send({&c, 1});
  }
  EXPECT_THAT(socket.read_response(), EndsWith("POST|/slow|||ab"));
}

TEST(HttpServer, SpeaksHttp10) {
  const auto server = start([](const Request& request, const Writer& writer) {
    if (request.path == "/plain") return writer->respond(200, "text/plain", "plain");
    writer->start_stream(200, "text/plain");
    writer->write("streamed");
    writer->finish();
  });
  TestSocket plain = TestSocket::connect(server->port());
  plain.send("GET /plain HTTP/1.0\r\n\r\n");
  EXPECT_THAT(plain.read_to_end(), EndsWith("\r\n\r\nplain"));
  TestSocket streamed = TestSocket::connect(server->port());
  streamed.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_THAT(streamed.read_to_end(), EndsWith("\r\n\r\nstreamed"));
}

TEST(HttpServer, AnswersHeadWithoutABody) {
  const auto server = start([](const Request& request, const Writer& writer) {
    if (request.path == "/plain") return writer->respond(200, "text/plain", "12345");
    writer->start_stream(200, "text/plain");
    EXPECT_TRUE(writer->write("streamed"));
    writer->finish();
  });
  TestSocket socket = TestSocket::connect(server->port());
  socket.send("HEAD /plain HTTP/1.1\r\n\r\n");
  EXPECT_THAT(socket.read_until("\r\n\r\n"), HasSubstr("Content-Length: 5\r\n"));
  socket.send("HEAD / HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(socket.read_to_end(), AllOf(StartsWith("HTTP/1.1 200"), EndsWith("\r\n\r\n")));
}

TEST(HttpServer, ContinuesAClientThatWaits) {
  const auto server = start(echo);
  TestSocket socket = TestSocket::connect(server->port());
  socket.send("POST / HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(socket.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  socket.send("abc");
  EXPECT_THAT(socket.read_response(), EndsWith("|abc"));
}

TEST(HttpServer, AnswersAClientThatStoppedSending) {
  const auto server = start(echo);
  TestSocket socket = TestSocket::connect(server->port());
  socket.send(kGet);
  socket.shut_down_sending();
  EXPECT_THAT(socket.read_to_end(), EndsWith("GET|/|||"));
}

struct BadRequest {
  const char* name;
  std::string bytes;
  int status;
};

class HttpServerBadInput : public ::testing::TestWithParam<BadRequest> {};

TEST_P(HttpServerBadInput, IsAnsweredAndCostsOnlyItsConnection) {
  ServerOptions options;
  options.body_limit = 1000;
  const auto server = start(echo, options);
  TestSocket socket = TestSocket::connect(server->port());
  socket.send(GetParam().bytes);
  const std::string status = std::to_string(GetParam().status);
  EXPECT_THAT(socket.read_to_end(),
              AllOf(StartsWith("HTTP/1.1 " + status), HasSubstr("application/json"),
                    HasSubstr("\r\n\r\n{\"error\":{\"message\":\""),
                    EndsWith("\"code\":" + status + "}}")));
  EXPECT_TRUE(socket.closed());
  expect_serving(*server);
}

INSTANTIATE_TEST_SUITE_P(
    All, HttpServerBadInput,
    ::testing::Values(
        BadRequest{"garbage", "\x16\x03\x01\x02\x00\x01 garbage\r\n\r\n", 400},
        BadRequest{"no_version", "GET /\r\n\r\n", 400},
        BadRequest{"bad_version", "GET / HTTP/9.9\r\n\r\n", 400},
        BadRequest{"nul_in_target", std::string("GET /\0 HTTP/1.1\r\n\r\n", 20), 400},
        BadRequest{"bad_field", "GET / HTTP/1.1\r\nno colon here\r\n\r\n", 400},
        BadRequest{"bad_length", "POST / HTTP/1.1\r\nContent-Length: ten\r\n\r\n", 400},
        BadRequest{"negative_length", "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
        BadRequest{"two_lengths",
                   "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
        BadRequest{"bad_chunk", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
        BadRequest{"pipelined_garbage", "\r\n\x01\x02\r\n\r\n" + std::string(kGet), 400},
        BadRequest{"long_header", "GET / HTTP/1.1\r\nX: " + std::string(100'000, 'x'), 431},
        BadRequest{"long_target", "GET /" + std::string(100'000, 'x'), 431},
        BadRequest{"long_body", "POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 413},
        BadRequest{"endless_body",
                   "POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n", 413},
        BadRequest{"long_chunk",
                   "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
                       std::string(2000, 'x') + "\r\n0\r\n\r\n",
                   413}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(HttpServer, TakesABodyOf4MiBAndNoneThatIsLonger) {
  const auto server = start(echo);
  const std::string head = "POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: ";
  TestSocket longest = TestSocket::connect(server->port());
  longest.send(head + "4194304\r\n\r\n" + std::string(4194304, 'x'));
  EXPECT_THAT(longest.read_to_end(), StartsWith("HTTP/1.1 200"));
  TestSocket longer = TestSocket::connect(server->port());
  longer.send(head + "4194305\r\n\r\n");
  EXPECT_THAT(longer.read_to_end(), StartsWith("HTTP/1.1 413"));
}

TEST(HttpServer, GarbageAfterARequestIsAnsweredAfterIt) {
  const auto server = start(echo);
  TestSocket socket = TestSocket::connect(server->port());
  socket.send(std::string(kGet) + "\x02\x03 garbage\r\n\r\n");
  EXPECT_THAT(socket.read_response(), EndsWith("GET|/|||"));
  EXPECT_THAT(socket.read_to_end(), StartsWith("HTTP/1.1 400"));
}

TEST(HttpServer, OutlivesRandomBytes) {
  const auto server = start(echo);
  Rng rng(11);
  const std::string seeds =
      "GET / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    for (std::uint64_t n = rng.below(200); n > 0; --n) {
      bytes.push_back(rng.chance(1, 4) ? static_cast<char>(rng.next())
                                       : seeds[(bytes.size() + rng.below(2)) % seeds.size()]);
    }
    TestSocket socket = TestSocket::connect(server->port());
    socket.send(bytes);
    if (rng.chance(1, 2)) socket.reset();
  }
  expect_serving(*server);
  EXPECT_TRUE(eventually([&] { return server->open_connections() == 0; }));
}

TEST(HttpServer, DoesNotWaitForAHeaderForEver) {
  ServerOptions options;
  options.read_timeout = std::chrono::milliseconds(50);
  const auto server = start(echo, options);
  TestSocket socket = TestSocket::connect(server->port());
  socket.send("GET / HT");
  EXPECT_THAT(socket.read_to_end(), AllOf(StartsWith("HTTP/1.1 408"), HasSubstr("\"code\":408")));
}

TEST(HttpServer, ClosesIdleConnections) {
  ServerOptions options;
  options.idle_timeout = std::chrono::seconds(1);  // the request of `used` comes before
  const auto server = start(echo, options);
  TestSocket fresh = TestSocket::connect(server->port());
  TestSocket used = TestSocket::connect(server->port());
  used.send(kGet);
  EXPECT_THAT(used.read_response(), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(used.read_to_end(), "");
  EXPECT_EQ(fresh.read_to_end(), "");
  EXPECT_TRUE(used.closed() && fresh.closed());
}

TEST(HttpServer, RefusesMoreConnectionsThanAllowed) {
  ServerOptions options;
  options.max_connections = 2;
  const auto server = start(echo, options);
  TestSocket first = TestSocket::connect(server->port());
  TestSocket second = TestSocket::connect(server->port());
  for (TestSocket* socket : {&first, &second}) {
    socket->send(kGet);
    EXPECT_THAT(socket->read_response(), StartsWith("HTTP/1.1 200"));
  }
  {
    TestSocket third = TestSocket::connect(server->port());
    EXPECT_THAT(third.read_to_end(), StartsWith("HTTP/1.1 503"));
  }
  first.close();
  EXPECT_TRUE(eventually([&] { return server->open_connections() == 1; }));
  expect_serving(*server);
}

TEST(HttpServer, StreamsThousandsOfChunksInOrder) {
  Desk desk;
  const auto server = start(desk.handler());
  TestSocket socket = TestSocket::connect(server->port());
  socket.send("GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
  const Writer writer = desk.next();
  std::string expected;
  std::thread producer([&] {
    writer->start_stream(200, "text/event-stream", {{"X-Id", "7"}});
    for (int i = 0; i < 20000; ++i) {
      const std::string chunk = std::to_string(i) + ",";
      expected += chunk;
      EXPECT_TRUE(writer->write(chunk));
    }
    writer->write("");
    writer->finish();
  });
  const std::string text = socket.read_to_end();
  producer.join();
  EXPECT_THAT(text, HasSubstr("X-Id: 7\r\n"));
  EXPECT_EQ(unchunk(text), expected);
  EXPECT_TRUE(eventually([&] { return !writer->is_open(); }));
  EXPECT_FALSE(writer->write("late"));
}

TEST(HttpServer, SendsTheHeadOfAStreamAtOnce) {
  Desk desk;
  const auto server = start(desk.handler());
  TestSocket socket = TestSocket::connect(server->port());
  socket.send(kGet);
  const Writer writer = desk.next();
  writer->start_stream(200, "text/event-stream");
  EXPECT_THAT(socket.read_until("\r\n\r\n"), HasSubstr("Content-Type: text/event-stream\r\n"));
  writer->write("one");
  EXPECT_EQ(socket.read_until("one\r\n"), "3\r\none\r\n");
  writer->finish();
  EXPECT_EQ(socket.read_until("\r\n\r\n"), "0\r\n\r\n");
  socket.send(kGet);  // the connection is kept
  desk.next()->respond(204, "", "");
  EXPECT_THAT(socket.read_response(), StartsWith("HTTP/1.1 204"));
}

TEST(HttpServer, TellsAtOnceThatTheClientLeft) {
  for (const bool streaming : {false, true}) {
    for (const bool reset : {false, true}) {
      Desk desk;
      const auto server = start(desk.handler());
      TestSocket socket = TestSocket::connect(server->port());
      socket.send(kGet);
      const Writer writer = desk.next();
      Signal closed;
      writer->on_closed([&] { closed.set(); });
      if (streaming) {
        writer->start_stream(200, "text/plain");
        writer->write("some");
        socket.read_until("some");
      }
      EXPECT_TRUE(writer->is_open());
      if (reset) {
        socket.reset();
      } else {
        socket.close();
      }
      EXPECT_TRUE(closed.wait());
      EXPECT_FALSE(writer->is_open());
      EXPECT_FALSE(writer->write("more"));
      writer->respond(200, "text/plain", "nobody");
      Signal again;
      writer->on_closed([&] { again.set(); });
      EXPECT_TRUE(again.wait());
    }
  }
}

TEST(HttpServer, DoesNotTellAfterTheAnswer) {
  Desk desk;
  auto server = start(desk.handler());
  std::atomic<int> told = 0;
  TestSocket socket = TestSocket::connect(server->port());
  std::vector<Writer> writers;
  for (int i = 0; i < 3; ++i) {
    socket.send(kGet);
    writers.push_back(desk.next());
    writers.back()->on_closed([&] { ++told; });
    writers.back()->respond(200, "text/plain", "done");
    EXPECT_THAT(socket.read_response(), EndsWith("done"));
  }
  socket.close();
  EXPECT_TRUE(eventually([&] { return server->open_connections() == 0; }));
  for (const Writer& writer : writers) writer->on_closed([&] { ++told; });
  server->stop(Duration(0));
  server.reset();
  EXPECT_EQ(told, 0);
}

TEST(HttpServer, ClosesAStreamWhoseClientDoesNotRead) {
  Desk desk;
  ServerOptions options;
  options.send_buffer_limit = 100'000;
  const auto server = start(desk.handler(), options);
  TestSocket socket = TestSocket::connect(server->port());
  socket.send(kGet);
  const Writer writer = desk.next();
  Signal closed;
  writer->on_closed([&] { closed.set(); });
  writer->start_stream(200, "text/plain");
  const std::string chunk(10'000, 'x');
  std::size_t taken = 0;
  // The kernel's buffers take some megabytes before the bound is met.
  while (taken < (1 << 30) && writer->write(chunk)) taken += chunk.size();
  EXPECT_LT(taken, std::size_t{1} << 30);
  EXPECT_TRUE(closed.wait());
  EXPECT_FALSE(writer->is_open());
}

TEST(HttpServer, ClosesAClientThatTakesNothing) {
  Desk desk;
  ServerOptions options;
  options.write_timeout = std::chrono::milliseconds(100);
  const auto server = start(desk.handler(), options);
  TestSocket socket = TestSocket::connect(server->port());
  socket.send(kGet);
  Writer writer = desk.next();
  Signal closed;
  writer->on_closed([&] { closed.set(); });
  writer->respond(200, "text/plain", std::string(64 << 20, 'x'));
  EXPECT_TRUE(closed.wait());
  EXPECT_TRUE(eventually([&] { return server->open_connections() == 0; }));
}

TEST(HttpServer, CarriesABodyLargerThanTheStreamBound) {
  const std::string body(20 << 20, 'y');
  const auto server = start(
      [&](const Request&, const Writer& writer) { writer->respond(200, "text/plain", body); });
  TestSocket socket = TestSocket::connect(server->port());
  socket.send(kGet);
  EXPECT_TRUE(socket.read_response().ends_with(body));
}

TEST(HttpServer, NoAnswerIsAnError) {
  const auto server = start([](const Request& request, const Writer& writer) {
    if (request.path == "/throw") throw std::runtime_error("oops");
    if (request.path == "/cut") {
      writer->start_stream(200, "text/plain");
      writer->write("some");
    }
  });
  TestSocket dropped = TestSocket::connect(server->port());
  dropped.send(kGet);
  EXPECT_THAT(dropped.read_response(),
              AllOf(StartsWith("HTTP/1.1 500"), HasSubstr("the server gave no answer")));
  dropped.send("GET /throw HTTP/1.1\r\n\r\n");
  EXPECT_THAT(dropped.read_response(), StartsWith("HTTP/1.1 500"));
  dropped.send("GET /cut HTTP/1.1\r\n\r\n");
  EXPECT_EQ(unchunk(dropped.read_to_end()), "someCUT");
}

TEST(HttpServer, AbortSendsWhatWasWrittenAndCuts) {
  Desk desk;
  const auto server = start(desk.handler());
  TestSocket socket = TestSocket::connect(server->port());
  socket.send(kGet);
  const Writer writer = desk.next();
  writer->start_stream(200, "text/plain");
  writer->write("one");
  writer->write("two");
  writer->abort();
  EXPECT_FALSE(writer->is_open());
  EXPECT_EQ(unchunk(socket.read_to_end()), "onetwoCUT");
  EXPECT_TRUE(socket.closed());
}

TEST(HttpServer, FieldsCannotSmuggleOthers) {
  const auto server = start([](const Request&, const Writer& writer) {
    writer->respond(200, "text/plain", "x", {{"X-Id", "1\r\nX-Evil: 2"}});
  });
  TestSocket socket = TestSocket::connect(server->port());
  socket.send(kGet);
  EXPECT_THAT(socket.read_response(), ::testing::Not(HasSubstr("\nX-Evil")));
}

TEST(HttpServer, StopLetsAnswersEnd) {
  Desk desk;
  const auto server = start(desk.handler());
  TestSocket idle = TestSocket::connect(server->port());
  idle.send(kGet);
  desk.next()->respond(200, "text/plain", "");
  idle.read_response();
  TestSocket busy = TestSocket::connect(server->port());
  busy.send(kGet);
  const Writer writer = desk.next();
  writer->start_stream(200, "text/plain");
  std::thread stopper([&] { server->stop(kPatience); });
  EXPECT_EQ(idle.read_to_end(), "");  // so the stop has begun
  EXPECT_TRUE(writer->write("the end"));
  writer->finish();
  EXPECT_EQ(unchunk(busy.read_until("0\r\n\r\n")), "the end");
  busy.close();
  stopper.join();
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = loopback(server->port());
  EXPECT_NE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
}

TEST(HttpServer, StopEndsWhatDoesNotEnd) {
  Desk desk;
  auto server = start(desk.handler());
  TestSocket busy = TestSocket::connect(server->port());
  busy.send(kGet);
  const Writer writer = desk.next();
  Signal closed;
  writer->on_closed([&] { closed.set(); });
  writer->start_stream(200, "text/plain");
  TestSocket half = TestSocket::connect(server->port());
  half.send("GET /unfin");
  server->stop(std::chrono::milliseconds(20));
  EXPECT_TRUE(closed.wait());
  EXPECT_EQ(unchunk(busy.read_to_end()), "CUT");
  half.read_to_end();
  EXPECT_TRUE(half.closed());
  server.reset();
  EXPECT_FALSE(writer->write("late"));
  writer->finish();
  Signal late;
  writer->on_closed([&] { late.set(); });
  EXPECT_TRUE(late.wait());
}

TEST(HttpServer, ComesBackOnItsPort) {
  Desk desk;
  ServerOptions options;
  for (int i = 0; i < 3; ++i) {
    std::unique_ptr<Server> server;
    // The port may be another process's outgoing connection's for a while. TIME_WAIT is longer.
    ASSERT_TRUE(eventually([&] {
      auto started = Server::start(options, desk.handler());
      if (started) server = std::move(*started);
      return started.has_value();
    }));
    options.port = server->port();
    TestSocket socket = TestSocket::connect(server->port());
    socket.send(kGet);
    desk.next()->start_stream(200, "text/plain");
    // The server closes first, and its port stays in TIME_WAIT.
  }
}

TEST(HttpServer, SaysWhyItCannotListen) {
  const auto server = start(echo);
  ServerOptions options;
  options.port = server->port();
  const auto other = Server::start(options, echo);
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, Errc::kAlreadyExists);
  EXPECT_THAT(other.error().message,
              AllOf(HasSubstr("127.0.0.1:" + std::to_string(options.port)), HasSubstr("in use")));
  options.host = "203.0.113.1";  // of a net that is nobody's
  EXPECT_EQ(Server::start(options, echo).error().code, Errc::kIo);
}

}  // namespace
}  // namespace baton::http
