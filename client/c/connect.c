/* What programs call to connect: it tries for patience_ms, and sets up reconnecting. */
#include "internal.h"

int tendril_connect_with(const tendril_connect_options *o, tendril **out)
{
	enum { FIRST_PAUSE_MS = 20, LONGEST_PAUSE_MS = 2000 };
	int64_t until = clock_ms() + (o ? o->patience_ms : 0), pause = FIRST_PAUSE_MS;
	for (;;) {
		*out = NULL;
		int status = open_connection(o, out);
		if (status == TENDRIL_OK && !(o && o->no_reconnect))
			(*out)->revive = revive;
		if (status != TENDRIL_DISCONNECTED || clock_ms() >= until)
			return status;
		pause_about(pause, until);
		pause = 2 * pause < LONGEST_PAUSE_MS ? 2 * pause : LONGEST_PAUSE_MS;
	}
}

int tendril_connect(const char *socket, tendril **out)
{
	tendril_connect_options o = {.socket = socket};
	return tendril_connect_with(&o, out);
}
