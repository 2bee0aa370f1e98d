// The servers of one point: children of this process, whose output goes to the point's log; or
// running ones that were named.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "baton/result.h"
#include "bench/sweep_modes.h"
#include "bench/sweep_options.h"

namespace baton::bench {

class SweepServers {
 public:
  // Returns once requests can be served. Errors name the server, how it ended and its log: a mode
  // or a flag that it does not have ends it at once. Children live as long as the calling thread.
  static Result<std::unique_ptr<SweepServers>> start(const SweepMode& mode,
                                                     const SweepOptions& options,
                                                     const std::string& log_path);
  // Stops the router, then the instances; kills what does not end within some seconds.
  virtual ~SweepServers() = default;

  virtual const std::string& base_url() const = 0;     // where requests go
  virtual const std::string& prefill_url() const = 0;  // "" for local
  virtual const std::string& decode_url() const = 0;
  // Command lines of those that were started.
  virtual const std::vector<std::string>& prefill_flags() const = 0;
  virtual const std::vector<std::string>& decode_flags() const = 0;
  virtual const std::vector<std::string>& route_flags() const = 0;

  // An error if one of them ended although nobody asked it to.
  virtual Status check() = 0;
};

}  // namespace baton::bench
