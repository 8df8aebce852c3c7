#include "driver.h"
#include "trace.h"
#include "_cgo_export.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

_Atomic(const tdl_buffer *) tdl_tracing;

static __thread uint32_t thread; // the kernel's number of this thread, 0 before its first call

// Layout of package trace: page 0 with the head at 128, the texts, then slots of 8 words.
void tdl_trace_start(uintptr_t base, uint64_t slots_at, uint64_t slots, uint32_t pid) {
  tdl_buffer *b = malloc(sizeof *b);
  if (b == NULL) {
    return;
  }
  b->head = (_Atomic uint64_t *)(base + 128);
  b->slots = (uint64_t *)(base + slots_at);
  b->mask = slots - 1;
  b->pid = pid;
  atomic_store_explicit(&tdl_tracing, b, memory_order_release);
}

static void introduce(void) {
  thread = (uint32_t)syscall(SYS_gettid);
  tdlTraceThread(thread);
}

void tdl_call_write(const tdl_call *call) {
  const tdl_buffer *b = atomic_load_explicit(&tdl_tracing, memory_order_acquire);
  int64_t end = tdl_now();
  if (__builtin_expect(thread == 0, 0)) {
    introduce();
  }
  uint32_t name = __atomic_load_n(call->site, __ATOMIC_RELAXED);
  if (__builtin_expect(name == 0, 0)) {
    name = tdlTraceName((uintptr_t)(strncmp(call->name, "tdl_", 4) == 0 ? call->name + 4 : call->name));
    __atomic_store_n(call->site, name, __ATOMIC_RELAXED);
  }
  uint64_t n = atomic_fetch_add_explicit(b->head, 1, memory_order_relaxed);
  uint64_t *slot = b->slots + (n & b->mask) * 8;
  __atomic_store_n(&slot[0], 0, __ATOMIC_RELAXED);
  atomic_thread_fence(memory_order_release);
  slot[1] = (uint64_t)call->start;
  slot[2] = (uint64_t)end;
  slot[3] = 1 | (uint64_t)b->pid << 32; // a call
  slot[4] = thread | (uint64_t)name << 32;
  slot[5] = call->object;
  slot[6] = call->bytes;
  slot[7] = 0;
  __atomic_store_n(&slot[0], n + 1, __ATOMIC_RELEASE);
}

int tdl_used;

// At exit() there may be something left to say of a worker that died.
__attribute__((destructor)) static void used_end(void) {
  if (tdl_used && !tdl_forked()) {
    tdlEnd();
  }
}

// At exit() workers may still have something to tell. Not in a forked child: it traces nothing.
__attribute__((destructor)) static void trace_end(void) {
  if (atomic_load(&tdl_tracing) != NULL && !tdl_forked()) {
    tdlTraceEnd();
  }
}
