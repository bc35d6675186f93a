/* Queue pairs: creation, limits, posting by state, full queues, flushing, queries. */
#include "semantics.h"

static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
static const char *const type_names[] = { "RC", "UC", "UD" };

static void create(const void *row)
{
    struct ibv_pd *pd = new_pd();
    struct ibv_cq *cq = new_cq(64);
    int own;
    struct ibv_qp_init_attr init = { .qp_context = &own, .send_cq = cq, .recv_cq = cq,
        .qp_type = *(const enum ibv_qp_type *)row, .cap = { 10, 20, 2, 3, 32 } };
    struct ibv_qp *qp = KEEP(ibv_create_qp(pd, &init), ibv_destroy_qp);
    EXPECT(qp->pd == pd && qp->context == context && qp->send_cq == cq && qp->recv_cq == cq);
    EXPECT(qp->qp_context == &own && qp->qp_type == init.qp_type && qp->state == IBV_QPS_RESET);
    EXPECT(qp->qp_num > 1 && qp->qp_num < 1 << 24);
    EXPECT(init.cap.max_send_wr >= 10 && init.cap.max_recv_wr >= 20 && init.cap.max_send_sge >= 2);
    EXPECT(init.cap.max_recv_sge >= 3 && init.cap.max_inline_data >= 32);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr made;
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &made), 0);
    EXPECT(attr.qp_state == IBV_QPS_RESET && made.qp_type == init.qp_type && made.send_cq == cq);
    EXPECT(made.cap.max_send_wr >= 10 && made.cap.max_recv_wr >= 20 && made.qp_context == &own);
}

static const struct limit { const char *name; size_t offset; int more; } limits[] = {
    { "max_send_wr", offsetof(struct ibv_qp_cap, max_send_wr),
      offsetof(struct ibv_device_attr, max_qp_wr) },
    { "max_recv_wr", offsetof(struct ibv_qp_cap, max_recv_wr),
      offsetof(struct ibv_device_attr, max_qp_wr) },
    { "max_send_sge", offsetof(struct ibv_qp_cap, max_send_sge),
      offsetof(struct ibv_device_attr, max_sge) },
    { "max_recv_sge", offsetof(struct ibv_qp_cap, max_recv_sge),
      offsetof(struct ibv_device_attr, max_sge) },
};

static void above(const void *row)
{
    const struct limit *limit = row;
    struct ibv_cq *cq = new_cq(4);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = { 1, 1, 1, 1, 0 } };
    int most = *(int *)((char *)&device + limit->more);
    *(uint32_t *)((char *)&init.cap + limit->offset) = most + 1;
    EXPECT_NULL(ibv_create_qp(new_pd(), &init), EINVAL);
}

static void inline_above(const void *row)
{
    (void)row;
    struct ibv_cq *cq = new_cq(4);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = { 1, 1, 1, 1, 1 << 20 } };
    EXPECT_NULL(ibv_create_qp(new_pd(), &init), EINVAL);
}

static void unknown_type(const void *row)
{
    (void)row;
    struct ibv_cq *cq = new_cq(4);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = 77, .cap = { 1, 1, 1, 1, 0 }
    };
    errno = 0;
    EXPECT(!ibv_create_qp(new_pd(), &init));
    EXPECT(errno == EINVAL || errno == EOPNOTSUPP);
}

/* ---- Posting, by state. */

enum { RESET, INIT, RTR, RTS, ERR };
static const char *const state_names[] = { "RESET", "INIT", "RTR", "RTS", "ERR" };
static const struct posting { int type, state; bool send, ok; } postings[] = {
#define POSTINGS(type)                                                                            \
    { type, RESET, true, false }, { type, INIT, true, false }, { type, RTR, true, false },        \
    { type, RTS, true, true }, { type, ERR, true, true }, { type, RESET, false, false },          \
    { type, INIT, false, true }, { type, RTR, false, true }, { type, RTS, false, true },          \
    { type, ERR, false, true }
    POSTINGS(0), POSTINGS(1), POSTINGS(2)
};

