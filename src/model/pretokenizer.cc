#include "model/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <limits>
#include <string>

#include "base/check.h"

namespace baton::model {

namespace {

// PCRE2's own \s also takes U+180E, which Unicode no longer counts as white space.
#define SPACE R"(\x{09}-\x{0D}\x{20}\x{85}\p{Z})"

constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" SPACE R"(\p{L}\p{N}]+|[)" SPACE
    R"(]+(?![^)" SPACE R"(])|[)" SPACE R"(]+)";
constexpr std::string_view kQwen2 =
    R"('[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^)" SPACE R"(\p{L}\p{N}]+[\r\n]*|[)" SPACE R"(]*[\r\n]+|[)" SPACE R"(]+(?![^)" SPACE
    R"(])|[)" SPACE R"(]+)";

#undef SPACE

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct ContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Code = std::unique_ptr<pcre2_code, CodeFree>;
using Match = std::unique_ptr<pcre2_match_data, MatchFree>;
using Context = std::unique_ptr<pcre2_match_context, ContextFree>;

Code compile(std::string_view pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  BATON_CHECK(code != nullptr, "pattern error {} at {}", error, offset);
  // Without a just-in-time compiler on this machine the interpreter serves, only slower.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

// Cuts `text` at the matches of one expression; what lies between matches is a piece as well.
void cut(const pcre2_code* code, std::string_view text, pcre2_match_data* match,
         pcre2_match_context* context, std::vector<std::string_view>& pieces) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t done = 0;
  while (done < text.size()) {
    // The text was checked by the caller; PCRE2 would check all of it again at each match.
    const int found =
        pcre2_match(code, subject, text.size(), done, PCRE2_NO_UTF_CHECK, match, context);
    if (found <= 0) break;  // no match, or out of memory: the rest is one piece
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match);
    BATON_CHECK(bounds[1] > bounds[0] && bounds[0] >= done);
    if (bounds[0] > done) pieces.push_back(text.substr(done, bounds[0] - done));
    pieces.push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
    done = bounds[1];
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
}

class PcrePretokenizer final : public Pretokenizer {
 public:
  PcrePretokenizer(std::initializer_list<std::string_view> patterns, bool nfc) : nfc_(nfc) {
    for (const std::string_view pattern : patterns) codes_.push_back(compile(pattern));
  }

  void split(std::string_view text, std::vector<std::string_view>& pieces) const override {
    const Match match(pcre2_match_data_create(1, nullptr));
    const Context context(pcre2_match_context_create(nullptr));
    BATON_CHECK(match != nullptr && context != nullptr, "out of memory");
    // The default limit ends a match over ten million blanks; these expressions only ever go back
    // over one run, so the work stays linear.
    pcre2_set_match_limit(context.get(), std::numeric_limits<std::uint32_t>::max());
    std::vector<std::string_view> from;
    std::vector<std::string_view> to = {text};
    for (const Code& code : codes_) {
      from.swap(to);
      to.clear();
      for (const std::string_view part : from) {
        cut(code.get(), part, match.get(), context.get(), to);
      }
    }
    pieces.insert(pieces.end(), to.begin(), to.end());
  }

  bool wants_nfc() const override { return nfc_; }

 private:
  std::vector<Code> codes_;  // each cuts the pieces of the one before
  bool nfc_;
};

}  // namespace

Result<std::unique_ptr<Pretokenizer>> Pretokenizer::create(std::string_view name) {
  using Patterns = std::initializer_list<std::string_view>;
  if (name == "smollm") return std::make_unique<PcrePretokenizer>(Patterns{kDigit, kGpt2}, false);
  if (name == "qwen2") return std::make_unique<PcrePretokenizer>(Patterns{kQwen2}, true);
  if (name == "gpt-2") return std::make_unique<PcrePretokenizer>(Patterns{kGpt2}, false);
  return fail(
      Errc::kUnsupported,
      fmt::format("tokenizer.ggml.pre is '{}'; this build reads smollm, qwen2 and gpt-2", name));
}

}  // namespace baton::model
