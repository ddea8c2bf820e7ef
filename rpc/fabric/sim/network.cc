#include "rpc/fabric/sim/network.h"

#include "rpc/fabric/sim/endpoint.h"

namespace verbena::fabric::sim {

Network::Network(const NetworkOptions& options) : state_(std::make_shared<State>(options)) {}
Network::~Network() = default;

std::unique_ptr<Fabric> Network::MakeEndpoint() { return std::make_unique<Endpoint>(state_); }

int64_t Network::now_ns() const {
  const std::lock_guard lock(state_->mutex);
  return state_->now_ns;
}

void Network::Advance(int64_t ns) {
  const std::lock_guard lock(state_->mutex);
  state_->now_ns += ns;
}

void Network::SetFaults(const Faults& faults) {
  const std::lock_guard lock(state_->mutex);
  state_->faults = faults;
}

Statistics Network::statistics() const {
  const std::lock_guard lock(state_->mutex);
  return state_->statistics;
}

void Network::Kill(Fabric& endpoint) {
  const std::lock_guard lock(state_->mutex);
  static_cast<Endpoint&>(endpoint).Die();
}

void Network::CutLink(Fabric& endpoint, LinkId link) {
  const std::lock_guard lock(state_->mutex);
  Port* port = static_cast<Endpoint&>(endpoint).Find(link);
  if (port == nullptr) return;
  Port* peer = state_->FindPort(port->peer);
  const absl::Status cause = absl::UnavailableError("sim: the link was cut");
  state_->TakeDown(*port, cause, false);
  if (peer != nullptr) state_->TakeDown(*peer, cause, false);
}

void Network::BreakLane(Fabric& endpoint, LinkId link, Lane lane) {
  const std::lock_guard lock(state_->mutex);
  Port* port = static_cast<Endpoint&>(endpoint).Find(link);
  if (port != nullptr) state_->BreakLane(*port, lane, Error::kLaneDown);
}

}  // namespace verbena::fabric::sim
