/* A host's clock that is wrong: one kernel has one clock, and no time namespace covers CLOCK_REALTIME, so every program of
 * the host gets its time from here (/etc/ld.so.preload). Its offset [s] is a double in /etc/clock-offset, which may change
 * at any moment. Its time daemon's account (adjtimex) is that of a daemon that thinks itself right within 0.1 s. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

static volatile const double *ahead;

__attribute__((constructor)) static void find_offset(void) {
    int file = open("/etc/clock-offset", O_RDONLY | O_CLOEXEC);
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (found != MAP_FAILED) ahead = found;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, id, now);
    if (!failed && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += (time_t)*ahead;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}

int adjtimex(struct timex *said) { /* containers may not ask the kernel */
    memset(said, 0, sizeof *said);
    said->maxerror = 100000;
    return TIME_OK;
}
