/* Ids, and a reader of JSON (RFC 8259) for the daemon's descriptions. It makes no tree and allocates nothing. Strings
 * are unescaped in place, because an unescaped string is never longer. Nesting is bounded. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* ---- ids ---- */

char *tendril_id_text(const tendril_id *id, char text[33])
{
	static const char digits[] = "0123456789abcdef";
	for (int i = 0; i < 16; i++) {
		text[2 * i] = digits[id->bytes[i] >> 4];
		text[2 * i + 1] = digits[id->bytes[i] & 15];
	}
	text[32] = 0;
	return text;
}

/* The value of a hexadecimal digit; −1: it is none. */
static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int tendril_id_parse(const char *text, tendril_id *out)
{
	memset(out, 0, sizeof *out);
	for (int i = 0; i < 16; i++) {
		int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
		if (low < 0) {
			memset(out, 0, sizeof *out);
			return tdl_fail(TENDRIL_INVALID, "an id has 32 hexadecimal digits, not %.40s", text);
		}
		out->bytes[i] = (uint8_t)(high << 4 | low);
	}
	return text[32] == 0 ? TENDRIL_OK : tdl_fail(TENDRIL_INVALID, "an id has 32 hexadecimal digits, not %.40s", text);
}

enum { MAX_DEPTH = 64 };

