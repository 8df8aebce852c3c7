/* Error texts. Each thread has its last one, like errno. */
#include <stdio.h>
#include <string.h>

#include "internal.h"

static __thread char message[640];

static const struct {
	int status;
	const char *text;
} texts[] = {
	{TENDRIL_OK, "no error"},
	{TENDRIL_PROTOCOL, "a message broke a rule of the protocol"},
	{TENDRIL_INVALID, "an argument is out of range"},
	{TENDRIL_NOT_FOUND, "no such object"},
	{TENDRIL_EXISTS, "the name is taken"},
	{TENDRIL_NOT_SEALED, "the object is not sealed"},
	{TENDRIL_SEALED, "the object is sealed"},
	{TENDRIL_FULL, "the store is full"},
	{TENDRIL_QUOTA, "over the tenant's quota"},
	{TENDRIL_PERMISSION, "permission denied"},
	{TENDRIL_UNSUPPORTED, "not supported"},
	{TENDRIL_TIMEOUT, "timed out"},
	{TENDRIL_BUSY, "in use"},
	{TENDRIL_VERSION, "client and daemon have no protocol version in common"},
	{TENDRIL_INTERNAL, "the daemon failed"},
	{TENDRIL_NO_DEVICE, "no such device"},
	{TENDRIL_LIMIT, "a limit of objects, segments or streams is reached"},
	{TENDRIL_STORAGE, "the object's bytes cannot be used"},
	{TENDRIL_ENDED, "the stream has ended"},
	{TENDRIL_ABORTED, "aborted"},
	{TENDRIL_DISCONNECTED, "not connected to a daemon"},
	{TENDRIL_FORKED, "the connection belongs to the parent process"},
	{TENDRIL_NO_MEMORY, "out of memory"},
};

const char *tendril_strerror(int status)
{
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		if (texts[i].status == status)
			return texts[i].text;
	return "unknown error";
}

const char *tendril_message(void)
{
	return message;
}

int tdl_fail(int status, const char *format, ...)
{
	char text[sizeof message]; /* an argument may be the last message */
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	memcpy(message, text, sizeof text);
	return status;
}

int tdl_fail_text(int status, const char *text, size_t n)
{
	size_t keep = n < sizeof message - 1 ? n : sizeof message - 1;
	memcpy(message, text, keep);
	message[keep] = 0;
	for (char *c = message; *c; c++)
		if ((unsigned char)*c < ' ')
			*c = ' ';
	if (keep == 0)
		snprintf(message, sizeof message, "%s", tendril_strerror(status));
	return status;
}
