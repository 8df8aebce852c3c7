// The C half of `tendril trace`: each OpenCL call as one record of package trace's buffer (layout.go), appended without
// leaving C. It costs one atomic load where nobody traces.
#ifndef TENDRIL_ICD_TRACE_H
#define TENDRIL_ICD_TRACE_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

// A buffer that Go has opened and checked. Immutable.
typedef struct {
  _Atomic uint64_t *head;
  uint64_t *slots;
  uint64_t mask; // slots - 1
  uint32_t pid;
} tdl_buffer;

extern _Atomic(const tdl_buffer *) tdl_tracing; // NULL: nobody traces

// One call under way; start 0: not traced.
typedef struct {
  int64_t start;     // ns of CLOCK_MONOTONIC
  const char *name;  // with the prefix tdl_
  uint32_t *site;    // of the name: the number of its text, 0 before the first call
  uint64_t object;   // what it is about, 0: nothing
  uint64_t bytes;    // that it names
} tdl_call;

void tdl_call_write(const tdl_call *call);

static inline int64_t tdl_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void tdl_call_end(tdl_call *call) {
  if (__builtin_expect(call->start != 0, 0)) {
    tdl_call_write(call);
  }
}

// TRACE declares `traced`, which is written when the function returns.
#define TRACE                                                                                                          \
  static uint32_t tdl_site;                                                                                            \
  tdl_call traced __attribute__((cleanup(tdl_call_end), unused)) = {0, __func__, &tdl_site, 0, 0};                     \
  if (__builtin_expect(atomic_load_explicit(&tdl_tracing, memory_order_relaxed) != NULL, 0)) {                         \
    traced.start = tdl_now();                                                                                          \
  }                                                                                                                    \
  (void)0

// NOTE says what a traced call is about (a handle, 0: nothing) and how many bytes it moves or makes.
#define NOTE(about, size) (traced.object = (uintptr_t)(about), traced.bytes = (size))

#endif
