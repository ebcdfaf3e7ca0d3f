/* log.c: one write per line, from a buffer on the stack: it works in a signal handler and in a forked child. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "log.h"

enum { LINE_BYTES = 512 };

static int level_wanted(void)
{
	const char *text = getenv("LIBCUDA_LOG_LEVEL");

	return text != NULL && text[0] >= '0' && text[0] <= '4' && text[1] == '\0' ? text[0] - '0' : 1;
}

static void write_line(const char *format, va_list arguments)
{
	char line[LINE_BYTES];
	int length = snprintf(line, sizeof(line), "libvgpu[%d]: ", (int)getpid());

	if (length > 0)
		length += vsnprintf(line + length, sizeof(line) - (size_t)length - 1, format, arguments);
	if (length < 0)
		return;
	if (length > LINE_BYTES - 2)
		length = LINE_BYTES - 2;
	line[length++] = '\n';
	if (write(STDERR_FILENO, line, (size_t)length) < 0)
		return; /* nobody listens */
}

void log_line(enum log_level level, const char *format, ...)
{
	va_list arguments;

	if ((int)level > level_wanted())
		return;
	va_start(arguments, format);
	write_line(format, arguments);
	va_end(arguments);
}

void log_stop(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	write_line(format, arguments);
	va_end(arguments);
	_exit(STOP_STATUS);
}
