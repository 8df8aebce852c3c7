// The first process of a PID namespace ends by no signal whose action is the default one, also not by one that it raises itself. Go's
// runtime ends a process that faults outside Go code by raising the signal again (runtime.raisebadsignal), and would do so for ever. So a
// worker that is such a process has handlers that end it, installed before the runtime starts, which passes faults on to them.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

// The status is what a shell makes of a signal; daemon/workers reads it so.
static void end(int sig) { _exit(128 + sig); }

__attribute__((constructor)) static void first_process(void) {
    if (getpid() != 1 || !getenv("TENDRIL_WORKER")) return;
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    struct sigaction action = {.sa_handler = end, .sa_flags = SA_ONSTACK};
    for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++) sigaction(faults[i], &action, NULL);
}
