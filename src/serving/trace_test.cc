#include "serving/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "serving/json.h"

namespace baton::serving {
namespace {

constexpr char kBoot[] = "boot-1";
// Times in microseconds, as nanoseconds.
constexpr char kRouter[] = R"({"side":"router","transfer_id":"00000000000000070000000000000001",
  "trace_id":"0af7651916cd43dd8448eb211c80319c","end":"answered",
  "prefill":{"url":"http://p:1","times":{"dispatched":1002000,"answered":1030000,
             "first_token":1031000,"ended":1050000}},
  "decode":{"url":"http://d:2","times":{"dispatched":1001000,"answered":1060000,
            "first_token":1061000,"ended":1099000}},
  "times":{"arrived":1000000,"first_byte":1032000,"ended":1100000}})";

std::string page(const std::string& record, const std::string& boot = kBoot,
                 std::int64_t monotonic = 0) {
  return R"({"transfers":[)" + record + R"(],"clock":{"boot_id":")" + boot +
         R"(","monotonic_ns":)" + std::to_string(monotonic) + R"(,"unix_ns":0}})";
}

std::string prefill_record(std::int64_t shift = 0) {
  const auto t = [shift](std::int64_t us) { return std::to_string(us * 1000 + shift); };
  return R"({"side":"prefill","engine_id":"p0","bytes":5,"outcome":"done","times":{"submitted":)" +
         t(1003) + R"(,"started":)" + t(1004) + R"(,"first_step":)" + t(1005) +
         R"(,"pieces_ready":[)" + t(1010) + "," + t(1020) + "," + t(1030) + R"(],"registered":)" +
         t(1006) + R"(,"ready":)" + t(1010) + R"(,"first_write":)" + t(1011) + R"(,"last_byte":)" +
         t(1040) + R"(,"told":)" + t(1041) + R"(,"first_token":)" + t(1029) + R"(,"ended":)" +
         t(1042) + "}}";
}
constexpr char kDecodeRecord[] = R"({"side":"decode","engine_id":"d0","times":{"submitted":1002000,
  "started":1003000,"registered":1004000,"last_byte":1041000,"final_came":1042000,"told":1043000,
  "first_token":1044000,"first_step":1044500,"second_token":1050000,"last_token":1095000,
  "ended":1097000}})";

Json make(std::vector<TraceSource> sources) {
  const auto parsed = parse_json(trace_json(kRouter, sources, kBoot));
  EXPECT_TRUE(parsed.has_value());
  return parsed.value_or(Json::object());
}

Json whole() {
  return make(
      {{"prefill", page(prefill_record()), "", 0, 0}, {"decode", page(kDecodeRecord), "", 0, 0}});
}

struct Span {
  std::string name;
  double from = 0, to = 0;
};
using Lanes = std::map<std::pair<int, int>, std::vector<Span>>;
Lanes spans(const Json& trace) {
  Lanes lanes;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    lanes[{event["pid"].get<int>(), event["tid"].get<int>()}].push_back(
        {event["name"].get<std::string>(), event["ts"].get<double>(),
         event["ts"].get<double>() + event["dur"].get<double>()});
  }
  return lanes;
}

Span find_span(const Json& trace, int pid, const std::string& name) {
  for (const auto& [lane, list] : spans(trace)) {
    for (const Span& span : list) {
      if (lane.first == pid && span.name == name) return span;
    }
  }
  ADD_FAILURE() << "no span " << name << " in process " << pid;
  return {};
}

TEST(Trace, EveryEventHasWhatAViewerNeeds) {
  const Json trace = whole();
  std::set<int> named;
  std::map<int, int> arrows;  // id: s - f
  for (const Json& event : trace["traceEvents"]) {
    const auto ph = event["ph"].get<std::string>();
    EXPECT_THAT(ph, ::testing::AnyOf("X", "M", "i", "s", "f"));
    ASSERT_TRUE(event["pid"].is_number_integer() && event["tid"].is_number_integer()) << event;
    ASSERT_TRUE(event["name"].is_string() && !event["name"].get<std::string>().empty()) << event;
    if (ph == "M") {
      if (event["name"] == "process_name") named.insert(event["pid"].get<int>());
      continue;
    }
    ASSERT_TRUE(event["ts"].is_number() && event["ts"].get<double>() > 0) << event;
    EXPECT_EQ(named.count(event["pid"].get<int>()), 1U) << "a process without a name: " << event;
    if (ph == "X") {
      EXPECT_GE(event["dur"].get<double>(), 0) << event;
    }
    if (ph == "s") ++arrows[event["id"].get<int>()];
    if (ph == "f") {
      --arrows[event["id"].get<int>()];
      EXPECT_EQ(event["bp"], "e");
    }
  }
  EXPECT_EQ(named, (std::set<int>{1, 2, 3}));
  EXPECT_GE(arrows.size(), 6U);
  for (const auto& [id, balance] : arrows) EXPECT_EQ(balance, 0) << "arrow " << id;
  EXPECT_EQ(trace["otherData"]["prefill"], "same host, same clock");
}

// Two spans of a lane lie one in the other or apart.
TEST(Trace, SpansNest) {
  for (const auto& [lane, list] : spans(whole())) {
    for (const Span& a : list) {
      for (const Span& b : list) {
        const bool apart = a.to <= b.from || b.to <= a.from;
        const bool nested =
            (a.from <= b.from && b.to <= a.to) || (b.from <= a.from && a.to <= b.to);
        EXPECT_TRUE(apart || nested)
            << lane.first << "/" << lane.second << ": " << a.name << " and " << b.name;
      }
    }
  }
}

