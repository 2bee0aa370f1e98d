// Reads the tables under tests/golden: one case a line, tab-separated, '#' begins a comment line.
// For tests.
#pragma once

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace baton::model {

inline std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out.push_back(text[i]);
    } else if (text[i + 1] == '\\') {
      out.push_back('\\');
      ++i;
    } else {
      out.push_back(static_cast<char>(std::stoi(std::string(text.substr(i + 2, 2)), nullptr, 16)));
      i += 3;
    }
  }
  return out;
}

inline std::string golden_text(const std::string& name) {
  std::ifstream in(std::string(BATON_SOURCE_DIR) + "/tests/golden/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::vector<std::vector<std::string>> golden_lines(const std::string& name) {
  std::istringstream in(golden_text(name));
  std::vector<std::vector<std::string>> lines;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('#')) continue;
    std::vector<std::string>& fields = lines.emplace_back(1);
    for (const char c : line) {
      if (c == '\t') {
        fields.emplace_back();
      } else {
        fields.back().push_back(c);
      }
    }
  }
  return lines;
}

inline std::vector<std::int32_t> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::int32_t> out;
  for (std::int32_t number = 0; in >> number;) out.push_back(number);
  return out;
}

// Where tools/setup puts the demo's model.
inline std::string smollm2_path() {
  const char* models = std::getenv("BATON_MODELS");
  const std::string folder =
      models != nullptr ? models : std::string(BATON_SOURCE_DIR) + "/build/models";
  return folder + "/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace baton::model
