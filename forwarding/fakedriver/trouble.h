/* What drivers for tests share: how the environment says that calls fail. The names of its variables begin with TROUBLE,
 * which is defined before:
 *
 *   FAIL=I:CODE  the I-th call, counted from 1, answers CODE
 *   DIE=I        the I-th call ends the process by SIGKILL; HANG=I: it never returns
 *   ONCE=PATH    that holds for the process that makes this file, and for none after it
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long number(const char *name, long otherwise)
{
	const char *text = getenv(name);
	return text && *text ? atol(text) : otherwise;
}

static int troubled(void)
{
	const char *once = getenv(TROUBLE "ONCE");
	static int mine = -1;
	if (!once)
		return 1;
	if (mine < 0) {
		int fd = open(once, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
		mine = fd >= 0;
		if (fd >= 0)
			close(fd);
	}
	return mine;
}

/* trouble is what a call answers, by its number; 0: what is true. One call at a time is here. */
static int trouble(long call)
{
	const char *fail = getenv(TROUBLE "FAIL");
	if (number(TROUBLE "DIE", 0) == call && troubled())
		kill(getpid(), SIGKILL);
	if (number(TROUBLE "HANG", 0) == call && troubled())
		for (;;)
			pause();
	return fail && atol(fail) == call && strchr(fail, ':') && troubled() ? atoi(strchr(fail, ':') + 1) : 0;
}