static struct ibv_qp *qp_in(int state, const struct options *options)
{
    struct ibv_qp *qp = new_qp(options);
    /* By INIT: Linux does not let a QP go from RESET to ERR. */
    if (state != RESET) EXPECT_EQ(to_init(qp, options), 0);
    if (state == RTR || state == RTS) EXPECT_EQ(to_rtr(qp, qp->qp_num, options), 0);
    if (state == RTS) EXPECT_EQ(to_rts(qp, options), 0);
    if (state == ERR) EXPECT_EQ(to_state(qp, IBV_QPS_ERR), 0);
    return qp;
}

static void posting(const void *row)
{
    const struct posting *posting = row;
    struct options options = { .type = types[posting->type], .cq = new_cq(64), .pd = new_pd() };
    struct ibv_qp *qp = qp_in(posting->state, &options);
    struct ibv_send_wr send = { .wr_id = 3, .opcode = IBV_WR_SEND,
        .wr.ud = { new_ah(options.pd), qp->qp_num, QKEY } }, *bad_send = NULL;
    if (options.type != IBV_QPT_UD) memset(&send.wr, 0, sizeof send.wr);
    struct ibv_recv_wr recv = { .wr_id = 3 }, *bad_recv = NULL;
    int code =
        posting->send ? ibv_post_send(qp, &send, &bad_send) : ibv_post_recv(qp, &recv, &bad_recv);
    EXPECT_EQ(code, posting->ok ? 0 : EINVAL);
    if (!posting->ok) EXPECT(bad_send == &send || bad_recv == &recv);
    if (code == 0 && posting->state == ERR) {
        struct ibv_wc wc = next_wc(options.cq);
        EXPECT_STATUS(wc.status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(wc.wr_id, 3);
        EXPECT_EQ(wc.qp_num, qp->qp_num);
    }
}

/* ---- Full queues and lists. */

static void send_full(const void *row)
{
    (void)row;
    struct options options = { .cap = { .max_send_wr = 4 }, .rnr_retry = 7, .cq = new_cq(1000) };
    struct ibv_qp *qp = qp_in(RTS, &options);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_CAP, &init), 0);
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad = NULL;
    /* Without a receive at the target, the first request stays outstanding. */
    int posted = 0, code = 0;
    while (posted < 1000 && (code = ibv_post_send(qp, &wr, &bad)) == 0) posted++;
    EXPECT_EQ(code, ENOMEM);
    EXPECT(bad == &wr && posted >= 4 && posted >= (int)init.cap.max_send_wr);
}

static void recv_full(const void *row)
{
    (void)row;
    struct options options = { .cap = { .max_recv_wr = 4 } };
    struct ibv_qp *qp = qp_in(INIT, &options);
    struct ibv_recv_wr wr = { 0 }, *bad = NULL;
    int posted = 0, code = 0;
    while (posted < 1000 && (code = ibv_post_recv(qp, &wr, &bad)) == 0) posted++;
    EXPECT_EQ(code, ENOMEM);
    EXPECT(bad == &wr && posted >= 4);
}

static const struct list {
    const char *name;
    enum ibv_wr_opcode opcode;
    int sges;
    int flags;
} lists[] = {
    { "too many SGEs", IBV_WR_SEND, 100, 0 },
    { "an unknown opcode", 99, 0, 0 },
    { "an opcode that RC does not have", IBV_WR_TSO, 0, 0 },
    { "inline data that is too long", IBV_WR_SEND, 1, IBV_SEND_INLINE },
};

/* The second of three requests is wrong: the first is executed, the others are not. */
static void send_list(const void *row)
{
    const struct list *list = row;
    struct pair *pair = new_pair(NULL);
    struct ibv_sge sges[100] = { sge_of(pair->a.mr, pair->a.bytes, 60000) };
    struct ibv_send_wr third = { .wr_id = 3, .opcode = IBV_WR_RDMA_WRITE };
    struct ibv_send_wr second = { .wr_id = 2,
                                  .opcode = list->opcode,
                                  .next = &third,
                                  .sg_list = sges,
                                  .num_sge = list->sges,
                                  .send_flags = list->flags };
    struct ibv_send_wr first = { .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .next = &second },
                       *bad = NULL;
    int code = ibv_post_send(pair->a.qp, &first, &bad);
    EXPECT(code == EINVAL || code == ENOMEM);
    EXPECT(bad == &second);
    EXPECT_EQ(next_wc(pair->a.cq).wr_id, 1);
    EXPECT_NO_WC(pair->a.cq);
}

