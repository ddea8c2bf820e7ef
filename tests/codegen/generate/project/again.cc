#include "inner/inner.verbena.h"

int Again();
int Again() {
  user::inner::Inner inner;
  inner.set_text("inner");
  return inner.text() == "inner" ? 0 : 1;
}
