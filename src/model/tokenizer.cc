#include "model/tokenizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "model/bpe.h"
#include "model/bpe_tokenizer.h"
#include "model/byte_alphabet.h"
#include "model/gguf.h"
#include "model/pretokenizer.h"
#include "model/special_tokens.h"
#include "model/utf8.h"

namespace baton::model {

namespace {

// Names under which vocabularies keep tokens that end an answer, beside the ids that the file
// names.
constexpr std::array<std::string_view, 6> kEndTexts = {
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<|eom_id|>"};

// A text out of the file, as far as a message needs it.
std::string_view shown(std::string_view text) {
  return text.substr(0, 80);
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

// `text` is valid UTF-8.
std::string to_nfc(std::string_view text) {
  utf8proc_uint8_t* composed = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, &std::free);
  if (size < 0) return std::string(text);  // out of memory: the text as it is still has tokens
  return {reinterpret_cast<const char*>(composed), static_cast<std::size_t>(size)};
}

struct Token {
  std::string bytes;
  TokenType type = TokenType::kNormal;
  bool ends = false;
};

class BpeTokenizer final : public Tokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, bool parse_special) const override;
  std::string_view piece(TokenId token, bool show_special) const override;
  std::size_t vocab_size() const override { return tokens_.size(); }
  bool is_end_of_generation(TokenId token) const override {
    return is_known(token) && tokens_[static_cast<std::size_t>(token)].ends;
  }
  std::optional<TokenId> bos() const override { return bos_; }
  bool add_bos() const override { return add_bos_; }

 private:
  friend class TokenizerBuilder;
  bool is_known(TokenId token) const {
    return token >= 0 && static_cast<std::size_t>(token) < tokens_.size();
  }
  void encode_plain(std::string_view text, std::vector<TokenId>& out) const;
  void encode_valid(std::string_view text, std::vector<TokenId>& out) const;

  std::unique_ptr<Pretokenizer> pretokenizer_;
  std::vector<Token> tokens_;
  std::array<TokenId, 256> byte_tokens_{};  // -1: the vocabulary has no token for the byte
  BpeMerges merges_;
  SpecialTokens all_special_;  // control, unknown and user-defined
  SpecialTokens user_defined_;
  std::optional<TokenId> bos_;
  bool add_bos_ = false;
};

std::vector<TokenId> BpeTokenizer::encode(std::string_view text, bool parse_special) const {
  const SpecialTokens& special = parse_special ? all_special_ : user_defined_;
  std::vector<TokenId> out;
  std::size_t done = 0;
  while (done < text.size()) {
    const SpecialTokens::Found found = special.find(text, done);
    const std::size_t end = std::min(found.begin, text.size());
    encode_plain(text.substr(done, end - done), out);
    done = end;
    if (found.begin == std::string_view::npos) break;
    out.push_back(found.id);
    done += found.size;
  }
  return out;
}

void BpeTokenizer::encode_plain(std::string_view text, std::vector<TokenId>& out) const {
  std::size_t valid = 0;  // bytes at the front of `text` that are whole characters
  while (valid < text.size()) {
    const Utf8Step step = utf8_step(text.substr(valid));
    if (step.kind == Utf8Step::Kind::kCharacter) {
      valid += step.size;
      continue;
    }
    encode_valid(text.substr(0, valid), out);
    for (const char byte : text.substr(valid, step.size)) {
      const TokenId token = byte_tokens_[static_cast<unsigned char>(byte)];
      if (token >= 0) out.push_back(token);
    }
    text.remove_prefix(valid + step.size);
    valid = 0;
  }
  encode_valid(text, out);
}

void BpeTokenizer::encode_valid(std::string_view text, std::vector<TokenId>& out) const {
  if (text.empty()) return;
  std::string composed;
  if (pretokenizer_->wants_nfc() && !is_ascii(text)) {
    composed = to_nfc(text);
    text = composed;
  }
  std::vector<std::string_view> pieces;
  pretokenizer_->split(text, pieces);
  std::vector<TokenId> symbols;
  for (const std::string_view piece : pieces) {
    symbols.clear();
    // Some vocabularies, SmolLM2's among them, lack a few bytes that text hardly has. llama.cpp and
    // the vocabulary's own library leave such a byte out, and so is it here.
    for (const char byte : piece) {
      const TokenId token = byte_tokens_[static_cast<unsigned char>(byte)];
      if (token >= 0) symbols.push_back(token);
    }
    merges_.apply(symbols);
    out.insert(out.end(), symbols.begin(), symbols.end());
  }
}

std::string_view BpeTokenizer::piece(TokenId id, bool show_special) const {
  if (!is_known(id)) return {};
  const Token& token = tokens_[static_cast<std::size_t>(id)];
  const bool visible = token.type == TokenType::kNormal || token.type == TokenType::kUserDefined;
  return visible || show_special ? std::string_view(token.bytes) : std::string_view();
}

// Checks the data while it builds; each step names the field it found wrong.
class TokenizerBuilder {
 public:
  explicit TokenizerBuilder(const TokenizerData& data) : data_(data) {}