static void blank(struct json *j)
{
	while (j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r'))
		j->at++;
}

static bool expect(struct json *j, char c)
{
	blank(j);
	if (j->bad || j->at >= j->end || *j->at != c) {
		j->bad = true;
		return false;
	}
	j->at++;
	return true;
}

static bool word(struct json *j, const char *w)
{
	size_t n = strlen(w);
	blank(j);
	if (j->bad || (size_t)(j->end - j->at) < n || memcmp(j->at, w, n) != 0)
		return false;
	j->at += n;
	return true;
}

bool json_enter(struct json *j, char bracket)
{
	if (++j->depth > MAX_DEPTH)
		j->bad = true;
	return expect(j, bracket);
}

bool json_next(struct json *j, char bracket, bool *first)
{
	char closing = bracket == '{' ? '}' : ']';
	blank(j);
	if (j->bad || j->at >= j->end) {
		j->bad = true;
		return false;
	}
	if (*j->at == closing) {
		j->at++;
		j->depth--;
		return false;
	}
	if (!*first && !expect(j, ','))
		return false;
	*first = false;
	return true;
}

static int hex4(const char *p)
{
	int v = 0;
	for (int i = 0; i < 4; i++) {
		int d = digit(p[i]);
		if (d < 0)
			return -1;
		v = v << 4 | d;
	}
	return v;
}

static char *put_utf8(char *to, uint32_t c)
{
	if (c < 0x80) {
		*to++ = (char)c;
	} else if (c < 0x800) {
		*to++ = (char)(0xC0 | c >> 6);
		*to++ = (char)(0x80 | (c & 0x3F));
	} else if (c < 0x10000) {
		*to++ = (char)(0xE0 | c >> 12);
		*to++ = (char)(0x80 | (c >> 6 & 0x3F));
		*to++ = (char)(0x80 | (c & 0x3F));
	} else {
		*to++ = (char)(0xF0 | c >> 18);
		*to++ = (char)(0x80 | (c >> 12 & 0x3F));
		*to++ = (char)(0x80 | (c >> 6 & 0x3F));
		*to++ = (char)(0x80 | (c & 0x3F));
	}
	return to;
}

/* \uXXXX, or two of them (a surrogate pair). Half a pair becomes U+FFFD. */
static char *unescape_u(struct json *j, char *to)
{
	int c = j->end - j->at >= 4 ? hex4(j->at) : -1;
	if (c < 0) {
		j->bad = true;
		return to;
	}
	j->at += 4;
	if (c >= 0xD800 && c < 0xE000) {
		int low = c < 0xDC00 && j->end - j->at >= 6 && j->at[0] == '\\' && j->at[1] == 'u' ? hex4(j->at + 2) : -1;
		if (low < 0xDC00 || low >= 0xE000)
			return put_utf8(to, 0xFFFD);
		j->at += 6;
		return put_utf8(to, 0x10000 + ((uint32_t)(c - 0xD800) << 10) + (uint32_t)(low - 0xDC00));
	}
	return put_utf8(to, c ? (uint32_t)c : 0xFFFD); /* a NUL would end the text */
}

static char *unescape(struct json *j, char *to)
{
	static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
	if (j->at >= j->end) {
		j->bad = true;
		return to;
	}
	char c = *j->at++;
	const char *known = c ? strchr(from, c) : NULL;
	if (c == 'u')
		return unescape_u(j, to);
	if (!known)
		j->bad = true;
	else
		*to++ = into[known - from];
	return to;
}

char *json_string(struct json *j)
{
	static char empty[1];
	if (word(j, "null"))
		return empty;
	if (!expect(j, '"'))
		return empty;
	char *start = j->at, *to = start;
	while (!j->bad && j->at < j->end && *j->at != '"') {
		char c = *j->at++;
		if (c == '\\')
			to = unescape(j, to);
		else
			*to++ = c;
	}
	if (j->bad || j->at >= j->end) {
		j->bad = true;
		return empty;
	}
	j->at++; /* the quote, which the NUL may overwrite */
	*to = 0;
	return start;
}

char *json_key(struct json *j)
{
	char *key = json_string(j);
	expect(j, ':');
	return key;
}

uint64_t json_u64(struct json *j)
{
	uint64_t v = 0;
	blank(j);
	if (j->bad || j->at >= j->end || *j->at < '0' || *j->at > '9') {
		j->bad = true;
		return 0;
	}
	for (; j->at < j->end && *j->at >= '0' && *j->at <= '9'; j->at++) {
		uint64_t digit = (uint64_t)(*j->at - '0');
		if (v > (UINT64_MAX - digit) / 10)
			j->bad = true;
		v = v * 10 + digit;
	}
	return v;
}

bool json_bool(struct json *j)
{
	if (word(j, "true"))
		return true;
	if (!word(j, "false"))
		j->bad = true;
	return false;
}

/* Passes a string without changing it. */
static void skip_string(struct json *j)
{
	if (!expect(j, '"'))
		return;
	for (; j->at < j->end && *j->at != '"'; j->at++)
		if (*j->at == '\\')
			j->at++;
	if (j->at >= j->end)
		j->bad = true;
	else
		j->at++;
}

static bool is_scalar_char(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == 'E' || c == '+' || c == '-' || c == '.';
}

void json_skip(struct json *j)
{
	unsigned depth = 0; /* open brackets. A loop, because recursion could exhaust the stack */
	do {
		blank(j);
		if (j->bad || j->at >= j->end || depth > MAX_DEPTH) {
			j->bad = true;
			return;
		}
		char c = *j->at;
		if (c == '{' || c == '[') {
			depth++;
			j->at++;
		} else if (depth && (c == '}' || c == ']')) {
			depth--;
			j->at++;
		} else if (depth && (c == ',' || c == ':')) {
			j->at++;
		} else if (c == '"') {
			skip_string(j);
		} else if (is_scalar_char(c)) {
			while (j->at < j->end && is_scalar_char(*j->at))
				j->at++;
		} else {
			j->bad = true;
		}
	} while (depth && !j->bad);
}

char *json_raw(struct json *j, size_t *n)
{
	blank(j);
	char *start = j->at;
	json_skip(j);
	*n = j->bad ? 0 : (size_t)(j->at - start);
	return start;
}

bool json_id(struct json *j, tendril_id *id)
{
	if (tendril_id_parse(json_string(j), id) != TENDRIL_OK)
		j->bad = true;
	return !j->bad;
}

bool json_done(struct json *j)
{
	blank(j);
	return !j->bad && j->at == j->end;
}
