/* The error numbers of verbs for wrong arguments and for objects that are in use: those of rdma-core and the
 * kernel. Runs alone.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;
#define CHECK(is_so) do { int ok = (is_so); if (!ok) { failures++; printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #is_so, errno); } } while (0)
#define FAILS(call, number) do { errno = 0; CHECK(!(call)); CHECK(errno == (number)); } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;

static void memory(void)
{
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FAILS(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    struct ibv_mr *empty = ibv_reg_mr(pd, page, 0, IBV_ACCESS_LOCAL_WRITE); /* As mlx5. */
    CHECK(empty && empty->length == 0 && ibv_dereg_mr(empty) == 0);
    FAILS(ibv_reg_mr(pd, (void *)8, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
    mprotect(page, 4096, PROT_READ);
    FAILS(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
    struct ibv_mr *mr = ibv_reg_mr(pd, page, 4096, 0);
    CHECK(mr && mr->length == 4096 && mr->addr == page && mr->pd == pd && mr->context == context);
    CHECK(ibv_dealloc_pd(pd) == EBUSY);
    uint32_t old = mr->lkey;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
    CHECK(mr->lkey == mr->rkey && mr->lkey == old); /* The memory has not changed, so the keys stay. */
    CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, page, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    errno = 0;
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)8, 16, 0) == IBV_REREG_MR_ERR_CMD && errno == EFAULT);
    CHECK(mr->lkey == old && mr->addr == page);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, page + 64, 64, 0) == 0);
    CHECK(mr->lkey != old && mr->addr == page + 64 && mr->length == 64);
    CHECK(ibv_dereg_mr(mr) == 0);
    munmap(page, 4096);
}

static void completion_queues(void)
{
    FAILS(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
    FAILS(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
    FAILS(ibv_create_cq(context, 16, NULL, NULL, context->num_comp_vectors), EINVAL);
    struct ibv_cq_init_attr_ex attr = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_FLOW_TAG };
    FAILS(ibv_create_cq_ex(context, &attr), EOPNOTSUPP);
    attr.wc_flags = IBV_WC_STANDARD_FLAGS;
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
    struct ibv_poll_cq_attr poll = { 0 };
    CHECK(cq && cq->cqe >= 16);
    CHECK(ibv_start_poll(cq, &poll) == ENOENT);
    poll.comp_mask = 1;
    CHECK(ibv_start_poll(cq, &poll) == EINVAL);
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

static struct ibv_qp *new_qp(struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = { .max_send_wr = 3, .max_recv_wr = 3, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 16 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp && qp->state == IBV_QPS_RESET && init.cap.max_send_wr >= 3);
    return qp;
}

static void to_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(ibv_modify_qp(qp, &attr, mask & ~IBV_QP_PORT) == EINVAL);
    attr.pkey_index = 1;
    CHECK(ibv_modify_qp(qp, &attr, mask) == EINVAL);
    attr.pkey_index = 0;
    CHECK(ibv_modify_qp(qp, &attr, mask | IBV_QP_RQ_PSN) == EINVAL);
    CHECK(qp->state == IBV_QPS_RESET);
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0 && qp->state == IBV_QPS_INIT);
}

