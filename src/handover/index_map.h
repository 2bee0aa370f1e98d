// From a key to the index of a table row: open addressing with linear probing, at most half full,
// all memory taken by the constructor. Erasing moves later entries back, so that nothing degrades
// with age.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/check.h"

namespace baton::handover {

template <typename Key, typename Hash = std::hash<Key>>
class IndexMap {
 public:
  explicit IndexMap(std::uint32_t entries_max)
      : entries_max_(entries_max),
        cells_(std::bit_ceil(std::size_t{2} * (entries_max + 1))),
        mask_(cells_.size() - 1) {}

  std::optional<std::uint32_t> find(const Key& key) const {
    for (std::size_t i = home(key); cells_[i].used; i = (i + 1) & mask_) {
      if (cells_[i].key == key) return cells_[i].row;
    }
    return std::nullopt;
  }

  // The key must be absent and the map not full.
  void insert(const Key& key, std::uint32_t row) {
    BATON_CHECK(size_ < entries_max_);
    std::size_t i = home(key);
    for (; cells_[i].used; i = (i + 1) & mask_) BATON_CHECK(!(cells_[i].key == key));
    cells_[i] = {key, row, true};
    ++size_;
  }

  void set(const Key& key, std::uint32_t row) {
    for (std::size_t i = home(key); cells_[i].used; i = (i + 1) & mask_) {
      if (cells_[i].key == key) {
        cells_[i].row = row;
        return;
      }
    }
    insert(key, row);
  }

  bool erase(const Key& key) {
    std::size_t hole = home(key);
    while (cells_[hole].used && !(cells_[hole].key == key)) hole = (hole + 1) & mask_;
    if (!cells_[hole].used) return false;
    for (std::size_t i = (hole + 1) & mask_; cells_[i].used; i = (i + 1) & mask_) {
      // An entry may fill the hole if its home does not lie between the hole and itself.
      if (((i - home(cells_[i].key)) & mask_) >= ((i - hole) & mask_)) {
        cells_[hole] = cells_[i];
        hole = i;
      }
    }
    cells_[hole] = {};
    --size_;
    return true;
  }

  std::uint32_t size() const { return size_; }
  bool full() const { return size_ == entries_max_; }

 private:
  struct Cell {
    Key key{};
    std::uint32_t row = 0;
    bool used = false;
  };
  std::size_t home(const Key& key) const {
    // Spreads keys that count upwards; transfer ids are random already.
    return (Hash()(key) * 0x9E3779B97F4A7C15ULL >> 20) & mask_;
  }

  std::uint32_t entries_max_;
  std::uint32_t size_ = 0;
  std::vector<Cell> cells_;
  std::size_t mask_;
};

}  // namespace baton::handover
