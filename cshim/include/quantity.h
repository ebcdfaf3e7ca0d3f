/* quantity.h: limits as text, from the environment. Pure, and strict: what is not clearly a limit is refused, and the
 * absence of a limit is a word, never 0, -1 or an empty text.
 *
 *   memory   digits and one of k K Ki KB KiB, m M Mi MB MiB, g G Gi GB GiB (all powers of 1024), or digits alone for
 *            bytes; "none" or "unlimited"
 *   compute  0 .. 100, percent of one device; 0 and 100 mean not limited, as the variable always did
 *
 * White space around either is ignored. A leading zero is refused: other readers of these variables take it for octal.
 */
#ifndef VGPU_QUANTITY_H
#define VGPU_QUANTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUANTITY_UNLIMITED UINT64_MAX

static inline bool quantity_is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Cut white space off both ends; `*length` becomes what is left. */
static inline const char *quantity_trim(const char *text, size_t *length)
{
	size_t end = 0;

	while (quantity_is_space(*text))
		text++;
	for (size_t i = 0; text[i] != '\0'; i++)
		if (!quantity_is_space(text[i]))
			end = i + 1;
	*length = end;
	return text;
}

static inline bool quantity_is_word(const char *text, size_t length, const char *word)
{
	size_t i = 0;

	for (; i < length && word[i] != '\0'; i++)
		if ((text[i] | 0x20) != word[i])
			return false;
	return i == length && word[i] == '\0';
}

/* Read digits up to `length`; returns how many were read, 0 when there is no number there or it does not fit. */
static inline size_t quantity_digits(const char *text, size_t length, uint64_t *value)
{
	size_t i = 0;

	*value = 0;
	for (; i < length && text[i] >= '0' && text[i] <= '9'; i++) {
		const uint64_t digit = (uint64_t)(text[i] - '0');

		if (*value > (UINT64_MAX - digit) / 10)
			return 0;
		*value = *value * 10 + digit;
	}
	return i > 1 && text[0] == '0' ? 0 : i;
}

/* The shift for a unit such as "", "k", "Ki", "kib", "MB"; -1 when it is none. */
static inline int quantity_shift(const char *unit, size_t length)
{
	static const char letters[] = "kmg";

	if (length == 0)
		return 0;
	for (int i = 0; i < 3; i++) {
		if ((unit[0] | 0x20) != letters[i])
			continue;
		if (length == 1 || quantity_is_word(unit + 1, length - 1, "i") ||
			quantity_is_word(unit + 1, length - 1, "b") || quantity_is_word(unit + 1, length - 1, "ib"))
			return 10 * (i + 1);
	}
	return -1;
}

/* Read a memory limit into `*bytes`, QUANTITY_UNLIMITED for the word; false when it is not one. */
static inline bool quantity_memory(const char *text, uint64_t *bytes)
{
	size_t length, digits;
	uint64_t value;
	int shift;

	text = quantity_trim(text, &length);
	if (quantity_is_word(text, length, "none") || quantity_is_word(text, length, "unlimited")) {
		*bytes = QUANTITY_UNLIMITED;
		return true;
	}
	digits = quantity_digits(text, length, &value);
	if (digits == 0 || value == 0)
		return false;
	shift = quantity_shift(text + digits, length - digits);
	if (shift < 0 || value > ((UINT64_MAX - 1) >> shift))
		return false;
	*bytes = value << shift;
	return true;
}

/* Read a compute limit into `*percent`; false when it is not one. */
static inline bool quantity_percent(const char *text, uint32_t *percent)
{
	size_t length;
	uint64_t value;

	text = quantity_trim(text, &length);
	if (quantity_digits(text, length, &value) != length || length == 0 || value > 100)
		return false;
	*percent = (uint32_t)value;
	return true;
}

/* Whether a switch is on: true, yes, on or 1 in any case. */
static inline bool quantity_switch(const char *text)
{
	size_t length;

	if (text == NULL)
		return false;
	text = quantity_trim(text, &length);
	return quantity_is_word(text, length, "true") || quantity_is_word(text, length, "yes") ||
	       quantity_is_word(text, length, "on") || (length == 1 && text[0] == '1');
}

#endif
