// A timer that is moved far more often than it fires: moving it later costs nothing. For the .cc
// files of this room; it shows Boost.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>

#include "base/clock.h"

namespace baton::http {

// On the thread of `io` only. `fired` runs when the deadline has passed; it is not kept past
// cancel(), which must be called in the end.
class Deadline : public std::enable_shared_from_this<Deadline> {
 public:
  Deadline(boost::asio::io_context& io, std::function<void()> fired)
      : timer_(io), fired_(std::move(fired)) {}

  void set(Time at) {
    at_ = at;
    if (at < waits_for_) wait();
  }
  // kNever where the sum is beyond it.
  void set_after(Duration duration) {
    const Time from = now();
    set(duration >= kNever - from ? kNever : from + duration);
  }
  void clear() { at_ = kNever; }
  void cancel() {
    fired_ = nullptr;
    at_ = kNever;
    waits_for_ = kNever;
    timer_.cancel();
  }

 private:
  void wait() {
    waits_for_ = at_;
    timer_.expires_at(at_);  // ends an earlier wait
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (error || !self->fired_) return;
      self->waits_for_ = kNever;
      if (self->at_ == kNever) return;
      if (self->at_ > now()) return self->wait();
      self->at_ = kNever;
      const auto fired = self->fired_;
      fired();
    });
  }

  boost::asio::steady_timer timer_;
  std::function<void()> fired_;
  Time at_ = kNever;
  Time waits_for_ = kNever;
};

}  // namespace baton::http
