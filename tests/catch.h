#pragma once
// One spelling for Catch2 2.x (Debian 12) and 3.x.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>

namespace Catch {
using Matchers::ContainsSubstring;
}  // namespace Catch
#else
#include <catch2/catch.hpp>
#include <string>

namespace Catch {
inline auto ContainsSubstring(const std::string& text) { return Matchers::Contains(text); }
}  // namespace Catch
#endif