static void queue_pairs(void)
{
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET };
    FAILS(ibv_create_qp(pd, &init), EOPNOTSUPP);
    init.qp_type = IBV_QPT_RC;
    /* As with other providers, a queue is deeper than requested; some programs post one more. */
    init.cap.max_send_wr = init.cap.max_recv_wr = 256;
    struct ibv_qp *larger = ibv_create_qp(pd, &init);
    CHECK(larger && init.cap.max_send_wr > 256 && init.cap.max_recv_wr > 256);
    to_init(larger);
    struct ibv_recv_wr empty = { 0 }, *refused;
    for (int i = 0; i < 257; i++) CHECK(ibv_post_recv(larger, &empty, &refused) == 0);
    CHECK(ibv_destroy_qp(larger) == 0);
    init.cap.max_send_wr = 1 << 24;
    FAILS(ibv_create_qp(pd, &init), EINVAL);
    struct ibv_qp *qp = new_qp(cq);
    CHECK(ibv_destroy_cq(cq) == EBUSY);
    CHECK(ibv_qp_to_qp_ex(qp) == NULL);
    struct ibv_recv_wr wrs[3] = { { .wr_id = 1, .next = &wrs[1] }, { .wr_id = 2, .next = &wrs[2], .num_sge = 2 }, { .wr_id = 3 } };
    struct ibv_sge sges[2] = { { 0 } };
    struct ibv_recv_wr *bad_recv = NULL;
    wrs[1].sg_list = sges;
    CHECK(ibv_post_recv(qp, wrs, &bad_recv) == EINVAL && bad_recv == &wrs[0]);
    to_init(qp);
    CHECK(ibv_post_recv(qp, wrs, &bad_recv) == EINVAL && bad_recv == &wrs[1]);
    struct ibv_send_wr send = { .wr_id = 4, .opcode = IBV_WR_SEND }, *bad = NULL;
    CHECK(ibv_post_send(qp, &send, &bad) == EINVAL && bad == &send);
    /* In ERR everything is flushed. */
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    CHECK(ibv_post_send(qp, &send, &bad) == 0);
    send.opcode = IBV_WR_TSO;
    CHECK(ibv_post_send(qp, &send, &bad) == EINVAL && bad == &send);
    struct ibv_wc wc[4];
    int count = 0;
    for (int i = 0; i < 1000 && count < 2; i++) {
        count += ibv_poll_cq(cq, 4 - count, wc + count);
        usleep(1000);
    }
    CHECK(count == 2);
    for (int i = 0; i < count; i++) CHECK(wc[i].status == IBV_WC_WR_FLUSH_ERR && (wc[i].wr_id == 1 || wc[i].wr_id == 4));
    struct ibv_qp_init_attr made;
    CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &made) == 0 && attr.qp_state == IBV_QPS_ERR && made.sq_sig_all == 1);
    CHECK(ibv_destroy_qp(qp) == 0);
    CHECK(ibv_destroy_cq(cq) == 0);
}

static void *destroy(void *cq)
{
    CHECK(ibv_destroy_cq(cq) == 0);
    return NULL;
}

static void channels(void)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    int own;
    struct ibv_cq *cq = ibv_create_cq(context, 16, &own, channel, 0), *reported;
    struct ibv_qp *qp = new_qp(cq);
    void *reported_context;
    CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
    fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
    errno = 0;
    CHECK(ibv_get_cq_event(channel, &reported, &reported_context) == -1 && errno == EAGAIN);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    to_init(qp);
    struct ibv_recv_wr recv = { .wr_id = 9 }, *bad;
    CHECK(ibv_post_recv(qp, &recv, &bad) == 0);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
    CHECK(poll(&ready, 1, 5000) == 1);
    CHECK(ibv_get_cq_event(channel, &reported, &reported_context) == 0 && reported == cq && reported_context == &own);
    CHECK(poll(&ready, 1, 0) == 0);
    CHECK(ibv_destroy_qp(qp) == 0);
    /* Destroying waits for the acknowledgement. */
    pthread_t thread;
    pthread_create(&thread, NULL, destroy, cq);
    usleep(100000);
    CHECK(pthread_tryjoin_np(thread, NULL) == EBUSY);
    ibv_ack_cq_events(cq, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(ibv_destroy_comp_channel(channel) == 0);
}

