// Measures how many connections per second two programs make and end: through RDMA CM, or, with `verbs`, only the QPs
// of one end (create, INIT, RTR, RTS, destroy), whose peer need not exist.
//   connects server ADDRESS
//   connects client ADDRESS [COUNT [AT_ONCE]]
//   connects verbs PEER [COUNT [DEPTH]]
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static void need(int is_true, const char *what) {
    if (!is_true) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

// CPU time of this process, user and system, in microseconds.
static double cpu_time(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 +
        (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static struct sockaddr_in address_of(const char *text) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(7472)};
    need(inet_pton(AF_INET, text, &address.sin_addr) == 1, text);
    return address;
}

static struct ibv_qp_init_attr qp_attributes(struct ibv_cq *cq, unsigned depth) {
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq};
    init.cap.max_send_wr = init.cap.max_recv_wr = depth;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    return init;
}

// ---- RDMA CM

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static unsigned requested, established, ended, total;

// The device is known with the first connection.
static void create_qp(struct rdma_cm_id *id) {
    if (!pd) {
        pd = ibv_alloc_pd(id->verbs);
        cq = ibv_create_cq(id->verbs, 4096, NULL, NULL, 0);
        need(pd && cq, "PD and CQ");
    }
    struct ibv_qp_init_attr init = qp_attributes(cq, 4);
    need(!rdma_create_qp(id, pd, &init), "rdma_create_qp");
}

static void start(struct rdma_event_channel *channel, struct sockaddr_in *server) {
    struct rdma_cm_id *id;
    need(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    need(!rdma_resolve_addr(id, NULL, (struct sockaddr *)server, 2000), "rdma_resolve_addr");
    requested++;
}

static void end(struct rdma_cm_id *id) {
    rdma_destroy_qp(id);
    need(!rdma_destroy_id(id), "rdma_destroy_id");
    ended++;
}

// Handles the next event. The last one of the server is that of its last connection.
static void handle(struct rdma_event_channel *channel, struct sockaddr_in *server) {
    struct rdma_cm_event *event;
    need(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
    enum rdma_cm_event_type kind = event->event;
    struct rdma_cm_id *id = event->id;
    int status = event->status;
    rdma_ack_cm_event(event);
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
    switch (kind) {
        case RDMA_CM_EVENT_ADDR_RESOLVED:
            need(!rdma_resolve_route(id, 2000), "rdma_resolve_route");
            break;
        case RDMA_CM_EVENT_ROUTE_RESOLVED:
            create_qp(id);
            need(!rdma_connect(id, &param), "rdma_connect");
            break;
        case RDMA_CM_EVENT_CONNECT_REQUEST:
            create_qp(id);
            need(!rdma_accept(id, &param), "rdma_accept");
            break;
        case RDMA_CM_EVENT_ESTABLISHED:
            established++;
            if (server) need(!rdma_disconnect(id), "rdma_disconnect");
            break;
        case RDMA_CM_EVENT_DISCONNECTED:
            if (!server) rdma_disconnect(id);
            end(id);
            if (server && requested < total) start(channel, server);
            break;
        case RDMA_CM_EVENT_TIMEWAIT_EXIT:
            break;
        default:
            fprintf(stderr, "%s, status %d\n", rdma_event_str(kind), status);
            exit(1);
    }
}

static int serve(struct sockaddr_in address) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener;
    need(channel != NULL, "rdma_create_event_channel");
    need(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
    need(!rdma_bind_addr(listener, (struct sockaddr *)&address), "rdma_bind_addr");
    need(!rdma_listen(listener, 1024), "rdma_listen");
    printf("listens\n");
    fflush(stdout);
    double used = cpu_time();
    struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
    // Without an event for this long after the first connection, the client has ended.
    while (poll(&readable, 1, established ? 1000 : 30000) > 0) handle(channel, NULL);
    printf("%u connections accepted, %u ended, %.0f us of CPU time each\n", established, ended,
        (cpu_time() - used) / ended);
    return 0;
}

static int request(struct sockaddr_in server, unsigned count, unsigned at_once) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    need(channel != NULL, "rdma_create_event_channel");
    // The first connection opens the device and resolves the path.
    total = 1;
    start(channel, &server);
    while (ended < total) handle(channel, &server);
    total = 1 + count;
    double begin = now(), used = cpu_time();
    while (requested < total && requested < 1 + at_once) start(channel, &server);
    while (ended < total) handle(channel, &server);
    printf("%.0f connections/s, %.0f us of CPU time each\n", count / (now() - begin), (cpu_time() - used) / count);
    return 0;
}

// ---- verbs

static void modify(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask) {
    int code = ibv_modify_qp(qp, &attr, mask);
    errno = code;
    need(!code, "ibv_modify_qp");
}

static void connect_qp(struct ibv_qp *qp, union ibv_gid gid, int gid_index) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    modify(qp, init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
        .rq_psn = 1, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1,
            .grh = {.dgid = gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64}}};
    modify(qp, rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .sq_psn = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
        .max_rd_atomic = 1};
    modify(qp, rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
        IBV_QP_MAX_QP_RD_ATOMIC);
}

static int gid_index_of(struct ibv_context *context) {
    union ibv_gid gid;
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    for (int index = 0; !ibv_query_gid(context, 1, index, &gid); index++)
        if (!memcmp(gid.raw, mapped, sizeof mapped)) return index;
    need(0, "an IPv4 GID");
    return -1;
}

static int verbs(struct sockaddr_in peer, unsigned count, unsigned depth) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    need(devices && devices[0], "a device");
    struct ibv_context *context = ibv_open_device(devices[0]);
    need(context != NULL, "ibv_open_device");
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 4096, NULL, NULL, 0);
    need(pd && cq, "PD and CQ");
    union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};
    memcpy(gid.raw + 12, &peer.sin_addr, 4);
    int gid_index = gid_index_of(context);
    struct ibv_qp **qps = calloc(count, sizeof *qps);
    double begin = now(), used = cpu_time();
    for (unsigned n = 0; n < count; n++) {
        struct ibv_qp_init_attr init = qp_attributes(cq, depth);
        qps[n] = ibv_create_qp(pd, &init);
        need(qps[n] != NULL, "ibv_create_qp");
        connect_qp(qps[n], gid, gid_index);
    }
    double connected = now();
    used = cpu_time() - used;
    for (unsigned n = 0; n < count; n++) need(!ibv_destroy_qp(qps[n]), "ibv_destroy_qp");
    printf("%.0f connections/s, %.0f us of CPU time each, %.0f destroyed/s\n", count / (connected - begin),
        used / count, count / (now() - connected));
    return 0;
}

int main(int count, char **words) {
    const char *role = count > 2 ? words[1] : "";
    unsigned first = count > 3 ? (unsigned)atoi(words[3]) : 10000;
    unsigned second = count > 4 ? (unsigned)atoi(words[4]) : 32;
    if (!strcmp(role, "server")) return serve(address_of(words[2]));
    if (!strcmp(role, "client")) return request(address_of(words[2]), first, second);
    if (!strcmp(role, "verbs")) return verbs(address_of(words[2]), first, second);
    fprintf(stderr, "usage: connects server|client|verbs ADDRESS [COUNT [AT_ONCE|DEPTH]]\n");
    return 2;
}
