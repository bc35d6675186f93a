/* Checks rsockets against the manual pages of sockets: `rsockets OWN-ADDRESS` is the server, `rsockets SERVER client` the
 * client. The server echoes the data of the first connection, and exits while the second is open, without closing it. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PORT 7480
#define LENGTH (3 << 20)

static int failed;

#define check(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s (%s)\n", __LINE__, #what, strerror(errno)); \
            failed++; \
        } \
    } while (0)
#define fails(what, code) check((what) == -1 && errno == (code))

static struct sockaddr_in address(const char *text, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, text, &address.sin_addr);
    return address;
}

static void options(int fd) {
    int value = 0;
    socklen_t length = sizeof value;
    value = 1;
    check(rsetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value) == 0);
    check(rgetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length) == 0 && value == 1);
    value = 50000;
    check(rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof value) == 0);
    check(rgetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &length) == 0 && value == 100000);
    value = 20000;
    check(rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof value) == 0);
    value = 4;
    check(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &value, sizeof value) == 0);
    fails(rsetsockopt(fd, SOL_SOCKET, SO_BROADCAST, &value, sizeof value), ENOTSUP);
    value = 0;
    fails(rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof value), EINVAL);
    check(rfcntl(fd, F_GETFL) == 0);
    fails(rfcntl(fd, F_GETFD), ENOTSUP);
}

static void serve(const char *own) {
    struct sockaddr_in here = address(own, PORT), peer;
    socklen_t length = sizeof peer;
    static char buffer[LENGTH];
    size_t had = 0;
    ssize_t got;
    int listener = rsocket(AF_INET, SOCK_STREAM, 0), fd;
    options(listener);
    fails(raccept(listener, NULL, NULL), EBADF);
    check(rbind(listener, (struct sockaddr *)&here, sizeof here) == 0);
    check(rlisten(listener, 5) == 0);
    check(rfcntl(listener, F_SETFL, O_NONBLOCK) == 0);
    fails(raccept(listener, NULL, NULL), EAGAIN);
    struct pollfd polled = {.fd = listener, .events = POLLIN};
    check(rpoll(&polled, 1, 60000) == 1 && polled.revents == POLLIN);
    check((fd = raccept(listener, (struct sockaddr *)&peer, &length)) >= 0);
    check(length == sizeof peer && peer.sin_family == AF_INET && peer.sin_port != 0);
    while ((got = rrecv(fd, buffer + had, LENGTH - had, 0)) > 0) had += got;
    check(got == 0 && had == LENGTH);
    check(rsend(fd, buffer, had, 0) == (ssize_t)had);
    check(rclose(fd) == 0);
    fails(rrecv(fd, buffer, 1, 0), EBADF);
    check(rpoll(&polled, 1, 60000) == 1);
    check((fd = raccept(listener, NULL, NULL)) >= 0);
    static char mapped[4096];
    check(riomap(fd, mapped, sizeof mapped, PROT_WRITE, 0, 1000) == 1000);
    fails(riounmap(fd, mapped, 5), EINVAL);
    check(rsend(fd, "m", 1, 0) == 1);
    check(rrecv(fd, buffer, 1, 0) == 1);
    check(mapped[0] == 0 && mapped[5] == 'x' && mapped[104] == 'x' && mapped[105] == 0);
}

static void refused(const char *server) {
    struct sockaddr_in unused = address(server, PORT + 1);
    int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    char byte;
    fails(rsend(fd, "x", 1, 0), ENOTCONN);
    fails(rrecv(fd, &byte, 1, 0), ENOTCONN);
    fails(rconnect(fd, (struct sockaddr *)&unused, sizeof unused), ECONNREFUSED);
    check(rclose(fd) == 0);
    fails(rclose(fd), EBADF);
    fails(rsocket(AF_UNIX, SOCK_STREAM, 0), ENOTSUP);
    fails(rsocket(AF_INET, SOCK_RAW, 0), ENOTSUP);
}

/* Connects a nonblocking socket, and polls it together with a pipe. */
static int connecting(const char *server) {
    struct sockaddr_in there = address(server, PORT), name;
    socklen_t length = sizeof name, size = sizeof(int);
    int pipes[2], error = -1, fd = rsocket(AF_INET, SOCK_STREAM, 0);
    options(fd);
    check(pipe(pipes) == 0);
    check(rfcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    fails(rconnect(fd, (struct sockaddr *)&there, sizeof there), EINPROGRESS);
    struct pollfd polled[] = {{.fd = fd, .events = POLLOUT}, {.fd = pipes[0], .events = POLLIN}};
    check(rpoll(polled, 2, 60000) == 1 && polled[0].revents == POLLOUT && polled[1].revents == 0);
    check(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0);
    check(rgetpeername(fd, (struct sockaddr *)&name, &length) == 0 && name.sin_port == htons(PORT));
    polled[0].events = POLLIN;
    check(rpoll(polled, 2, 50) == 0);
    check(write(pipes[1], "x", 1) == 1);
    check(rpoll(polled, 2, -1) == 1 && polled[0].revents == 0 && polled[1].revents == POLLIN);
    close(pipes[0]), close(pipes[1]);
    return fd;
}

static void echo(const char *server) {
    static char sent[LENGTH], got[LENGTH];
    size_t done = 0;
    ssize_t step;
    int fd = connecting(server);
    for (size_t i = 0; i < LENGTH; i++) sent[i] = random();
    fails(rrecv(fd, got, 1, 0), EAGAIN);
    check(rsend(fd, sent, 0, 0) == 0);
    struct iovec parts[] = {{sent, 10}, {sent + 10, 0}, {sent + 10, 4990}};
    check(rwritev(fd, parts, 3) == 5000);
    for (done = 5000; done < LENGTH;) {
        struct pollfd polled = {.fd = fd, .events = POLLOUT};
        step = rsend(fd, sent + done, LENGTH - done, 0);
        if (step < 0) check(errno == EAGAIN && rpoll(&polled, 1, 60000) == 1);
        if (step > 0) done += step;
    }
    check(rshutdown(fd, SHUT_WR) == 0);
    fails(rsend(fd, sent, 1, 0), ECONNRESET);
    check(rfcntl(fd, F_SETFL, 0) == 0);
    check(rrecv(fd, got, 100, MSG_PEEK) > 0);
    struct iovec rooms[] = {{got, 3}, {got + 3, 7}};
    check(rreadv(fd, rooms, 2) == 10);
    check(rrecv(fd, got + 10, LENGTH - 10, MSG_WAITALL) == LENGTH - 10);
    check(memcmp(got, sent, LENGTH) == 0);
    check(rrecv(fd, got, 1, 0) == 0);
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    check(rpoll(&polled, 1, 60000) == 1 && polled.revents == (POLLIN | POLLHUP));
    check(rclose(fd) == 0);
}

static void mapped_and_killed(const char *server) {
    struct sockaddr_in there = address(server, PORT);
    struct timespec begin, end;
    char byte, bytes[100];
    int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    options(fd);
    check(rconnect(fd, (struct sockaddr *)&there, sizeof there) == 0);
    check(rconnect(fd, (struct sockaddr *)&there, sizeof there) == 0); /* already connected */
    check(rrecv(fd, &byte, 1, 0) == 1 && byte == 'm');
    memset(bytes, 'x', sizeof bytes);
    check(riowrite(fd, bytes, sizeof bytes, 1005, 0) == sizeof bytes);
    check(rsend(fd, "x", 1, 0) == 1);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    errno = 0;
    ssize_t got = rrecv(fd, &byte, 1, 0);
    check(got == 0 || (got == -1 && errno == ECONNRESET));
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("the exit of the peer is detected after %ld s\n", (long)(end.tv_sec - begin.tv_sec));
    fails(rsend(fd, "x", 1, 0), ECONNRESET);
    check(rclose(fd) == 0);
}

int main(int count, char **words) {
    if (count < 2) return 2;
    if (count == 2) {
        serve(words[1]);
        fflush(stdout);
        _exit(failed != 0);
    }
    refused(words[1]);
    echo(words[1]);
    mapped_and_killed(words[1]);
    printf("%d checks failed\n", failed);
    return failed != 0;
}
