#include <cstdio>

#include "inner/inner.verbena.h"
#ifdef WITH_OUTER
#include "more/only.messages.verbena.h"
#include "outer.verbena.h"
#endif

int Again();

int main() {
#ifdef WITH_OUTER
  user::Outer outer;
  outer.mutable_inner()->set_text("outer");
  std::puts(outer.inner().text().c_str());
#endif
  return Again();
}
