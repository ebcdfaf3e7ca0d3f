/* log.h: one line to standard error, now and then. LIBCUDA_LOG_LEVEL: 0 errors, 1 (default) the same, 2 warnings and
 * messages, 3 information, 4 debugging. */
#ifndef VGPU_LOG_H
#define VGPU_LOG_H

enum log_level {
	LOG_ERROR = 0,
	LOG_WARNING = 2,
	LOG_INFO = 3,
};

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

/* Say what is wrong and what to do, and end the process: a limit was promised and cannot be read. */
__attribute__((noreturn, format(printf, 1, 2))) void log_stop(const char *format, ...);

#define STOP_STATUS 78 /* EX_CONFIG */

#endif
