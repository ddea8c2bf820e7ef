#include "rpc/base/slot_table.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/catch.h"

using Table = verbena::SlotTable<std::string, struct TestTag, 4>;

TEST_CASE("a freed slot's old name finds nothing, also after the slot is used again",
          "[slot_table]") {
  Table table(8);
  const Table::Id first = table.Add("first");
  REQUIRE(table.Find(first) != nullptr);
  CHECK(*table.Find(first) == "first");
  CHECK(table.Remove(first));
  CHECK(table.Find(first) == nullptr);
  CHECK_FALSE(table.Remove(first));
  const Table::Id second = table.Add("second");
  CHECK(second.index == first.index);
  CHECK(second.generation != first.generation);
  CHECK(table.Find(first) == nullptr);
  CHECK(*table.Find(second) == "second");
}

TEST_CASE("a table grows in chunks that do not move, up to its maximum", "[slot_table]") {
  Table table(10);
  std::vector<Table::Id> ids;
  std::vector<std::string*> objects;
  for (int i = 0; i < 10; ++i) {
    ids.push_back(table.Add(std::to_string(i)));
    objects.push_back(table.Find(ids.back()));
  }
  CHECK(table.size() == 10);
  // Full.
  CHECK(table.Add("eleventh").index == ~0u);
  for (int i = 0; i < 10; ++i) CHECK(table.Find(ids[i]) == objects[i]);
  // One free again: usable at once.
  CHECK(table.Remove(ids[3]));
  CHECK(table.Add("again").index == ids[3].index);
}

TEST_CASE("names that nobody gave out find nothing", "[slot_table]") {
  Table table(8);
  const Table::Id id = table.Add("x");
  CHECK(table.Find({}) == nullptr);
  CHECK(table.Find({id.index, id.generation + 2}) == nullptr);
  CHECK(table.Find({id.index, 0}) == nullptr);
  CHECK(table.Find({7, 1}) == nullptr);
  table.Remove(id);
  // An even generation is that of a free slot: no name.
  CHECK(table.Find({id.index, id.generation + 1}) == nullptr);
}

TEST_CASE("clearing and destroying a table destroys what lives", "[slot_table]") {
  auto shared = std::make_shared<int>(1);
  {
    verbena::SlotTable<std::shared_ptr<int>, struct OtherTag> table(100);
    for (int i = 0; i < 70; ++i) table.Add(shared);
    int seen = 0;
    table.ForEach([&](auto id, std::shared_ptr<int>&) {
      if (++seen % 2 == 0) table.Remove(id);
    });
    CHECK(seen == 70);
    CHECK(table.size() == 35);
    CHECK(shared.use_count() == 36);
  }
  CHECK(shared.use_count() == 1);
}
