/* Many short connections a second, for tests/lab/test_sender_watch.py; one thread, epoll.
 *   connections serve ADDRESS PORT             answers each connection with 1,000 bytes
 *   connections connect ADDRESS PORT RATE S    opens RATE connections a second for S seconds, prints how many were answered
 * The client ends with RST, so that neither end keeps ports in TIME_WAIT. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void watch(int poll, int file, int what) {
    struct epoll_event event = {.events = what, .data.fd = file};
    epoll_ctl(poll, EPOLL_CTL_ADD, file, &event);
}

int main(int count, char **words) {
    if (count < 4) return 2;
    struct rlimit many = {1 << 17, 1 << 17};
    setrlimit(RLIMIT_NOFILE, &many);
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(words[3]))};
    inet_pton(AF_INET, words[2], &to.sin_addr);
    struct epoll_event events[512];
    char buffer[1000] = {0};
    int poll = epoll_create1(0), one = 1;
    if (!strcmp(words[1], "serve")) {
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, (void *)&to, sizeof to) || listen(listener, 4096)) return 1;
        watch(poll, listener, EPOLLIN);
        puts("ready");
        fflush(stdout);
        for (;;) {
            int ready = epoll_wait(poll, events, 512, -1);
            for (int i = 0; i < ready; i++) {
                int file = events[i].data.fd;
                if (file != listener) {
                    if (read(file, buffer, sizeof buffer) <= 0 && errno != EAGAIN) close(file);
                    continue;
                }
                while ((file = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    if (write(file, buffer, sizeof buffer) < 0) close(file);
                    else watch(poll, file, EPOLLIN);
                }
            }
        }
    }
    double rate = atof(words[4]), began = now(), seconds = atof(words[5]);
    long opened = 0, answered = 0, open = 0;
    struct linger reset = {1, 0};
    while (now() < began + seconds || (open && now() < began + seconds + 2)) {
        while (now() < began + seconds && open < 8000 && opened < (now() - began) * rate) {
            int file = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
            if (file < 0 || (connect(file, (void *)&to, sizeof to) && errno != EINPROGRESS)) {
                perror(words[1]);
                return 1;
            }
            setsockopt(file, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
            watch(poll, file, EPOLLIN);
            opened++, open++;
        }
        int ready = epoll_wait(poll, events, 512, 1);
        for (int i = 0; i < ready; i++) {
            answered += read(events[i].data.fd, buffer, sizeof buffer) > 0;
            close(events[i].data.fd);
            open--;
        }
    }
    printf("%ld\n", answered);
    return 0;
}
