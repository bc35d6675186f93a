/* Objects of the cases, pairs of QPs, requests and completions. */
#include "semantics.h"

struct ibv_pd *new_pd(void)
{
    return KEEP(ibv_alloc_pd(context), ibv_dealloc_pd);
}

struct ibv_cq *new_cq(int depth)
{
    return KEEP(ibv_create_cq(context, depth, NULL, NULL, 0), ibv_destroy_cq);
}

struct ibv_mr *new_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return KEEP((ibv_reg_mr)(pd, addr, length, access), ibv_dereg_mr);
}

struct pages { char *bytes; size_t length; };

static int unmap(struct pages *pages)
{
    int code = munmap(pages->bytes, pages->length);
    free(pages);
    return code;
}

char *new_bytes(size_t length)
{
    struct pages *pages = malloc(sizeof *pages);
    pages->length = length;
    pages->bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages->bytes == MAP_FAILED) return perror("mmap"), exit(2), NULL;
    KEEP(pages, unmap);
    return pages->bytes;
}

/* ---- QPs. */

static struct ibv_pd *pd_of(const struct options *options)
{
    return options->pd ? options->pd : new_pd();
}

struct ibv_qp *new_qp(const struct options *options)
{
    struct ibv_cq *cq = options->cq ? options->cq : new_cq(64);
    struct ibv_qp_cap cap = options->cap;
    if (!cap.max_send_wr) cap.max_send_wr = 16;
    if (!cap.max_recv_wr && !options->srq) cap.max_recv_wr = 16;
    if (!cap.max_send_sge) cap.max_send_sge = 4;
    if (!cap.max_recv_sge) cap.max_recv_sge = 4;
    enum ibv_qp_type type = options->type ? options->type : IBV_QPT_RC;
    if (options->ops) {
        struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .srq = options->srq,
            .cap = cap, .qp_type = type, .sq_sig_all = !options->unsignaled, .pd = pd_of(options),
            .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            .send_ops_flags = options->ops };
        return KEEP(ibv_create_qp_ex(context, &init), ibv_destroy_qp);
    }
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = options->srq,
        .cap = cap, .qp_type = type, .sq_sig_all = !options->unsignaled };
    return KEEP(ibv_create_qp(pd_of(options), &init), ibv_destroy_qp);
}

/* The option's value: its default if it is 0, and 0 if it is 255. */
static uint8_t value(uint8_t option, uint8_t otherwise)
{
    return option == 255 ? 0 : option ? option : otherwise;
}

int to_init(struct ibv_qp *qp, const struct options *options)
{
    int access = options->access == -1 ? 0 : options->access ? options->access : RW | RR | RA;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = port_num, .qkey = QKEY,
        .qp_access_flags = access };
    if (qp->qp_type == IBV_QPT_UC) attr.qp_access_flags &= ~(RR | RA);
    int last = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | last);
}

int to_rtr(struct ibv_qp *qp, uint32_t dest, const struct options *options)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .dest_qp_num = dest, .rq_psn = PSN,
        .path_mtu = options->mtu ? options->mtu : IBV_MTU_1024,
        .max_dest_rd_atomic = value(options->max_rd_atomic, 4),
        .min_rnr_timer = value(options->min_rnr_timer, 1),
        .ah_attr = { .is_global = 1, .port_num = port_num,
            .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 1 } } };
    int mask = IBV_QP_STATE;
    if (qp->qp_type != IBV_QPT_UD)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_RECV)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return ibv_modify_qp(qp, &attr, mask);
}

int to_rts(struct ibv_qp *qp, const struct options *options)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .sq_psn = PSN,
        .timeout = value(options->timeout, 14), .retry_cnt = value(options->retry_cnt, 7),
        .rnr_retry = value(options->rnr_retry, 7),
        .max_rd_atomic = value(options->max_rd_atomic, 4) };
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_SEND)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    if (qp->qp_type == IBV_QPT_XRC_RECV) mask |= IBV_QP_TIMEOUT;
    return ibv_modify_qp(qp, &attr, mask);
}

int to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = { .qp_state = state };
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

void connect_qp(struct ibv_qp *qp, uint32_t dest, const struct options *options)
{
    NEED((errno = to_init(qp, options)) == 0);
    NEED((errno = to_rtr(qp, dest, options)) == 0);
    NEED((errno = to_rts(qp, options)) == 0);
}

enum ibv_qp_state state_of(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    NEED((errno = ibv_query_qp(qp, &attr, IBV_QP_STATE, &init)) == 0);
    return attr.qp_state;
}

void expect_state(const char *file, int line, const char *what, struct ibv_qp *qp,
                  enum ibv_qp_state state)
{
    enum ibv_qp_state now = state_of(qp);
    for (int i = 0; i < 5000 && now != state; i++, now = state_of(qp)) usleep(1000);
    if (now != state) fail(file, line, "%s is in state %d, not %d", what, now, state);
}

