#include "model/gguf_writer.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/check.h"

namespace baton::model {
namespace {

constexpr std::size_t kAlignment = 32;

template <typename T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<std::uint64_t>(text.size()));
  out += text;
}

std::size_t aligned(std::size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  BATON_CHECK(false, "{} has no fixed size", to_string(type));
}

}  // namespace

void GgufWriter::key_and_type(std::string_view key, GgufType type) {
  ++num_values_;
  put_text(metadata_, key);
  put(metadata_, static_cast<std::uint32_t>(type));
}

void GgufWriter::add_uint32(std::string_view key, std::uint32_t value) {
  key_and_type(key, GgufType::kUint32);
  put(metadata_, value);
}

void GgufWriter::add_float32(std::string_view key, float value) {
  key_and_type(key, GgufType::kFloat32);
  put(metadata_, value);
}

void GgufWriter::add_bool(std::string_view key, bool value) {
  key_and_type(key, GgufType::kBool);
  put(metadata_, static_cast<std::uint8_t>(value ? 1 : 0));
}

void GgufWriter::add_text(std::string_view key, std::string_view value) {
  key_and_type(key, GgufType::kString);
  put_text(metadata_, value);
}

void GgufWriter::add_texts(std::string_view key, std::span<const std::string> values) {
  key_and_type(key, GgufType::kArray);
  put(metadata_, static_cast<std::uint32_t>(GgufType::kString));
  put(metadata_, static_cast<std::uint64_t>(values.size()));
  for (const std::string& value : values) put_text(metadata_, value);
}

void GgufWriter::add_int32s(std::string_view key, std::span<const std::int32_t> values) {
  key_and_type(key, GgufType::kArray);
  put(metadata_, static_cast<std::uint32_t>(GgufType::kInt32));
  put(metadata_, static_cast<std::uint64_t>(values.size()));
  for (const std::int32_t value : values) put(metadata_, value);
}

void GgufWriter::add_value(std::string_view key, const GgufValue& value) {
  key_and_type(key, value.type);
  if (value.type == GgufType::kString) {
    put_text(metadata_, value.text);
  } else if (value.type != GgufType::kArray) {
    metadata_.append(reinterpret_cast<const char*>(&value.bits), scalar_bytes(value.type));
  } else {
    put(metadata_, static_cast<std::uint32_t>(value.element_type));
    put(metadata_, value.count);
    metadata_.append(reinterpret_cast<const char*>(value.raw.data()), value.raw.size());
    for (const std::string_view text : value.texts) put_text(metadata_, text);
  }
}

void GgufWriter::add_tensor(std::string_view name, TensorType type,
                            std::span<const std::uint64_t> dims, std::vector<std::byte> bytes) {
  std::uint64_t elements = 1;
  for (const std::uint64_t dim : dims) elements *= dim;
  const std::uint64_t wanted = elements / elements_per_block(type) * bytes_per_block(type);
  BATON_CHECK(bytes.size() == wanted, "tensor {}: {} bytes given, its shape takes {}", name,
              bytes.size(), wanted);
  tensors_.push_back({std::string(name), type, {dims.begin(), dims.end()}, std::move(bytes)});
}

Status GgufWriter::write(const std::string& path) const {
  std::string head;
  head += "GGUF";
  put(head, std::uint32_t{3});
  put(head, static_cast<std::uint64_t>(tensors_.size()));
  put(head, num_values_);
  head += metadata_;
  std::size_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    put_text(head, tensor.name);
    put(head, static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::uint64_t dim : tensor.dims) put(head, dim);
    put(head, static_cast<std::uint32_t>(tensor.type));
    put(head, static_cast<std::uint64_t>(offset));
    offset += aligned(tensor.bytes.size());
  }
  head.resize(aligned(head.size()), '\0');

  const std::string beside = path + ".part";
  std::ofstream out(beside, std::ios::binary | std::ios::trunc);
  out.write(head.data(), static_cast<std::streamsize>(head.size()));
  for (const Tensor& tensor : tensors_) {
    const std::string padding(aligned(tensor.bytes.size()) - tensor.bytes.size(), '\0');
    out.write(reinterpret_cast<const char*>(tensor.bytes.data()),
              static_cast<std::streamsize>(tensor.bytes.size()));
    out.write(padding.data(), static_cast<std::streamsize>(padding.size()));
  }
  out.close();
  if (!out)
    return fail(Errc::kIo, fmt::format("{}: cannot write {} bytes", beside, head.size() + offset));
  if (std::rename(beside.c_str(), path.c_str()) != 0) {
    return fail(Errc::kIo, fmt::format("{}: cannot rename {} to it", path, beside));
  }
  return {};
}

}  // namespace baton::model