static void queries(void)
{
    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 2, &port) == EINVAL);
    CHECK(ibv_query_port(context, 1, &port) == 0);
    CHECK(port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET && port.pkey_tbl_len == 1);
    union ibv_gid gid, none = { { 0 } };
    errno = 0;
    CHECK(ibv_query_gid(context, 1, port.gid_tbl_len, &gid) == -1 && errno == EINVAL);
    CHECK(ibv_query_gid(context, 1, port.gid_tbl_len - 1, &gid) == 0 && !memcmp(&gid, &none, sizeof gid));
    struct ibv_gid_entry entry, table[64];
    CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
    CHECK(ibv_query_gid_ex(context, 1, port.gid_tbl_len - 1, &entry, 0) == ENODATA);
    CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 1) == EOPNOTSUPP);
    CHECK(ibv_query_gid_table(context, table, 64, 0) >= 2);
    CHECK(ibv_query_gid_table(context, table, 0, 0) == -EINVAL);
    __be16 pkey;
    CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
    CHECK(ibv_query_pkey(context, 1, 1, &pkey) == -1);
    CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0 && ibv_get_pkey_index(context, 1, 0x100) == -1);
    struct ibv_device_attr attr;
    CHECK(ibv_query_device(context, &attr) == 0 && attr.phys_port_cnt == 1 && attr.node_guid == ibv_get_device_guid(context->device));
    struct ibv_query_device_ex_input more = { .comp_mask = 1 };
    struct ibv_device_attr_ex extended;
    CHECK(ibv_query_device_ex(context, &more, &extended) == EINVAL);
    CHECK(ibv_query_device_ex(context, NULL, &extended) == 0 && !memcmp(&extended.orig_attr, &attr, sizeof attr));
    CHECK(ibv_rate_to_mbps(IBV_RATE_100_GBPS) == 103125 && mbps_to_ibv_rate(103125) == IBV_RATE_100_GBPS);
    CHECK(ibv_rate_to_mult(IBV_RATE_40_GBPS) == 16 && mult_to_ibv_rate(16) == IBV_RATE_40_GBPS);
}

/* The device nodes that UCX requires. */
static void nodes(void)
{
    const char *const paths[] = {"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"};
    for (unsigned n = 0; n < sizeof paths / sizeof *paths; n++) {
        struct stat node;
        CHECK(stat(paths[n], &node) == 0 && S_ISCHR(node.st_mode) && access(paths[n], R_OK | W_OK) == 0);
    }
}

static void events(void)
{
    struct ibv_async_event event;
    fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
    errno = 0;
    CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
    /* A completion queue that overflows: an event reports it, and destroying the queue waits for its acknowledgement. */
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 1, .max_recv_wr = cq->cqe + 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp != NULL);
    to_init(qp);
    struct ibv_recv_wr recv = { 0 }, *bad;
    for (int i = 0; i <= cq->cqe; i++) CHECK(ibv_post_recv(qp, &recv, &bad) == 0);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    struct pollfd ready = { .fd = context->async_fd, .events = POLLIN };
    CHECK(poll(&ready, 1, 5000) == 1);
    CHECK(ibv_get_async_event(context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq);
    ibv_ack_async_event(&event);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

/* NCCL looks functions up by version. */
static void versions(void)
{
    void *library = dlopen("libibverbs.so", RTLD_NOW);
    CHECK(library != NULL);
    CHECK(dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1") != NULL);
    CHECK(dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8") != NULL);
    CHECK(dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.12") != NULL);
    void *old = dlvsym(library, "ibv_get_device_list", "IBVERBS_1.0");
    CHECK(old != NULL && old != dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1"));
    CHECK(dlclose(library) == 0);
}

static void forks(void)
{
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        FAILS(ibv_alloc_pd(context), EIO);
        struct ibv_device_attr attr;
        CHECK(ibv_query_device(context, &attr) == 0);
        struct ibv_port_attr port;
        CHECK(ibv_query_port(context, 1, &port) == EIO);
        CHECK(ibv_dealloc_pd(pd) == EIO);
        CHECK(ibv_close_device(context) == 0);
        fflush(stdout);
        _exit(failures != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count == 1 && list[1] == NULL && !strcmp(ibv_get_device_name(list[0]), "feroce0"));
    context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    if (!context || !(pd = ibv_alloc_pd(context))) return perror("open"), 1;
    versions();
    queries();
    nodes();
    memory();
    completion_queues();
    queue_pairs();
    channels();
    events();
    forks();
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    printf("%d checks failed\n", failures);
    return failures != 0;
}