static void recv_list(const void *row)
{
    (void)row;
    struct options options = { .cq = new_cq(64) };
    struct ibv_qp *qp = qp_in(INIT, &options);
    struct ibv_sge sges[100] = { { 0 } };
    struct ibv_recv_wr third = { .wr_id = 3 }, *bad = NULL;
    struct ibv_recv_wr second = { .wr_id = 2, .next = &third, .sg_list = sges, .num_sge = 100 };
    struct ibv_recv_wr first = { .wr_id = 1, .next = &second };
    EXPECT_EQ(ibv_post_recv(qp, &first, &bad), EINVAL);
    EXPECT(bad == &second);
    EXPECT_EQ(to_state(qp, IBV_QPS_ERR), 0);
    EXPECT_EQ(next_wc(options.cq).wr_id, 1);
    EXPECT_NO_WC(options.cq);
}

/* ---- Flushing. */

static void flush_order(const void *row)
{
    (void)row;
    struct ibv_cq *send = new_cq(64), *recv = new_cq(64);
    struct ibv_qp_init_attr init = { .send_cq = send, .recv_cq = recv, .qp_type = IBV_QPT_RC,
        .cap = { 8, 8, 1, 1, 0 } };
    struct ibv_qp *qp = KEEP(ibv_create_qp(new_pd(), &init), ibv_destroy_qp);
    connect_qp(qp, 0x123456, &(struct options){ .timeout = 20 });
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
    struct ibv_recv_wr recv_wr = { 0 }, *bad_recv;
    for (int i = 0; i < 5; i++) {
        wr.wr_id = recv_wr.wr_id = i; /* unsignaled: errors complete nevertheless */
        EXPECT_EQ(ibv_post_send(qp, &wr, &bad), 0);
        EXPECT_EQ(ibv_post_recv(qp, &recv_wr, &bad_recv), 0);
    }
    EXPECT_EQ(to_state(qp, IBV_QPS_ERR), 0);
    for (int i = 0; i < 10; i++) {
        struct ibv_wc wc = next_wc(i < 5 ? send : recv);
        EXPECT_STATUS(wc.status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(wc.wr_id, i % 5);
        EXPECT_EQ(wc.qp_num, qp->qp_num);
    }
}

static void destroy_busy(const void *row)
{
    (void)row;
    struct options options = { .cq = new_cq(64), .pd = new_pd(), .timeout = 20 };
    struct ibv_qp *qp = new_qp(&options);
    connect_qp(qp, 0x123456, &options);
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
    struct ibv_recv_wr recv = { 0 }, *bad_recv;
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(ibv_post_send(qp, &wr, &bad), 0);
        EXPECT_EQ(ibv_post_recv(qp, &recv, &bad_recv), 0);
    }
    EXPECT_EQ(drop(qp), 0);
    EXPECT_NO_WC(options.cq);
    EXPECT_EQ(drop(options.cq), 0);
}

static void reset_discards(const void *row)
{
    (void)row;
    struct options options = { .cq = new_cq(64), .pd = new_pd() };
    struct ibv_qp *qp = qp_in(RTS, &options);
    struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv;
    for (int i = 0; i < 5; i++) EXPECT_EQ(ibv_post_recv(qp, &recv, &bad_recv), 0);
    EXPECT_EQ(to_state(qp, IBV_QPS_RESET), 0);
    EXPECT_NO_WC(options.cq);
    connect_qp(qp, qp->qp_num, &options);
    recv.wr_id = 2;
    EXPECT_EQ(ibv_post_recv(qp, &recv, &bad_recv), 0);
    struct ibv_send_wr wr = { .wr_id = 3, .opcode = IBV_WR_SEND }, *bad;
    EXPECT_EQ(ibv_post_send(qp, &wr, &bad), 0);
    int seen = next_wc(options.cq).wr_id + next_wc(options.cq).wr_id;
    EXPECT_EQ(seen, 5);
}

/* ---- Queries. */

