// Host names to addresses within a time. The system's resolver may take many seconds and cannot be
// told to stop, so a question gets a thread of its own, which outlives whoever has lost interest.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "baton/result.h"

namespace baton::http {

// IP addresses as text, in the order to be tried; never none.
using Addresses = std::vector<std::string>;
using Lookup = std::function<Result<Addresses>(const std::string& host)>;

// Asks the system's resolver, for as long as that takes. Errors: kNotFound, in its words.
Result<Addresses> look_up(const std::string& host);

// Any thread; waits for at most `timeout`. An IP address is its own answer. Errors:
// kDeadlineExceeded, kResourceExhausted (no thread), what `lookup` says. `lookup` is called on the
// thread of the question, and must be good after this has returned.
Result<Addresses> resolve_within(const std::string& host, Duration timeout,
                                 const Lookup& lookup = look_up);

}  // namespace baton::http