  Result<std::unique_ptr<Tokenizer>> build() {
    auto pretokenizer = Pretokenizer::create(data_.pre);
    if (!pretokenizer) return tl::unexpected(pretokenizer.error());
    result_->pretokenizer_ = std::move(*pretokenizer);
    for (const auto step : {&TokenizerBuilder::take_tokens, &TokenizerBuilder::take_merges,
                            &TokenizerBuilder::take_named}) {
      if (Status status = (this->*step)(); !status) return tl::unexpected(status.error());
    }
    take_special();
    return std::move(result_);
  }

 private:
  static tl::unexpected<Error> corrupt(std::string message) {
    return fail(Errc::kCorrupt, "tokenizer.ggml." + std::move(message));
  }

  Status take_tokens() {
    const std::size_t count = data_.tokens.size();
    if (count == 0 || count > std::numeric_limits<TokenId>::max()) {
      return corrupt(fmt::format("tokens has {} entries", count));
    }
    if (!data_.token_type.empty() && data_.token_type.size() != count) {
      return corrupt(fmt::format("token_type has {} entries and tokens has {}",
                                 data_.token_type.size(), count));
    }
    ids_.reserve(count);
    result_->tokens_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t type = data_.token_type.empty() ? 1 : data_.token_type[i];
      if (type < 1 || type > 5) return corrupt(fmt::format("token_type {} is {}", i, type));
      const auto [other, fresh] = ids_.emplace(data_.tokens[i], static_cast<TokenId>(i));
      if (!fresh) {
        return corrupt(fmt::format("tokens {} and {} are both '{}'", other->second, i,
                                   shown(data_.tokens[i])));
      }
      const auto kind = static_cast<TokenType>(type);
      std::string bytes = kind == TokenType::kNormal ? text_to_bytes(data_.tokens[i])
                                                     : std::string(data_.tokens[i]);
      result_->tokens_.push_back({std::move(bytes), kind});
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      const std::string text = byte_to_character(static_cast<unsigned char>(byte));
      result_->byte_tokens_[byte] = id_of(text).value_or(-1);
    }
    return {};
  }

  Status take_merges() {
    if (data_.merges.empty()) return corrupt("merges has no entries");
    if (data_.merges.size() > std::numeric_limits<std::uint32_t>::max()) {
      return corrupt(fmt::format("merges has {} entries", data_.merges.size()));
    }
    result_->merges_.reserve(data_.merges.size());
    for (std::size_t i = 0; i < data_.merges.size(); ++i) {
      const std::string_view merge = data_.merges[i];
      const std::size_t blank = merge.find(' ', 1);
      if (blank == std::string_view::npos || blank + 1 == merge.size()) {
        return corrupt(fmt::format("merges {} is '{}', not two parts", i, shown(merge)));
      }
      const std::string_view left = merge.substr(0, blank);
      const std::string_view right = merge.substr(blank + 1);
      const std::string whole = fmt::format("{}{}", left, right);
      for (const std::string_view part : {left, right, std::string_view(whole)}) {
        if (!id_of(part)) {
          return corrupt(
              fmt::format("merges {} is '{}', and '{}' is no token", i, shown(merge), shown(part)));
        }
      }
      if (!result_->merges_.add(*id_of(left), *id_of(right), static_cast<std::uint32_t>(i),
                                *id_of(whole))) {
        return corrupt(fmt::format("merges {} is '{}', which came before", i, shown(merge)));
      }
    }
    return {};
  }

