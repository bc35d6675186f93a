// Connections of a process with itself, at the device's own address, and the error numbers of `rdma_*`. Prints the
// checks that fail.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failed;
#define CHECK(what)                                                                            \
    do {                                                                                       \
        errno = 0;                                                                             \
        if (!(what)) printf("line %d: %s (%s)\n", __LINE__, #what, strerror(errno)), failed++; \
    } while (0)

static struct sockaddr_in at(const char *ip, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, ip, &address.sin_addr);
    return address;
}

static int refused(int returned, int code) { return returned == -1 && errno == code; }

static struct ibv_qp_init_attr attributes(void) {
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    init.cap.max_send_wr = init.cap.max_recv_wr = init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = 16;
    return init;
}

static void *serve(void *listener) {
    struct rdma_cm_id *id;
    struct ibv_qp_init_attr init = attributes();
    struct rdma_conn_param param = {.private_data = "yes", .private_data_len = 3};
    struct ibv_wc wc;
    char text[16] = "";
    CHECK(rdma_get_request(listener, &id) == 0);
    CHECK(id->verbs && id->event->param.conn.private_data_len == 56);
    CHECK(memcmp(id->event->param.conn.private_data, "hello", 5) == 0);
    CHECK(rdma_create_qp(id, NULL, &init) == 0);
    struct ibv_mr *mr = rdma_reg_msgs(id, text, sizeof text);
    CHECK(rdma_post_recv(id, NULL, text, sizeof text, mr) == 0);
    param.responder_resources = param.initiator_depth = 1;
    CHECK(rdma_accept(id, &param) == 0);
    CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(text, "to myself"));
    CHECK(rdma_disconnect(id) == 0);
    rdma_dereg_mr(mr);
    rdma_destroy_qp(id);
    CHECK(rdma_destroy_id(id) == 0);
    return NULL;
}

// A connection of the process with itself, by synchronous calls.
static void with_itself(const char *own) {
    struct rdma_cm_id *listener, *id;
    struct sockaddr_in address = at(own, 7411);
    struct ibv_qp_init_attr init = attributes();
    struct rdma_conn_param param = {.private_data = "hello", .private_data_len = 5, .retry_count = 7};
    struct ibv_wc wc;
    char text[16] = "to myself";
    pthread_t server;
    CHECK(rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
    CHECK(listener->verbs && rdma_get_src_port(listener) == htons(7411));
    CHECK(rdma_listen(listener, 1) == 0);
    pthread_create(&server, NULL, serve, listener);
    CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000) == 0);
    CHECK(id->verbs == listener->verbs && rdma_get_dst_port(id) == htons(7411));
    CHECK(rdma_resolve_route(id, 2000) == 0 && id->route.num_paths == 1);
    CHECK(rdma_create_qp(id, NULL, &init) == 0);
    param.responder_resources = param.initiator_depth = 1;
    CHECK(rdma_connect(id, &param) == 0);
    CHECK(id->event->param.conn.private_data_len == 196);
    CHECK(memcmp(id->event->param.conn.private_data, "yes", 3) == 0);
    address.sin_port = htons(7);
    CHECK(refused(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 100), EINVAL));
    CHECK(rdma_get_dst_port(id) == htons(7411));
    CHECK(rdma_post_send(id, NULL, text, sizeof text, NULL, IBV_SEND_INLINE) == 0);
    CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    CHECK(rdma_disconnect(id) == 0);
    pthread_join(server, NULL);
    rdma_destroy_qp(id);
    CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(listener) == 0);
}

// Runs `act` in a child process. Returns true if all checks of the child hold.
static int in_child(void (*act)(const char *, struct rdma_cm_id *), const char *own, struct rdma_cm_id *id) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        failed = 0;
        act(own, id);
        fflush(stdout);
        exit(failed != 0);
    }
    int status = -1;
    return waitpid(child, &status, 0) == child && status == 0;
}