// Lane 1 of each process: the phases fill the request.
TEST(Trace, PhasesAddUpToTheRequest) {
  const Json trace = whole();
  Lanes lanes = spans(trace);
  for (const int pid : {1, 2, 3}) {
    double request = 0, phases = 0;
    for (const Span& span : lanes[{pid, 1}]) {
      (span.name == "request" ? request : phases) += span.to - span.from;
    }
    EXPECT_GT(request, 0);
    EXPECT_DOUBLE_EQ(request, phases) << "process " << pid;
  }
  const Span prefill = find_span(trace, 2, "prefill");
  EXPECT_DOUBLE_EQ(prefill.from, 1005);
  EXPECT_DOUBLE_EQ(prefill.to, 1030);
  const Span handover = find_span(trace, 3, "hand-over");
  EXPECT_DOUBLE_EQ(handover.to, 1043);
}

TEST(Trace, LegsLieInsideTheRouters) {
  const Json trace = whole();
  const Span request = find_span(trace, 1, "request");
  for (const int pid : {2, 3}) {
    const Span side = find_span(trace, pid, "request");
    EXPECT_GE(side.from, request.from);
    EXPECT_LE(side.to, request.to);
  }
  const Span write = find_span(trace, 2, "write");
  EXPECT_DOUBLE_EQ(write.from, 1011);
  EXPECT_DOUBLE_EQ(write.to, 1040);
}

TEST(Trace, AnotherHostsClockIsMovedAndSaid) {
  // Its clock is 500 s behind; the call took from 2,000,000 to 2,000,200 us of ours.
  constexpr std::int64_t kBehind = -500'000'000'000;
  TraceSource p{"prefill", page(prefill_record(kBehind), "boot-2", 2'000'100'000 + kBehind), "",
                2'000'000'000, 2'000'200'000};
  const Json trace = make({p, {"decode", page(kDecodeRecord), "", 0, 0}});
  EXPECT_DOUBLE_EQ(find_span(trace, 2, "write").from, 1011);
  EXPECT_EQ(trace["otherData"]["prefill"],
            "other host, moved by 500000.000 ms, may be off by 0.100 ms either way");
  EXPECT_EQ(trace["otherData"]["decode"], "same host, same clock");
}

TEST(Trace, WhatIsMissingIsSaid) {
  const Json trace =
      make({{"prefill", page(""), "", 0, 0}, {"decode", "", "nobody listens there", 0, 0}});
  EXPECT_THAT(trace["otherData"]["prefill"].get<std::string>(),
              ::testing::HasSubstr("missing: it has no record"));
  EXPECT_EQ(trace["otherData"]["decode"], "missing: nobody listens there");
  EXPECT_EQ(spans(trace).count({2, 1}), 0U);
  find_span(trace, 1, "request");
  const Json broken = make({{"prefill", "<html>", "", 0, 0}, {"decode", "[]", "", 0, 0}});
  EXPECT_THAT(broken["otherData"]["prefill"].get<std::string>(), ::testing::HasSubstr("missing"));
}

TEST(Trace, AFailedRequestHasThePhasesThatHappened) {
  const Json trace = make({{"prefill", page(R"({"side":"prefill","times":{"submitted":1003000,
      "first_step":1005000,"pieces_ready":[],"ended":1009000}})"),
                            "", 0, 0}});
  const Span queue = find_span(trace, 2, "queue");
  EXPECT_DOUBLE_EQ(queue.to, 1005);
  EXPECT_DOUBLE_EQ(find_span(trace, 2, "prefill").to, 1009);
  Lanes lanes = spans(trace);
  for (const Span& span : lanes[{2, 1}]) EXPECT_NE(span.name, "hand-over");
  EXPECT_DOUBLE_EQ(find_span(trace, 2, "request").to, 1009);
}

TEST(Trace, TheRouterKnowsWhereItsLegsWere) {
  EXPECT_EQ(leg_url(kRouter, "prefill"), "http://p:1");
  EXPECT_EQ(leg_url(kRouter, "decode"), "http://d:2");
  EXPECT_EQ(leg_url("{}", "decode"), "");
}

// An instance of another build, or no instance at all: numbers that no clock shows.
TEST(Trace, TimesThatNoClockShowsAreNotTold) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  const std::string record =
      R"({"side":"prefill","engine_id":"p0","times":{
          "submitted":1000000,"ended":9223372036854775807,
          "pieces_ready":[-9223372036854775808,18446744073709551615,1010000],
          "ready":-9223372036854775807,
          "first_step":1000500,"first_token":18446744073709551615,"registered":1004000}})";
  for (const std::int64_t clock : {kMost, kLeast, std::int64_t{0}}) {
    const TraceSource source{"prefill", page(record, "elsewhere", clock), "", 1000000, 1000000};
    const Json trace = make({source});
    std::set<std::string> names;
    for (const Json& event : trace["traceEvents"]) {
      if (!event.contains("ts") || event["pid"] != 2) continue;
      names.insert(event["name"].get<std::string>());
      EXPECT_GE(event["ts"].get<double>(), 0.0) << event.dump();
      EXPECT_LE(event["ts"].get<double>(), 1e7) << event.dump();
    }
    EXPECT_EQ(names.count("registration came"), 1U) << "what is told is shown";
    EXPECT_EQ(names.count("request"), 0U) << "its end is not told";
    EXPECT_EQ(names.count("first token"), 0U);
  }
}

}  // namespace
}  // namespace baton::serving
