// Test processes in different network namespaces: what BATON_TEST_NAMESPACES names
// ("name=address,name=address", made by tests/netns/).
#pragma once

#include <cstddef>
#include <string>

namespace baton::fabric::testing {

bool has_namespaces();
// Moves the calling thread into the namespace of process `number` (they take turns) and answers
// that one's address. Without namespaces: does nothing and answers loopback.
std::string enter_namespace(std::size_t number);

}  // namespace baton::fabric::testing