static void query(const void *row)
{
    (void)row;
    struct options options = { .timeout = 17, .retry_cnt = 5, .rnr_retry = 3, .min_rnr_timer = 9,
        .mtu = IBV_MTU_512, .max_rd_atomic = 3, .access = RW };
    struct ibv_qp *qp = new_qp(&options);
    connect_qp(qp, 0x234567, &options);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    EXPECT_EQ(ibv_query_qp(qp, &attr, ~0u >> 8, &init), 0);
    EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
    EXPECT_EQ(attr.timeout, 17);
    EXPECT_EQ(attr.retry_cnt, 5);
    EXPECT_EQ(attr.rnr_retry, 3);
    EXPECT_EQ(attr.min_rnr_timer, 9);
    EXPECT_EQ(attr.path_mtu, IBV_MTU_512);
    EXPECT(attr.max_rd_atomic >= 3 && attr.max_dest_rd_atomic >= 3); /* may be rounded up */
    EXPECT_EQ(attr.qp_access_flags & ALL, RW);
    EXPECT_EQ(attr.dest_qp_num, 0x234567);
    EXPECT_EQ(attr.port_num, port_num);
    EXPECT_EQ(attr.rq_psn, PSN);
    EXPECT_EQ(attr.sq_psn, PSN);
    EXPECT_EQ(attr.ah_attr.is_global, 1);
    EXPECT(memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof gid) == 0);
    EXPECT_EQ(attr.ah_attr.grh.sgid_index, gid_index);
    EXPECT_EQ(init.sq_sig_all, 1);
}

static void query_ud(const void *row)
{
    (void)row;
    struct options options = { .type = IBV_QPT_UD };
    struct ibv_qp *qp = qp_in(RTS, &options);
    struct ibv_qp_attr attr = { .qkey = 0x777 };
    struct ibv_qp_init_attr init;
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_QKEY, &init), 0);
    EXPECT_EQ(attr.qkey, QKEY);
    attr.qkey = 0x777;
    EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_QKEY), 0);
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_QKEY, &init), 0);
    EXPECT_EQ(attr.qkey, 0x777);
}

static void numbers(const void *row)
{
    (void)row;
    uint32_t seen[20];
    for (int i = 0; i < 20; i++) {
        seen[i] = new_qp(&(struct options){ 0 })->qp_num;
        for (int j = 0; j < i; j++) EXPECT(seen[i] != seen[j]);
    }
}

void qp_cases(void)
{
    for (unsigned i = 0; i < ROWS(types); i++)
        test("ibv_create_qp(3)", create, &types[i], "qp/create: %s, fields", type_names[i]);
    for (unsigned i = 0; i < ROWS(limits); i++)
        test("ibv_create_qp(3)", above, &limits[i], "qp/create: %s above the device's",
             limits[i].name);
    test("ibv_create_qp(3)", inline_above, NULL, "qp/create: 1 MiB of inline data");
    test("ibv_create_qp(3)", unknown_type, NULL, "qp/create: an unknown type");
    test("ibv_create_qp(3)", numbers, NULL, "qp/create: unique numbers");
    for (unsigned i = 0; i < ROWS(postings); i++)
        test("IBTA 10.3.1, 11.4.1", posting, &postings[i], "qp/post: %s, %s in %s",
             type_names[postings[i].type], postings[i].send ? "send" : "receive",
             state_names[postings[i].state]);
    test("ibv_post_send(3)", send_full, NULL, "qp/full: send queue");
    test("ibv_post_recv(3)", recv_full, NULL, "qp/full: receive queue");
    for (unsigned i = 0; i < ROWS(lists); i++)
        test("ibv_post_send(3)", send_list, &lists[i], "qp/list: %s", lists[i].name);
    test("ibv_post_recv(3)", recv_list, NULL, "qp/list: receives, too many SGEs");
    test("ibv_modify_qp(3), C10-42", flush_order, NULL, "qp/flush: all, in order");
    test("ibv_destroy_qp(3)", destroy_busy, NULL, "qp/destroy: with requests");
    test("ibv_modify_qp(3), IBTA 10.3.1", reset_discards, NULL, "qp/reset: discards its requests");
    test("ibv_query_qp(3)", query, NULL, "qp/query: RC, the attributes set");
    test("ibv_query_qp(3)", query_ud, NULL, "qp/query: UD, Q_Key");
}
