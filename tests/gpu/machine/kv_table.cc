#include "tests/gpu/machine/kv_table.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <numeric>
#include <random>
#include <vector>

#include "rpc/base/check.h"
#include "tests/gpu/machine/user_memory.h"
#include "verbena/verbena.h"

namespace verbena::gpu_test {
namespace {

constexpr uint32_t kLayers = 64, kBlocks = 256, kBlockBytes = 64 << 10;
static_assert(size_t{kLayers} * kBlocks * kBlockBytes == kKvBytes);
constexpr int kTimes = 10;
// Layers that are on their way at once.
constexpr size_t kPulls = 4;

struct HandOver {
  HandOver(const ::gpu_test::Owner::Stub& o, int to) : owner(o) {
    const Shape shape(kLayers * kBlocks, kBlockBytes);
    pages = *Tensor::Empty(kUInt8, shape, Device::Cuda(to));
    table.resize(kLayers * kBlocks);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(7));
  }

  std::vector<int64_t> TableOf(uint32_t layer) const {
    return {table.begin() + layer * kBlocks, table.begin() + (layer + 1) * kBlocks};
  }

  // All layers are asked for, as a decode server does while they are computed.
  std::deque<Call<Parcel<::gpu_test::Given>>> AskForAll() const {
    std::deque<Call<Parcel<::gpu_test::Given>>> asked;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ::gpu_test::Blocks blocks;
      blocks.set_first(layer * kBlocks);
      blocks.set_count(kBlocks);
      blocks.set_block_bytes(kBlockBytes);
      asked.push_back(owner.GiveBlocks(blocks));
    }
    return asked;
  }

  Task<void> Together() const {
    auto asked = AskForAll();
    std::deque<std::pair<Parcel<::gpu_test::Given>, Call<Tensor>>> pulls;
    for (uint32_t layer = 0; layer < kLayers || !pulls.empty(); ++layer) {
      if (layer < kLayers) {
        auto given = co_await asked.front();
        VERBENA_CHECK(given.ok(), given.status().ToString());
        asked.pop_front();
        const Placement rows = Placement::IntoRows(pages, TableOf(layer));
        auto fetch = given->Fetch((*given)->tensor(), rows);
        pulls.emplace_back(*std::move(given), std::move(fetch));
        if (pulls.size() < kPulls && layer + 1 < kLayers) continue;
      }
      const auto tensor = co_await pulls.front().second;
      VERBENA_CHECK(tensor.ok(), tensor.status().ToString());
      pulls.pop_front();
    }
  }

  Task<void> OneByOne() {
    auto asked = AskForAll();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      auto given = co_await asked.front();
      VERBENA_CHECK(given.ok(), given.status().ToString());
      asked.pop_front();
      std::vector<Call<Tensor>> fetches;
      for (uint32_t i = 0; i < kBlocks; ++i) {
        const int64_t row = table[layer * kBlocks + i];
        const Placement place = Placement::Into(*pages.Slice(TensorSlice(row, row + 1)));
        fetches.push_back(given->Fetch((*given)->tensor(), TensorSlice(i, i + 1), place));
      }
      for (Call<Tensor>& fetch : fetches) {
        const auto tensor = co_await fetch;
        VERBENA_CHECK(tensor.ok(), tensor.status().ToString());
      }
    }
  }

  // Every byte of every page, and spoils them for the next.
  void See(uint32_t seed) {
    std::vector<uint32_t> words(kKvBytes / 4);
    auto* const host = reinterpret_cast<std::byte*>(words.data());
    const int gpu = pages.device().index();
    CopyNow(gpu, host, pages.data(), kKvBytes);
    constexpr size_t kWords = kBlockBytes / 4;
    size_t wrong = 0;
    for (size_t block = 0; block < table.size(); ++block) {
      const uint32_t* const page = &words[static_cast<size_t>(table[block]) * kWords];
      for (size_t i = 0; i < kWords; ++i) {
        wrong += page[i] != seed + static_cast<uint32_t>(block * kWords + i);
      }
    }
    VERBENA_CHECK(wrong == 0, wrong, " wrong words");
    std::fill(words.begin(), words.end(), 0xdeadbeef);
    CopyNow(gpu, pages.mutable_data(), host, kKvBytes);
  }

  const ::gpu_test::Owner::Stub& owner;
  Tensor pages;
  std::vector<int64_t> table;
};

template <class Work>
double MedianMicroseconds(int times, const Work& work) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    all.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

}  // namespace

KvTimes MeasureKv(const ::gpu_test::Owner::Stub& owner, int to, uint32_t seed) {
  HandOver hand_over(owner, to);
  KvTimes times;
  Run(hand_over.Together());  // opens the owner's memory
  hand_over.See(seed);
  times.together_us = MedianMicroseconds(kTimes, [&] { Run(hand_over.Together()); });
  hand_over.See(seed);
  times.one_by_one_us = MedianMicroseconds(3, [&] { Run(hand_over.OneByOne()); });
  hand_over.See(seed);
  return times;
}

}  // namespace verbena::gpu_test
