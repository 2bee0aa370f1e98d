#include "serving/trace_context.h"

#include <gtest/gtest.h>

namespace baton::serving {
namespace {

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kSpan[] = "b7ad6b7169203331";
const std::string kGood = std::string("00-") + kTrace + "-" + kSpan + "-01";

TEST(TraceContext, GoesOnWithTheClientsTrace) {
  const TraceContext trace = take_trace({{"Traceparent", kGood}, {"tracestate", "vendor=1"}});
  EXPECT_EQ(trace.trace_id, kTrace);
  EXPECT_EQ(trace.parent, kSpan);
  EXPECT_EQ(trace.flags, "01");
  EXPECT_EQ(trace.state, "vendor=1");
  EXPECT_EQ(trace.span_id.size(), 16U);
  EXPECT_NE(trace.span_id, kSpan);
}

TEST(TraceContext, ALaterVersionMayBeLonger) {
  const TraceContext trace =
      take_trace({{"traceparent", std::string("01-") + kTrace + "-" + kSpan + "-00-what comes"}});
  EXPECT_EQ(trace.trace_id, kTrace);
  EXPECT_EQ(trace.flags, "00");
  EXPECT_EQ(trace.header().substr(0, 3), "00-");
}

TEST(TraceContext, WhatBreaksARuleIsReplaced) {
  const std::string trace = kTrace, span = kSpan;
  for (const std::string& bad :
       {std::string(), std::string("00-aa-bb-01"), kGood + "-more", "ff" + kGood.substr(2),
        "00-" + std::string(32, '0') + "-" + span + "-01",
        "00-" + trace + "-" + std::string(16, '0') + "-01", "00-" + trace + "-" + span + "-0x",
        "00-0AF7651916CD43DD8448EB211C80319C-" + span + "-01", std::string(4000, 'a')}) {
    const TraceContext made = take_trace({{"traceparent", bad}, {"tracestate", "vendor=1"}});
    EXPECT_NE(made.trace_id, kTrace) << bad;
    EXPECT_EQ(made.trace_id.size(), 32U) << bad;
    EXPECT_EQ(made.parent, "") << bad;
    EXPECT_EQ(made.state, "") << bad;
    EXPECT_EQ(take_trace({{"traceparent", made.header()}}).trace_id, made.trace_id);
  }
}

TEST(TraceContext, TwoHeadersAreNone) {
  EXPECT_EQ(take_trace({{"traceparent", kGood}, {"TraceParent", kGood}}).parent, "");
}

TEST(TraceContext, EachCallIsASpanOfItsOwn) {
  const TraceContext own = take_trace({{"traceparent", kGood}});
  const TraceContext a = child_of(own), b = child_of(own);
  EXPECT_EQ(a.trace_id, kTrace);
  EXPECT_EQ(a.parent, own.span_id);
  EXPECT_NE(a.span_id, b.span_id);
  http::Headers headers;
  add_trace(a, headers);
  EXPECT_EQ(headers.get("traceparent"), a.header());
  EXPECT_FALSE(headers.find("tracestate").has_value());
}

}  // namespace
}  // namespace baton::serving
