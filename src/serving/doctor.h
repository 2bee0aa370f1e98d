// `baton doctor`: asks a prefill and a decode instance, and the router if there is one, what they
// are, tries the side channel for real, and says what to change. Never waits longer than its
// time-out for any one of them.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "baton/agent.h"
#include "http/resolve.h"
#include "serving/doctor_checks.h"
#include "serving/process.h"

namespace baton::serving {

struct DoctorOptions {
  std::string prefill, decode;  // base URLs
  std::string router;           // "": none
  std::string model;            // the name that clients ask for; "": any that both serve
  double timeout = 5;           // seconds, for each step
  bool json = false;
  Security security;  // of the side channel, as the instances have it
};

std::vector<Check> diagnose(const DoctorOptions& options);

// A TCP connection to P's side channel, whether D's own list lets it go there (`security`'s where D
// does not say), and a real handshake: this process takes D's place for a moment, with D's geometry
// and one block of memory, at most 1 GiB whatever D says. Only where P's fabric can be used from
// here. No KV is moved.
std::vector<Check> probe_side_channel(const InstanceInfo& prefill, const std::string& prefill_url,
                                      const InstanceInfo& decode, const Security& security,
                                      Duration timeout, const http::Lookup& lookup = http::look_up);

// Prints what diagnose() found. kOk, kOther if a check failed, kUsage for a wrong option.
Exit run_doctor(const DoctorOptions& options);

}  // namespace baton::serving
