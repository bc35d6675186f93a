// Connections of a process with itself at 127.0.0.1 and ::1, as the kernel's CM resolves them; the RNR timer that RDMA
// CM sets; the error number for an interface that another process owns. Prints the checks that fail. The argument is
// the interface's own address.
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failed;
#define CHECK(what)                                                                            \
    do {                                                                                       \
        errno = 0;                                                                             \
        if (!(what)) printf("line %d: %s (%s)\n", __LINE__, #what, strerror(errno)), failed++; \
    } while (0)

static struct sockaddr_storage at(const char *ip, int port) {
    struct sockaddr_storage address = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;
    if (inet_pton(AF_INET, ip, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
    } else {
        inet_pton(AF_INET6, ip, &v6->sin6_addr);
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
    }
    return address;
}

static int is_at(struct sockaddr *address, const char *ip) {
    char text[INET6_ADDRSTRLEN] = "";
    const void *bytes = address->sa_family == AF_INET ? (void *)&((struct sockaddr_in *)address)->sin_addr
                                                      : (void *)&((struct sockaddr_in6 *)address)->sin6_addr;
    inet_ntop(address->sa_family, bytes, text, sizeof text);
    return strcmp(text, ip) == 0;
}

static int rnr_timer(struct rdma_cm_id *id) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    return ibv_query_qp(id->qp, &attr, IBV_QP_MIN_RNR_TIMER, &init) ? -1 : attr.min_rnr_timer;
}

static struct ibv_qp_init_attr attributes(void) {
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    init.cap.max_send_wr = init.cap.max_recv_wr = init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = 16;
    return init;
}

struct server {
    struct rdma_cm_id *listener;
    struct rdma_conn_param *param;
    int timer;
};

static void *serve(void *argument) {
    struct server *server = argument;
    struct rdma_cm_id *id;
    struct ibv_qp_init_attr init = attributes();
    struct ibv_wc wc;
    char text[16] = "";
    CHECK(rdma_get_request(server->listener, &id) == 0);
    CHECK(rdma_create_qp(id, NULL, &init) == 0);
    struct ibv_mr *mr = rdma_reg_msgs(id, text, sizeof text);
    CHECK(rdma_post_recv(id, NULL, text, sizeof text, mr) == 0);
    CHECK(rdma_accept(id, server->param) == 0);
    CHECK(rnr_timer(id) == server->timer);
    CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(text, "to myself"));
    rdma_disconnect(id);
    rdma_dereg_mr(mr);
    rdma_destroy_qp(id);
    CHECK(rdma_destroy_id(id) == 0);
    return NULL;
}

// Listens at `bound` and connects to `ip`. Both ends pass `param`; `timer` is the expected code of their RNR timers.
static void connect_to(const char *bound, const char *ip, int port, struct rdma_conn_param *param, int timer) {
    struct server server = {.param = param, .timer = timer};
    struct sockaddr_storage own = at(bound, port), to = at(ip, port);
    struct ibv_qp_init_attr init = attributes();
    struct rdma_cm_id *id;
    struct ibv_wc wc;
    char text[16] = "to myself";
    pthread_t thread;
    CHECK(rdma_create_id(NULL, &server.listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(server.listener, (struct sockaddr *)&own) == 0);
    CHECK(rdma_listen(server.listener, 1) == 0);
    CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
    int resolved = rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000);
    if (resolved) {
        printf("%s is not resolved: %s\n", ip, strerror(errno));
        failed++;
        rdma_destroy_id(id);
        rdma_destroy_id(server.listener);
        return;
    }
    pthread_create(&thread, NULL, serve, &server);
    CHECK(id->verbs && id->port_num == 1);
    CHECK(is_at(rdma_get_peer_addr(id), ip) && rdma_get_dst_port(id) == htons(port));
    CHECK(is_at(rdma_get_local_addr(id), ip) && rdma_get_src_port(id) != 0);
    CHECK(rdma_resolve_route(id, 2000) == 0 && id->route.num_paths == 1);
    CHECK(memcmp(&id->route.path_rec->sgid, &id->route.path_rec->dgid, 16) == 0);
    CHECK(rdma_create_qp(id, NULL, &init) == 0);
    CHECK(rdma_connect(id, param) == 0);
    CHECK(rnr_timer(id) == timer);
    CHECK(rdma_post_send(id, NULL, text, sizeof text, NULL, IBV_SEND_INLINE) == 0);
    CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    // Before the server has ended: its rdma_disconnect waits for the DREP, which this call sends.
    rdma_disconnect(id);
    pthread_join(thread, NULL);
    rdma_destroy_qp(id);
    CHECK(rdma_destroy_id(id) == 0);
    CHECK(rdma_destroy_id(server.listener) == 0);
}

static int binds(const char *ip, int *code) {
    struct rdma_cm_id *id;
    struct sockaddr_storage own = at(ip, 0);
    if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP)) return -1;
    int returned = rdma_bind_addr(id, (struct sockaddr *)&own);
    *code = returned ? errno : 0;
    rdma_destroy_id(id);
    return returned;
}

// While another process owns the interface, binding fails with EBUSY. At a daemon it does not fail.
static void in_use(const char *own) {
    int pipes[2], code = 0;
    char ready = 0;
    CHECK(pipe(pipes) == 0);
    pid_t child = fork();
    if (child == 0) {
        struct ibv_device **list = ibv_get_device_list(NULL);
        ready = list && list[0] && ibv_open_device(list[0]) ? 1 : 2;
        if (write(pipes[1], &ready, 1) == 1) pause();
        _exit(0);
    }
    CHECK(read(pipes[0], &ready, 1) == 1 && ready == 1);
    int shared = getenv("FEROCE_SHARING") != NULL;
    CHECK(shared ? binds(own, &code) == 0 : binds(own, &code) == -1 && code == EBUSY);
    CHECK(shared || (binds("127.0.0.1", &code) == -1 && code == EBUSY));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(binds(own, &code) == 0);
    CHECK(binds("127.0.0.1", &code) == 0);
}

int main(int argc, char **argv) {
    const char *own = argc > 1 ? argv[1] : "10.77.0.1";
    struct rdma_conn_param endless = {.retry_count = 7, .rnr_retry_count = 7, .responder_resources = 1, .initiator_depth = 1};
    struct rdma_conn_param thrice = endless;
    thrice.rnr_retry_count = 3;
    in_use(own);
    connect_to("127.0.0.1", "127.0.0.1", 7511, &endless, 12);
    connect_to("0.0.0.0", "127.0.0.1", 7512, &thrice, 0);
    connect_to(own, "127.0.0.1", 7513, NULL, 12);
    connect_to("::1", "::1", 7514, &endless, 12);
    connect_to("::", "::1", 7515, &endless, 12);
    printf("%d checks failed\n", failed);
    return failed > 0;
}
