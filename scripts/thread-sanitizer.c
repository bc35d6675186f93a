/* What rustc calls for copies and the run-time library of an older GCC does not have. GCC's library
 * checks the functions of libc. */
#include <string.h>

void *__tsan_memcpy(void *to, const void *from, size_t len) { return memcpy(to, from, len); }
void *__tsan_memmove(void *to, const void *from, size_t len) { return memmove(to, from, len); }
void *__tsan_memset(void *to, int byte, size_t len) { return memset(to, byte, len); }
