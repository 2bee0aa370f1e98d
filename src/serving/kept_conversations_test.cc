#include "serving/kept_conversations.h"

#include <gtest/gtest.h>

namespace baton::serving {
namespace {

using Messages = std::vector<model::ChatMessage>;

const Messages kFirst = {{"system", "Be brief."}, {"user", "Hi"}};

Messages next(Messages messages, const std::string& answer = "Hello.") {
  messages.push_back({"assistant", answer});
  messages.push_back({"user", "And then?"});
  return messages;
}

ConversationKey key_of(const KeptConversations& table, const Messages& messages) {
  return table.keys_of("m", "", messages).back();
}

KeptConversation kept(const std::string& params) {
  return {params, "d", 1};
}

constexpr Time at(int seconds) {
  return Time{} + std::chrono::seconds(seconds);
}

TEST(KeptConversations, TheNextTurnFindsTheTurnBeforeOnce) {
  KeptConversations table(8);
  table.put(key_of(table, kFirst), kept("first"), at(10));
  const Messages second = next(kFirst);
  table.put(key_of(table, second), kept("second"), at(10));
  const auto keys = table.keys_of("m", "", next(second));
  EXPECT_EQ(table.take(keys, at(1))->params, "second");
  EXPECT_EQ(table.take(keys, at(1))->params, "first");
  EXPECT_FALSE(table.take(keys, at(1)).has_value());
  EXPECT_EQ(table.size(at(1)), 0U);
}

TEST(KeptConversations, AnEditedAnswerOrTheSameQuestionAgainStillHasTheBeginning) {
  KeptConversations table(8);
  table.put(key_of(table, kFirst), kept("first"), at(10));
  EXPECT_TRUE(table.take(table.keys_of("m", "", next(kFirst, "Good day.")), at(1)).has_value());
  table.put(key_of(table, kFirst), kept("first"), at(10));
  EXPECT_TRUE(table.take(table.keys_of("m", "", kFirst), at(1)).has_value());
}

TEST(KeptConversations, AnotherConversationFindsNothing) {
  KeptConversations table(8);
  table.put(key_of(table, kFirst), kept("first"), at(10));
  const std::pair<std::string, Messages> others[] = {
      {"other", kFirst},
      {"m", {{"system", "Be brief."}, {"user", "Hi!"}}},
      {"m", {{"user", "Be brief."}, {"user", "Hi"}}},
      {"m", {{"user", "Hi"}}},
      {"m", {{"system", "Be brief.Hi"}}},
  };
  for (const auto& [model, messages] : others) {
    EXPECT_FALSE(table.take(table.keys_of(model, "", messages), at(1)).has_value());
  }
  EXPECT_EQ(table.size(at(1)), 1U);
}

TEST(KeptConversations, TheSameMessagesWithAnotherSaltAreAnothersConversation) {
  KeptConversations table(8);
  table.put(table.keys_of("m", "tenant-1", kFirst).back(), kept("first"), at(10));
  for (const char* salt : {"", "tenant-2"}) {
    EXPECT_FALSE(table.take(table.keys_of("m", salt, next(kFirst)), at(1)).has_value()) << salt;
  }
  EXPECT_FALSE(table.take(table.keys_of("mtenant-1", "", next(kFirst)), at(1)).has_value());
  EXPECT_TRUE(table.take(table.keys_of("m", "tenant-1", next(kFirst)), at(1)).has_value());
}

// Texts that one process takes for each other tell nothing about the next.
TEST(KeptConversations, EachTableHasKeysOfItsOwn) {
  const KeptConversations one(8), other(8);
  EXPECT_EQ(key_of(one, kFirst), key_of(one, kFirst));
  EXPECT_NE(key_of(one, kFirst), key_of(other, kFirst));
}

TEST(KeptConversations, WhatHasExpiredIsNeitherCountedNorGiven) {
  KeptConversations table(8);
  table.put(key_of(table, kFirst), kept("first"), at(10));
  EXPECT_EQ(table.size(at(9)), 1U);
  EXPECT_EQ(table.size(at(10)), 0U);
  EXPECT_FALSE(table.take(table.keys_of("m", "", kFirst), at(10)).has_value());
  EXPECT_EQ(table.size(at(1)), 0U);
}

TEST(KeptConversations, TheLeastRecentlyAnsweredGoesFirst) {
  KeptConversations table(2);
  for (const ConversationKey key : {1, 2, 1, 3}) table.put(key, kept("x"), at(10));
  EXPECT_EQ(table.size(at(1)), 2U);
  EXPECT_FALSE(table.take({2}, at(1)).has_value());
  EXPECT_TRUE(table.take({1}, at(1)).has_value());
  EXPECT_TRUE(table.take({3}, at(1)).has_value());
}

TEST(KeptConversations, ItsBytesAreBounded) {
  KeptConversations table(1000);
  table.put(1, kept(std::string(KeptConversations::kParamsMax + 1, 'x')), at(10));
  EXPECT_EQ(table.size(at(1)), 0U);
  const std::string longest(KeptConversations::kParamsMax, 'x');
  constexpr std::size_t kFit = KeptConversations::kBytesMax / KeptConversations::kParamsMax;
  for (ConversationKey key = 0; key < kFit + 3; ++key) table.put(key, kept(longest), at(10));
  EXPECT_EQ(table.size(at(1)), kFit);
  EXPECT_FALSE(table.take({2}, at(1)).has_value());
  EXPECT_TRUE(table.take({3}, at(1)).has_value());
}

TEST(KeptConversations, OfNoneNothingIsRemembered) {
  KeptConversations table(0);
  table.put(1, kept("x"), at(10));
  EXPECT_EQ(table.size(at(1)), 0U);
}

}  // namespace
}  // namespace baton::serving