// The parent has not opened the device, so the child can open it. The child cannot use the parent's identifier.
static void early_child(const char *own, struct rdma_cm_id *parents) {
    struct sockaddr_in address = at(own, 7410);
    CHECK(refused(rdma_bind_addr(parents, (struct sockaddr *)&address), EIO));
    with_itself(own);
    CHECK(refused(rdma_destroy_id(parents), EIO));
}

// The parent has opened the device: the child can neither open it nor use the parent's identifier. At a daemon it can open it.
static void late_child(const char *own, struct rdma_cm_id *parents) {
    struct sockaddr_in address = at(own, 7410);
    struct rdma_cm_id *id;
    CHECK(refused(rdma_listen(parents, 1), EIO));
    CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
    if (getenv("FEROCE_SHARING")) {
        CHECK(rdma_bind_addr(id, (struct sockaddr *)&address) == 0);
    } else {
        CHECK(refused(rdma_bind_addr(id, (struct sockaddr *)&address), EBUSY));
    }
    CHECK(rdma_destroy_id(id) == 0);
}

// QP attributes of an identifier without a connection attempt: as in the kernel, the same for each state.
static void attributes_before_connecting(const char *own) {
    struct sockaddr_in address = at(own, 0);
    struct rdma_cm_id *id;
    struct ibv_qp_attr attr;
    int mask;
    CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
    attr.qp_state = IBV_QPS_INIT;
    CHECK(refused(rdma_init_qp_attr(id, &attr, &mask), EINVAL));
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&address) == 0);
    for (int state = IBV_QPS_RESET; state <= IBV_QPS_ERR; state++) {
        attr.qp_state = state;
        CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0 && attr.qp_state == state);
        CHECK(mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    }
    attr.qp_state = IBV_QPS_ERR + 1;
    CHECK(refused(rdma_init_qp_attr(id, &attr, &mask), EINVAL));
    CHECK(rdma_listen(id, 1) == 0);
    attr.qp_state = IBV_QPS_INIT;
    CHECK(refused(rdma_init_qp_attr(id, &attr, &mask), EINVAL));
    CHECK(rdma_destroy_id(id) == 0);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

// An absent neighbour: resolution ends after the time limit that the program gives, short or long.
static void time_limits(const char *own) {
    struct sockaddr_in absent = at("10.77.0.99", 1), loopback = at("127.0.0.1", 0), self = at(own, 1);
    for (int wait = 300; wait <= 4000; wait += 3700) {
        struct rdma_cm_id *id, *other;
        CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
        double start = seconds();
        CHECK(refused(rdma_resolve_addr(id, NULL, (struct sockaddr *)&absent, wait), ETIMEDOUT));
        CHECK(id->event && id->event->event == RDMA_CM_EVENT_ADDR_ERROR && id->event->status == -ETIMEDOUT);
        CHECK(seconds() - start >= wait * 1e-3 && seconds() - start < wait * 1e-3 + 2);
        CHECK(rdma_create_id(NULL, &other, NULL, RDMA_PS_TCP) == 0);
        // A loopback address selects no device before the destination is resolved, as in the kernel's CM.
        CHECK(rdma_bind_addr(other, (struct sockaddr *)&loopback) == 0 && other->verbs == NULL);
        CHECK(rdma_resolve_addr(other, NULL, (struct sockaddr *)&loopback, 100) == 0 && other->verbs);
        CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(other) == 0);
    }
    // The resolution of one identifier does not wait for the neighbour of another.
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *slow, *quick;
    struct rdma_cm_event *event;
    CHECK(rdma_create_id(channel, &slow, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_create_id(channel, &quick, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_resolve_addr(slow, NULL, (struct sockaddr *)&absent, 1000) == 0);
    CHECK(rdma_resolve_addr(quick, NULL, (struct sockaddr *)&self, 1000) == 0);
    CHECK(rdma_get_cm_event(channel, &event) == 0 && event->id == quick);
    CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED && rdma_ack_cm_event(event) == 0);
    CHECK(rdma_get_cm_event(channel, &event) == 0 && event->id == slow && event->status == -ETIMEDOUT);
    CHECK(rdma_ack_cm_event(event) == 0);
    CHECK(rdma_destroy_id(slow) == 0 && rdma_destroy_id(quick) == 0);
    rdma_destroy_event_channel(channel);
}

