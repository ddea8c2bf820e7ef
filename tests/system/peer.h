#pragma once
// system_peer: one process of a system test. `system_peer server ADDRESS [OPTION VALUE]...` prints
// its address; `system_peer client ADDRESS TRANSPORT`. Both read commands, one a line, and answer
// each with one line.
#include <string>
#include <vector>

namespace verbena::system_test {

int RunServer(const std::vector<std::string>& arguments);
int RunClient(const std::vector<std::string>& arguments);
// peer_handshake.cc
int RunHalfClient(const std::vector<std::string>& arguments);
int RunHalfServer(const std::vector<std::string>& arguments);

// peer_verbs.cc: what this process's verbs fabrics count, "a=1 b=2 ..."; zeros where it has none.
std::string VerbsState();

// The words of the next command; empty at the end of the input.
std::vector<std::string> NextCommand();
void Answer(const std::string& line);
// "fork": a child that lives on and holds what it inherited; its process id is the answer.
void ForkChild();

}  // namespace verbena::system_test
