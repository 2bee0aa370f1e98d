#include "http/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

#include "http/server.h"
#include "http/test_socket.h"

namespace baton::http {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Writer = std::shared_ptr<ResponseWriter>;

std::unique_ptr<Server> start_server(Handler handler) {
  auto server = Server::start({}, std::move(handler));
  EXPECT_TRUE(server.has_value()) << server.error().message;
  return std::move(*server);
}

Call call_of(const Server& server, const std::string& target = "/") {
  Call call;
  call.url = "http://127.0.0.1:" + std::to_string(server.port()) + target;
  return call;
}

Call call_of(const TestListener& listener) {
  Call call;
  call.url = listener.url();
  return call;
}

// Notes everything that a call says. Outlive the call's last callback: wait() first.
class Notes {
 public:
  CallCallbacks callbacks() {
    CallCallbacks callbacks;
    callbacks.on_headers = [this](int status, const Headers& headers) {
      EXPECT_EQ(ends_, 0);
      EXPECT_EQ(this->status.exchange(status), 0);
      type = headers.get("CONTENT-TYPE");
      started.set();
    };
    callbacks.on_data = [this](std::string_view bytes) {
      EXPECT_EQ(ends_, 0);
      EXPECT_NE(status, 0);
      body.append(bytes);
      size = body.size();
    };
    callbacks.on_end = [this] { end(); };
    callbacks.on_error = [this](const CallError& call_error) {
      error = call_error;
      end();
    };
    return callbacks;
  }
  bool wait() { return ended_.wait(); }

  Signal started;
  std::atomic<int> status = 0;
  std::string type;
  std::string body;
  std::atomic<std::size_t> size = 0;  // of body, to be read while it grows
  std::optional<CallError> error;

