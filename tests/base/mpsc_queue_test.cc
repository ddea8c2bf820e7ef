#include "rpc/base/mpsc_queue.h"

#include <memory>
#include <thread>
#include <vector>

#include "tests/catch.h"

namespace {

struct Node {
  Node* next = nullptr;
  int producer = 0;
  int number = 0;
};

}  // namespace

TEST_CASE("a queue gives back in order and can be refilled when empty", "[mpsc]") {
  verbena::MpscQueue<Node> queue;
  Node a, b;
  CHECK(queue.Empty());
  CHECK(queue.Pop() == nullptr);
  for (int round = 0; round < 3; ++round) {
    queue.Push(a);
    CHECK_FALSE(queue.Empty());
    queue.Push(b);
    CHECK(queue.Pop() == &a);
    queue.Push(a);
    CHECK(queue.Pop() == &b);
    CHECK(queue.Pop() == &a);
    CHECK(queue.Pop() == nullptr);
    CHECK(queue.Empty());
  }
}

TEST_CASE("what several threads push arrives once each, in each one's order", "[mpsc]") {
  constexpr int kProducers = 4, kEach = 25'000;
  verbena::MpscQueue<Node> queue;
  std::vector<std::unique_ptr<Node[]>> nodes;
  for (int p = 0; p < kProducers; ++p) nodes.push_back(std::make_unique<Node[]>(kEach));
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&queue, &nodes, p] {
      for (int i = 0; i < kEach; ++i) {
        nodes[p][i].producer = p;
        nodes[p][i].number = i;
        queue.Push(nodes[p][i]);
      }
    });
  }
  std::vector<int> expected(kProducers, 0);
  int wrong = 0;
  for (int received = 0; received < kProducers * kEach;) {
    Node* const node = queue.Pop();
    if (node == nullptr) {
      std::this_thread::yield();
      continue;
    }
    if (node->number != expected[node->producer]++) ++wrong;
    ++received;
  }
  for (std::thread& thread : producers) thread.join();
  CHECK(wrong == 0);
  CHECK(queue.Pop() == nullptr);
  CHECK(queue.Empty());
}
