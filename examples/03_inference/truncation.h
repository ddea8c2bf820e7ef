#pragma once
// Says why a process dies when a mapped file is truncated under it. The kernel answers a read past
// the new end of a file with SIGBUS, which by itself kills without a word; a program that serves
// mapped files calls ReportOnSigbus() once, and its last line then names the file. The process
// still dies: the bytes are gone, and what was to read them (a peer's READ, a digest) has no way to
// be told.
#include <cstddef>
#include <cstdint>
#include <string>

namespace verbena::safetensors::truncation {

// Further mappings are not named in the report.
inline constexpr size_t kMappingCountMax = 64;
// Longer paths are cut in the report.
inline constexpr size_t kPathBytesMax = 256;

// Installs the handler of SIGBUS; the one before it gets the signal afterwards. Any thread.
void ReportOnSigbus();

// Called by File for what it maps. Any thread.
void Register(const std::byte* begin, uint64_t bytes, const std::string& path);
void Unregister(const std::byte* begin);

}  // namespace verbena::safetensors::truncation