 private:
  void end() {
    EXPECT_EQ(ends_.fetch_add(1), 0);
    ended_.set();
  }
  std::atomic<int> ends_ = 0;
  Signal ended_;
};

TEST(HttpClient, KeepsAConnectionForTheNextCall) {
  std::mutex mutex;
  std::set<std::string> peers;
  const auto server = start_server([&](const Request& request, const Writer& writer) {
    {
      const std::lock_guard lock(mutex);
      peers.insert(request.peer);
    }
    writer->respond(200, "text/plain", "x");
  });
  const auto client = Client::start();
  for (int i = 0; i < 20; ++i) {
    Notes notes;
    Call call = call_of(*server);
    if (i % 2 == 0) call.method = "POST", call.body = std::string(100'000, 'x');
    client->send(std::move(call), notes.callbacks());
    ASSERT_TRUE(notes.wait());
    EXPECT_EQ(notes.status, 200);
  }
  EXPECT_EQ(peers.size(), 1U);
}

TEST(HttpClient, AConnectionThatWasClosedMeanwhileIsNotUsed) {
  TestListener listener;
  const auto client = Client::start();
  for (int i = 0; i < 3; ++i) {
    Notes notes;
    client->send(call_of(listener), notes.callbacks());
    TestSocket socket = listener.accept();
    socket.read_until("\r\n\r\n");
    socket.send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx");
    ASSERT_TRUE(notes.wait());
    EXPECT_FALSE(notes.error.has_value());
    if (i == 1) {
      socket.send("junk");  // nor one that speaks unasked
    } else {
      socket.close();
    }
  }
}

TEST(HttpClient, ACancelledCallsConnectionIsClosed) {
  TestListener listener;
  const auto client = Client::start();
  Notes notes;
  const auto handle = client->send(call_of(listener), notes.callbacks());
  TestSocket socket = listener.accept();
  socket.read_until("\r\n\r\n");
  handle->cancel();
  ASSERT_TRUE(notes.wait());
  socket.read_to_end();
  EXPECT_TRUE(socket.closed());
}

TEST(HttpUrl, IsTakenApart) {
  const auto check = [](const char* text, const char* host, int port, const char* target) {
    const auto url = parse_url(text);
    ASSERT_TRUE(url.has_value()) << text;
    EXPECT_EQ(url->host, host);
    EXPECT_EQ(url->port, port);
    EXPECT_EQ(url->target, target);
  };
  check("http://a", "a", 80, "/");
  check("http://a:8000", "a", 8000, "/");
  check("http://a:65535/b?c=d#e", "a", 65535, "/b?c=d");
  check("http://a?b", "a", 80, "/?b");
  check("http://[::1]:7/x", "::1", 7, "/x");
  check("http://[::1]", "::1", 80, "/");
  for (const char* bad : {"", "a:80", "https://a", "http://", "http://:80",
                          "http://a:", "http://a:0", "http://a:65536", "http://a:8x", "http://a b",
                          "http://[::1", "http://u@h", "http://[::1]x", "http://a/\r\nX: y"}) {
    const auto url = parse_url(bad);
    ASSERT_FALSE(url.has_value()) << bad;
    EXPECT_THAT(url.error().message, HasSubstr(std::string("'") + bad + "'"));
  }
}

TEST(HttpClient, FetchesAnAnswer) {
  const auto server = start_server([](const Request& request, const Writer& writer) {
    writer->respond(201, "text/plain",
                    request.method + request.path +
                        std::string(request.headers.get("traceparent")) +
                        std::string(request.headers.get("host")) + request.body,
                    {{"X-A", "b"}});
  });
  Call call = call_of(*server, "/x");
  call.method = "POST";
  call.body = "hello";
  call.headers.add("traceparent", "00-1-2-3");
  const auto response = fetch(call);
  ASSERT_TRUE(response.has_value()) << response.error().message;
  EXPECT_EQ(response->status, 201);
  EXPECT_EQ(response->headers.get("x-a"), "b");
  EXPECT_EQ(response->body, "POST/x00-1-2-3127.0.0.1:" + std::to_string(server->port()) + "hello");
  EXPECT_EQ(fetch_get(call_of(*server, "/y").url)->body.substr(0, 5), "GET/y");
}

TEST(HttpClient, FindsNames) {
  const auto server = start_server(
      [](const Request&, const Writer& writer) { writer->respond(200, "text/plain", "here"); });
  const auto response = fetch_get("http://localhost:" + std::to_string(server->port()));
  ASSERT_TRUE(response.has_value()) << response.error().message;
  EXPECT_EQ(response->body, "here");
}

TEST(HttpClient, CarriesLargeBodiesBothWays) {
  const auto server = start_server([](Request request, const Writer& writer) {
    writer->respond(200, "text/plain", std::move(request.body));
  });
  Call call = call_of(*server);
  call.method = "POST";
  for (int i = 0; i < 500'000; ++i) call.body += std::to_string(i);
  const std::string body = call.body;
  const auto response = fetch(std::move(call));
  ASSERT_TRUE(response.has_value()) << response.error().message;
  EXPECT_TRUE(response->body == body);
}

TEST(HttpClient, HandsOnAStreamAsItComes) {
  const auto server = start_server([](const Request&, const Writer& writer) {
    std::thread([writer] {
      writer->start_stream(200, "text/event-stream");
      for (int i = 0; i < 5000; ++i) writer->write(std::to_string(i) + "\n");
      writer->finish();
    }).detach();
  });
  const auto client = Client::start();
  std::string expected;
  for (int i = 0; i < 5000; ++i) expected += std::to_string(i) + "\n";
  std::vector<Notes> notes(8);
  for (Notes& note : notes) client->send(call_of(*server), note.callbacks());
  for (Notes& note : notes) {
    ASSERT_TRUE(note.wait());
    EXPECT_FALSE(note.error.has_value());
    EXPECT_EQ(note.status, 200);
    EXPECT_EQ(note.type, "text/event-stream");
    EXPECT_EQ(note.body, expected);
  }
}

TEST(HttpClient, CancelClosesTheConnection) {
  Signal left;
  const auto server = start_server([&](const Request&, const Writer& writer) {
    writer->on_closed([&left, writer] { left.set(); });
    writer->start_stream(200, "text/plain");
    writer->write("x");
  });
  const auto client = Client::start();
  Notes notes;
  const auto call = client->send(call_of(*server), notes.callbacks());
  ASSERT_TRUE(notes.started.wait());
  call->cancel();
  call->cancel();
  EXPECT_TRUE(left.wait());
  ASSERT_TRUE(notes.wait());
  ASSERT_TRUE(notes.error.has_value());
  EXPECT_EQ(notes.error->failure, CallFailure::kCancelled);
  EXPECT_TRUE(notes.error->answer_started);
  call->cancel();
}

TEST(HttpClient, CancelWorksBeforeAnAnswerAndFromACallback) {
  Signal left;
  const auto server = start_server([&](const Request& request, const Writer& writer) {
    if (request.path == "/silent") return writer->on_closed([&left, writer] { left.set(); });
    writer->start_stream(200, "text/plain");
    for (int i = 0; i < 100; ++i) writer->write("chunk");
    writer->finish();
  });
  const auto client = Client::start();
  Notes early;
  client->send(call_of(*server), early.callbacks())->cancel();
  ASSERT_TRUE(early.wait());

  TestListener listener;
  Notes silent;
  const auto call = client->send(call_of(listener), silent.callbacks());
  TestSocket socket = listener.accept();
  socket.read_until("\r\n\r\n");
  call->cancel();
  EXPECT_EQ(socket.read_to_end(), "");
  EXPECT_TRUE(socket.closed());
  ASSERT_TRUE(silent.wait());
  EXPECT_EQ(silent.error->failure, CallFailure::kCancelled);
  EXPECT_FALSE(silent.error->answer_started);
  EXPECT_TRUE(silent.error->connected);

  Notes inside;
  std::shared_ptr<CallHandle> handle;
  Signal handle_known;
  CallCallbacks callbacks = inside.callbacks();
  std::atomic<int> data_calls = 0;
  callbacks.on_headers = [&](int, const Headers&) {
    EXPECT_TRUE(handle_known.wait());
    handle->cancel();
  };
  callbacks.on_data = [&](std::string_view) { ++data_calls; };
  handle = client->send(call_of(*server), callbacks);
  handle_known.set();
  ASSERT_TRUE(inside.wait());
  ASSERT_TRUE(inside.error.has_value());
  EXPECT_EQ(inside.error->failure, CallFailure::kCancelled);
  EXPECT_EQ(data_calls, 0);
}

TEST(HttpClient, CancelRacesWithTheEndAndStillEndsOnce) {
  const auto server = start_server(
      [](const Request&, const Writer& writer) { writer->respond(200, "text/plain", "x"); });
  const auto client = Client::start();
  for (int i = 0; i < 200; ++i) {
    Notes notes;
    const auto call = client->send(call_of(*server), notes.callbacks());
    if (i % 2 == 0) {
      EXPECT_TRUE(notes.started.wait());
    }
    call->cancel();
    ASSERT_TRUE(notes.wait());
  }
}

TEST(HttpClient, EndsEachCallWhenItIsDestroyed) {
  const auto server = start_server([](const Request&, const Writer& writer) {
    writer->on_closed([writer] {});
    writer->start_stream(200, "text/plain");
  });
  std::vector<Notes> notes(5);
  std::shared_ptr<CallHandle> handle;
  {
    const auto client = Client::start();
    for (Notes& note : notes) handle = client->send(call_of(*server), note.callbacks());
    ASSERT_TRUE(notes[0].started.wait());
  }
  handle->cancel();
  for (Notes& note : notes) {
    ASSERT_TRUE(note.wait());
    ASSERT_TRUE(note.error.has_value());
    EXPECT_EQ(note.error->failure, CallFailure::kCancelled);
  }
  EXPECT_TRUE(eventually([&] { return server->open_connections() == 0; }));
}

// What one call ends with, when the other side does `act` with its connection.
CallError failure_of(Call call, TestListener& listener,
                     const std::function<void(TestSocket&)>& act) {
  const auto client = Client::start();
  Notes notes;
  client->send(std::move(call), notes.callbacks());
  TestSocket socket = listener.accept();
  socket.read_until("\r\n\r\n");
  act(socket);
  EXPECT_TRUE(notes.wait());
  EXPECT_TRUE(notes.error.has_value());
  return notes.error.value_or(CallError{});
}

TEST(HttpClient, NamesWhatWentWrong) {
  TestListener listener;
  const auto check = [&](CallFailure failure, bool started,
                         const std::function<void(TestSocket&)>& act) {
    const CallError error = failure_of(call_of(listener), listener, act);
    EXPECT_EQ(error.failure, failure) << to_string(error.failure);
    EXPECT_EQ(error.answer_started, started);
    EXPECT_TRUE(error.connected);
    EXPECT_THAT(error.message, StartsWith(listener.url()));
  };
  check(CallFailure::kClosedEarly, false, [](TestSocket& s) { s.close(); });
  check(CallFailure::kClosedEarly, false, [](TestSocket& s) {
    s.send("HTTP/1.1 200 O");
    s.close();
  });
  check(CallFailure::kClosedEarly, true, [](TestSocket& s) {
    s.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc");
    s.close();
  });
  check(CallFailure::kClosedEarly, true, [](TestSocket& s) {
    s.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    s.close();
  });
  check(CallFailure::kReset, false, [](TestSocket& s) { s.reset(); });
  check(CallFailure::kMalformed, false, [](TestSocket& s) { s.send("SSH-2.0-nonsense\r\n\r\n"); });
  check(CallFailure::kMalformed, true, [](TestSocket& s) {
    s.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
  });
}

TEST(HttpClient, NamesARefusal) {
  TestListener listener;
  const Call call = call_of(listener);
  listener.close();
  const auto client = Client::start();
  Notes notes;
  client->send(call, notes.callbacks());
  ASSERT_TRUE(notes.wait());
  ASSERT_TRUE(notes.error.has_value());
  EXPECT_EQ(notes.error->failure, CallFailure::kRefused);
  EXPECT_FALSE(notes.error->connected);
  const auto fetched = fetch(call);
  ASSERT_FALSE(fetched.has_value());
  EXPECT_EQ(fetched.error().code, Errc::kUnavailable);

  Notes bad;
  client->send({.url = "ftp://x"}, bad.callbacks());
  ASSERT_TRUE(bad.wait());
  EXPECT_EQ(bad.error->failure, CallFailure::kBadUrl);
}

TEST(HttpClient, WaitsNoLongerThanAsked) {
  TestListener listener;
  Call call = call_of(listener);
  call.idle_timeout = std::chrono::seconds(1);  // what the server says comes before, on any machine
  CallError error = failure_of(call, listener, [](TestSocket&) {});
  EXPECT_EQ(error.failure, CallFailure::kTimedOut);
  EXPECT_THAT(error.message, HasSubstr("next byte"));
  error = failure_of(call, listener, [](TestSocket& s) {
    s.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc");
  });
  EXPECT_EQ(error.failure, CallFailure::kTimedOut);
  EXPECT_TRUE(error.answer_started);

  call.idle_timeout = Duration::max();
  call.timeout = std::chrono::milliseconds(50);
  error = failure_of(call, listener, [](TestSocket&) {});
  EXPECT_EQ(error.failure, CallFailure::kTimedOut);
  EXPECT_THAT(error.message, HasSubstr("whole call"));
}

TEST(HttpClient, TakesAnswersOfEveryFraming) {
  const auto answer = [](std::string bytes) {
    TestListener listener;
    const auto client = Client::start();
    Notes notes;
    client->send(call_of(listener), notes.callbacks());
    TestSocket socket = listener.accept();
    socket.read_until("\r\n\r\n");
    for (const char c : bytes) socket.send({&c, 1});
    socket.close();
    EXPECT_TRUE(notes.wait());
    EXPECT_FALSE(notes.error.has_value()) << notes.error->message;
    return std::to_string(notes.status) + notes.body;
  };
  EXPECT_EQ(answer("HTTP/1.1 200 OK\r\n\r\nto the end"), "200to the end");
  EXPECT_EQ(answer("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab"), "200ab");
  EXPECT_EQ(answer("HTTP/1.1 204 No Content\r\n\r\n"), "204");
  EXPECT_EQ(answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), "200");
  EXPECT_EQ(answer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\nx"),
            "500x");
  EXPECT_EQ(
      answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"),
      "200abc");
}

TEST(HttpClient, LearnsThatTheServerDiedMidAnswer) {
  auto server = start_server([](const Request&, const Writer& writer) {
    writer->on_closed([writer] {});
    writer->start_stream(200, "text/plain");
    writer->write("some");
  });
  const auto client = Client::start();
  std::vector<Notes> notes(4);
  for (Notes& note : notes) client->send(call_of(*server), note.callbacks());
  for (Notes& note : notes) EXPECT_TRUE(eventually([&] { return note.size == 4; }));
  server.reset();
  for (Notes& note : notes) {
    ASSERT_TRUE(note.wait());
    ASSERT_TRUE(note.error.has_value());
    EXPECT_THAT(note.error->failure,
                ::testing::AnyOf(CallFailure::kClosedEarly, CallFailure::kReset));
  }
}

}  // namespace
}  // namespace baton::http