struct ibv_ah *new_ah(struct ibv_pd *pd)
{
    struct ibv_ah_attr attr = { .is_global = 1, .port_num = port_num,
        .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 1 } };
    return KEEP(ibv_create_ah(pd, &attr), ibv_destroy_ah);
}

/* ---- Pairs. */

static int free_pair(void *pair)
{
    free(pair);
    return 0;
}

static void new_end(struct end *end, const struct options *options)
{
    struct options own = *options;
    end->cq = own.cq ? own.cq : new_cq(64);
    own.cq = end->cq;
    end->bytes = new_bytes(SIZE);
    end->mr = new_mr(own.pd, end->bytes, SIZE, ALL);
    end->qp = new_qp(&own);
}

struct pair *new_pair(const struct options *options)
{
    struct pair *pair = KEEP(calloc(1, sizeof *pair), free_pair);
    if (options) pair->options = *options;
    pair->pd = pair->options.pd = pd_of(&pair->options);
    struct options a = pair->options;
    a.srq = NULL;
    new_end(&pair->a, &a);
    new_end(&pair->b, &pair->options);
    connect_qp(pair->b.qp, pair->a.qp->qp_num, &pair->options);
    connect_qp(pair->a.qp, pair->b.qp->qp_num, &pair->options);
    return pair;
}

/* ---- Requests and completions. */

struct ibv_sge sge_of(struct ibv_mr *mr, const void *addr, uint32_t length)
{
    return (struct ibv_sge){ .addr = (uintptr_t)addr, .length = length, .lkey = mr->lkey };
}

int post_recv(struct end *end, uint64_t wr_id, size_t offset, uint32_t length)
{
    struct ibv_sge sge = sge_of(end->mr, end->bytes + offset, length);
    struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
    return ibv_post_recv(end->qp, &wr, &bad);
}

int post(struct end *end, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;
    wr->send_flags |= IBV_SEND_SIGNALED;
    return ibv_post_send(end->qp, wr, &bad);
}

int post_op(struct pair *pair, enum ibv_wr_opcode opcode, uint32_t length)
{
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, length);
    struct ibv_send_wr wr = { .wr_id = 7, .opcode = opcode, .sg_list = &sge, .num_sge = 1,
        .imm_data = htobe32(0x12345678) };
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = (uintptr_t)pair->b.bytes;
        wr.wr.atomic.rkey = pair->b.mr->rkey;
        wr.wr.atomic.compare_add = 1;
        wr.wr.atomic.swap = 2;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)pair->b.bytes;
        wr.wr.rdma.rkey = pair->b.mr->rkey;
    }
    return post(&pair->a, &wr);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Polls for up to `seconds`. On a machine with one CPU the device may need that CPU. */
static bool poll_for(struct ibv_cq *cq, double seconds, struct ibv_wc *wc)
{
    double begin = now();
    for (unsigned i = 0; i == 0 || now() - begin < seconds; i++) {
        int count = ibv_poll_cq(cq, 1, wc);
        if (count != 0) return count > 0;
        if (i > 200) usleep(100);
    }
    return false;
}

struct ibv_wc next_wc_at(const char *file, int line, struct ibv_cq *cq)
{
    struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
    if (!poll_for(cq, 20, &wc)) {
        fail(file, line, "no completion within 20 s");
        give_up();
    }
    return wc;
}

void expect_no_wc(const char *file, int line, struct ibv_cq *cq)
{
    struct ibv_wc wc;
    if (poll_for(cq, 0.1, &wc))
        fail(file, line, "a completion of request %llu: %s", (unsigned long long)wc.wr_id,
             ibv_wc_status_str(wc.status));
}

void fill(char *bytes, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++) bytes[i] = (seed += 0x9e3779b9, seed >> 11 ^ i);
}

bool is_ready(int fd, int ms)
{
    struct pollfd ready = { .fd = fd, .events = POLLIN };
    return poll(&ready, 1, ms) == 1;
}

struct ibv_async_event next_event_at(const char *file, int line, enum ibv_event_type type)
{
    struct ibv_async_event event;
    for (int i = 0; i < 100; i++) {
        if (!is_ready(context->async_fd, 100) || ibv_get_async_event(context, &event)) continue;
        if (event.event_type == type) return event;
        ibv_ack_async_event(&event);
    }
    fail(file, line, "no event \"%s\" within 10 s", ibv_event_type_str(type));
    give_up();
}

void drain_events(void)
{
    struct ibv_async_event event;
    while (ibv_get_async_event(context, &event) == 0) ibv_ack_async_event(&event);
}
