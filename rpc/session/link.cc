// Link's methods, which client/ and server/ call: each is one step to the part that does it.
#include "absl/strings/str_cat.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"
#include "rpc/session/payload_set.h"

namespace verbena::session {

namespace {

// Why nothing of it can be fetched any more.
absl::Status WhyNot(const PayloadSetImpl& set) {
  if (set.link() == nullptr) {
    return absl::UnavailableError("the link to the payload's owner is gone");
  }
  return set.released() ? set.why_released() : absl::OkStatus();
}

}  // namespace

void Link::StartCall(ClientCall& call, const Outgoing& request) {
  LinkImpl::Of(*this).client().Start(call, request);
}

void Link::CancelCall(ClientCall& call, const absl::Status& why) {
  LinkImpl::Of(*this).client().Cancel(call, why);
}

void Link::Reply(ServerCall& call, const absl::Status& status, const Outgoing& reply) {
  LinkImpl::Of(*this).server().Reply(call, status, reply);
}

LinkTally Link::tally() const { return static_cast<const LinkImpl*>(this)->TallyNow(); }

void Link::StartFetch(PayloadSet& payloads, Fetch& fetch) {
  PayloadSetImpl& set = PayloadSetImpl::Of(payloads);
  EngineImpl& engine = set.engine();
  if (absl::Status why = WhyNot(set); !why.ok()) {
    engine.DoneLater(fetch, std::move(why));
  } else if (fetch.entry >= set.entries().size()) {
    engine.DoneLater(fetch, absl::OutOfRangeError(absl::StrCat("payload ", fetch.entry, " of ",
                                                               set.entries().size())));
  } else {
    set.link()->transfers().Start(fetch, set.entry(fetch.entry), &set);
  }
}

void Link::HoldFetch(PayloadSet& payloads, Fetch& fetch) {
  PayloadSetImpl& set = PayloadSetImpl::Of(payloads);
  if (absl::Status why = WhyNot(set); !why.ok()) {
    set.engine().DoneLater(fetch, std::move(why));
  } else {
    set.link()->transfers().Hold(fetch, set);
  }
}

void Link::CancelFetch(Fetch& fetch) {
  Transfers::Cancel(fetch, absl::CancelledError("the fetch was cancelled"));
}

Engine& Link::EngineOf(PayloadSet& payloads) { return PayloadSetImpl::Of(payloads).engine(); }

uint32_t Link::inline_bytes_max() const { return static_cast<const LinkImpl&>(*this).inline_max(); }

void Link::Drain(int64_t deadline_ns) { LinkImpl::Of(*this).StartDrain(deadline_ns); }

void Link::Close(const absl::Status& why) { LinkImpl::Of(*this).BeginClose(why); }

}  // namespace verbena::session
