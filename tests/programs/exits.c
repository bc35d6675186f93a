// A process calls exit in a signal handler while it polls, as programs on libfabric do: libinfinipath's handlers of
// SIGINT and SIGTERM call exit. The process ends soon. Prints the checks that fail. The argument is the interface's own
// address.
#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES = 5, STATUS = 7, POLLS_FOR_MS = 20, ENDS_WITHIN_S = 20 };

static struct ibv_qp_init_attr attributes(void) {
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    init.cap.max_send_wr = init.cap.max_recv_wr = init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    return init;
}

static void *serve(void *listener) {
    struct rdma_cm_id *id;
    struct ibv_qp_init_attr init = attributes();
    if (rdma_get_request(listener, &id) || rdma_create_qp(id, NULL, &init) || rdma_accept(id, NULL)) _exit(1);
    return NULL;
}

static void end(int signal) {
    (void)signal;
    exit(STATUS);
}

// Connects to itself, so that its end has a DREQ to send, and polls until the signal.
static void poll_until_signal(const char *ip) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(7516)};
    struct ibv_qp_init_attr init = attributes();
    struct rdma_cm_id *listener, *id;
    struct ibv_wc wc;
    pthread_t thread;
    inet_pton(AF_INET, ip, &own.sin_addr);
    if (rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) || rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP)) _exit(2);
    if (rdma_bind_addr(listener, (struct sockaddr *)&own) || rdma_listen(listener, 1)) _exit(3);
    pthread_create(&thread, NULL, serve, listener);
    if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&own, 2000) || rdma_resolve_route(id, 2000)) _exit(4);
    if (rdma_create_qp(id, NULL, &init) || rdma_connect(id, NULL)) _exit(5);
    pthread_join(thread, NULL);
    signal(SIGALRM, end);
    struct itimerval soon = {.it_value.tv_usec = POLLS_FOR_MS * 1000};
    setitimer(ITIMER_REAL, &soon, NULL);
    for (;;) ibv_poll_cq(id->send_cq, 1, &wc);
}

// Returns the exit status of the process; -1 if it crashed or had to be killed.
static int status_of(pid_t child) {
    int status;
    time_t end = time(NULL) + ENDS_WITHIN_S;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (time(NULL) > end) {
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
            return -1;
        }
        usleep(1000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int argc, char **argv) {
    const char *ip = argc > 1 ? argv[1] : "10.77.0.1";
    int failed = 0;
    for (int i = 0; i < PROCESSES; i++) {
        fflush(stdout); // A child that calls exit prints what it inherits.
        pid_t child = fork();
        if (child == 0) poll_until_signal(ip);
        int status = status_of(child);
        if (status == STATUS) continue;
        printf("process %d: status %d\n", i, status);
        failed++;
    }
    printf("%d checks failed\n", failed);
    return failed > 0;
}