// Options: for which identifiers and in which states they may be set.
static void options(const char *own) {
    struct sockaddr_in address = at(own, 7413);
    struct rdma_cm_id *one, *two, *datagrams;
    int yes = 1, no = 0;
    unsigned char code = 17;
    CHECK(rdma_create_id(NULL, &one, NULL, RDMA_PS_TCP) == 0 && rdma_create_id(NULL, &two, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_create_id(NULL, &datagrams, NULL, RDMA_PS_UDP) == 0);
    CHECK(refused(rdma_set_option(datagrams, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &code, 1), EINVAL));
    CHECK(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &code, 1) == 0);
    CHECK(rdma_bind_addr(one, (struct sockaddr *)&address) == 0);
    CHECK(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof yes) == 0);
    CHECK(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes) == 0);
    CHECK(refused(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &no, sizeof no), EINVAL));
    CHECK(rdma_set_option(two, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes) == 0);
    CHECK(rdma_bind_addr(two, (struct sockaddr *)&address) == 0);
    CHECK(rdma_destroy_id(two) == 0 && rdma_listen(one, 1) == 0);
    CHECK(refused(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes), EINVAL));
    CHECK(refused(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof yes), EINVAL));
    CHECK(rdma_destroy_id(one) == 0 && rdma_destroy_id(datagrams) == 0);
}

static void errors(const char *own) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id, *other;
    struct rdma_cm_event *event;
    struct sockaddr_in address = at(own, 7412), foreign = at("192.0.2.1", 0);
    struct rdma_conn_param param = {0};
    unsigned char tos = 8;
    CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(refused(rdma_get_cm_event(channel, &event), EAGAIN));
    CHECK(refused(rdma_create_id(channel, &id, NULL, 77), EINVAL));
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0 && !id->verbs);
    CHECK(refused(rdma_bind_addr(id, (struct sockaddr *)&foreign), EADDRNOTAVAIL));
    CHECK(refused(rdma_resolve_route(id, 1), EINVAL));
    CHECK(refused(rdma_connect(id, &param), EINVAL));
    CHECK(refused(rdma_disconnect(id), EINVAL));
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&address) == 0);
    CHECK(refused(rdma_bind_addr(id, (struct sockaddr *)&address), EINVAL));
    CHECK(rdma_create_id(channel, &other, NULL, RDMA_PS_TCP) == 0);
    CHECK(refused(rdma_bind_addr(other, (struct sockaddr *)&address), EADDRINUSE));
    CHECK(rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1) == 0);
    CHECK(refused(rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 4), EINVAL));
    CHECK(refused(rdma_set_option(other, RDMA_OPTION_ID, 99, &tos, 1), ENOSYS));
    CHECK(refused(rdma_ack_cm_event(NULL), EINVAL));
    CHECK(in_child(late_child, own, id));
    CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(other) == 0);
    rdma_destroy_event_channel(channel);
}

int main(int count, char **words) {
    (void)count;
    struct rdma_cm_id *unbound;
    CHECK(rdma_create_id(NULL, &unbound, NULL, RDMA_PS_TCP) == 0);
    CHECK(in_child(early_child, words[1], unbound));
    CHECK(rdma_destroy_id(unbound) == 0);
    with_itself(words[1]);
    attributes_before_connecting(words[1]);
    options(words[1]);
    errors(words[1]);
    time_limits(words[1]);
    printf("%d checks failed\n", failed);
    return failed != 0;
}