  Status take_named() {
    const std::size_t count = data_.tokens.size();
    if (data_.bos_token_id && *data_.bos_token_id >= count) {
      return corrupt(
          fmt::format("bos_token_id is {}, and there are {} tokens", *data_.bos_token_id, count));
    }
    if (data_.bos_token_id) result_->bos_ = static_cast<TokenId>(*data_.bos_token_id);
    if (data_.add_bos_token && !data_.bos_token_id) {
      return corrupt("add_bos_token is true, and there is no bos_token_id");
    }
    result_->add_bos_ = data_.add_bos_token;
    for (const std::uint64_t end : data_.end_token_ids) {
      if (end >= count) {
        return corrupt(fmt::format("an end token's id is {}, and there are {} tokens", end, count));
      }
      result_->tokens_[end].ends = true;
    }
    for (const std::string_view text : kEndTexts) {
      if (const auto id = id_of(text)) {
        Token& token = result_->tokens_[static_cast<std::size_t>(*id)];
        if (token.type != TokenType::kNormal) token.ends = true;
      }
    }
    return {};
  }

  void take_special() {
    std::vector<SpecialTokens::Entry> all;
    std::vector<SpecialTokens::Entry> user;
    for (std::size_t i = 0; i < result_->tokens_.size(); ++i) {
      const Token& token = result_->tokens_[i];
      if (token.type == TokenType::kNormal || token.type == TokenType::kUnused) continue;
      all.push_back({token.bytes, static_cast<TokenId>(i)});
      if (token.type == TokenType::kUserDefined) user.push_back(all.back());
    }
    result_->all_special_ = SpecialTokens(std::move(all));
    result_->user_defined_ = SpecialTokens(std::move(user));
  }

  std::optional<TokenId> id_of(std::string_view text) const {
    const auto found = ids_.find(text);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }

  const TokenizerData& data_;
  std::unordered_map<std::string_view, TokenId> ids_;
  std::unique_ptr<BpeTokenizer> result_ = std::make_unique<BpeTokenizer>();
};

// An id that the file may leave out. llama.cpp's writers put the greatest value for "none".
Result<std::optional<std::uint64_t>> optional_id(const GgufFile& file, std::string_view key) {
  if (!file.has(key)) return std::nullopt;
  const auto id = file.uint(key);
  if (!id) return tl::unexpected(id.error());
  if (*id == std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  return *id;
}

Status read_ids(const GgufFile& file, TokenizerData& data) {
  const auto bos = optional_id(file, "tokenizer.ggml.bos_token_id");
  if (!bos) return tl::unexpected(bos.error());
  data.bos_token_id = *bos;
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"}) {
    const auto end = optional_id(file, key);
    if (!end) return tl::unexpected(end.error());
    if (*end) data.end_token_ids.push_back(**end);
  }
  const auto add_bos = file.flag_or("tokenizer.ggml.add_bos_token", false);
  if (!add_bos) return tl::unexpected(add_bos.error());
  data.add_bos_token = *add_bos;
  return {};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(const TokenizerData& data) {
  return TokenizerBuilder(data).build();
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const GgufFile& file) {
  const auto model = file.text("tokenizer.ggml.model");
  if (!model) return tl::unexpected(model.error());
  if (*model != "gpt2") {
    return fail(Errc::kUnsupported,
                fmt::format("tokenizer.ggml.model is '{}'; this build reads gpt2", shown(*model)));
  }
  TokenizerData data;
  const auto pre = file.text("tokenizer.ggml.pre");
  if (!pre) return tl::unexpected(pre.error());
  data.pre = *pre;
  const auto tokens = file.texts("tokenizer.ggml.tokens");
  if (!tokens) return tl::unexpected(tokens.error());
  data.tokens.assign(tokens->begin(), tokens->end());
  const auto merges = file.texts("tokenizer.ggml.merges");
  if (!merges) return tl::unexpected(merges.error());
  data.merges.assign(merges->begin(), merges->end());
  if (file.has("tokenizer.ggml.token_type")) {
    auto types = file.integers("tokenizer.ggml.token_type");
    if (!types) return tl::unexpected(types.error());
    if (types->empty()) return fail(Errc::kCorrupt, "tokenizer.ggml.token_type has 0 entries");
    data.token_type = std::move(*types);
  }
  if (Status status = read_ids(file, data); !status) return tl::unexpected(status.error());
  return make_bpe_tokenizer(data);
}

}  // namespace baton::model
