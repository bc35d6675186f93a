/* Shared receive queues. */
#include "semantics.h"

static struct ibv_srq *new_srq(struct ibv_pd *pd, uint32_t max_wr, uint32_t max_sge)
{
    struct ibv_srq_init_attr init = { .attr = { .max_wr = max_wr, .max_sge = max_sge } };
    struct ibv_srq *srq = KEEP(ibv_create_srq(pd, &init), ibv_destroy_srq);
    EXPECT(init.attr.max_wr >= max_wr && init.attr.max_sge >= max_sge);
    return srq;
}

static int post_srq(struct ibv_srq *srq, struct end *end, uint64_t wr_id, uint32_t length)
{
    struct ibv_sge sge = sge_of(end->mr, end->bytes, length);
    struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
    return ibv_post_srq_recv(srq, &wr, &bad);
}

/* A pair whose target has an SRQ. */
static struct pair *new_srq_pair(uint32_t max_wr)
{
    struct ibv_pd *pd = new_pd();
    return new_pair(&(struct options){ .pd = pd, .srq = new_srq(pd, max_wr, 2) });
}

static const struct create { const char *name; bool wr, sge; } creates[] = {
    { "max_wr above max_srq_wr", true, false }, { "max_sge above max_srq_sge", false, true },
};

static void refused(const void *row)
{
    const struct create *create = row;
    struct ibv_srq_init_attr init = { .attr = { create->wr ? device.max_srq_wr + 1 : 1,
        create->sge ? device.max_srq_sge + 1 : 1, 0 } };
    EXPECT_NULL(ibv_create_srq(new_pd(), &init), EINVAL);
}

static void query(const void *row)
{
    (void)row;
    int own;
    struct ibv_srq_init_attr init = { .srq_context = &own, .attr = { .max_wr = 10, .max_sge = 2 } };
    struct ibv_pd *pd = new_pd();
    struct ibv_srq *srq = KEEP(ibv_create_srq(pd, &init), ibv_destroy_srq);
    struct ibv_srq_attr attr;
    EXPECT_EQ(ibv_query_srq(srq, &attr), 0);
    EXPECT(attr.max_wr >= 10 && attr.max_sge >= 2 && attr.srq_limit == 0);
    EXPECT(srq->pd == pd && srq->context == context && srq->srq_context == &own);
}

static void busy(const void *row)
{
    (void)row;
    struct pair *pair = new_srq_pair(4);
    EXPECT_EQ(ibv_destroy_srq(pair->b.qp->srq), EBUSY);
}

static void receives(const void *row)
{
    (void)row;
    struct pair *pair = new_srq_pair(8);
    for (int i = 0; i < 4; i++) EXPECT_EQ(post_srq(pair->b.qp->srq, &pair->b, i, 100), 0);
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(post_op(pair, IBV_WR_SEND, 10 + i), 0);
        struct ibv_wc wc = next_wc(pair->b.cq);
        EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc.wr_id, i);
        EXPECT_EQ(wc.byte_len, 10 + i);
        EXPECT_EQ(wc.qp_num, pair->b.qp->qp_num);
    }
}

static void shared(const void *row)
{
    (void)row;
    struct pair *one = new_srq_pair(8);
    struct pair *two = new_pair(&(struct options){ .pd = one->pd, .srq = one->b.qp->srq });
    for (int i = 0; i < 2; i++) EXPECT_EQ(post_srq(one->b.qp->srq, &one->b, i, 100), 0);
    EXPECT_EQ(post_op(one, IBV_WR_SEND, 1), 0);
    EXPECT_EQ(next_wc(one->b.cq).wr_id, 0);
    EXPECT_EQ(post_op(two, IBV_WR_SEND, 2), 0);
    struct ibv_wc wc = next_wc(two->b.cq);
    EXPECT_EQ(wc.wr_id, 1);
    EXPECT_EQ(wc.qp_num, two->b.qp->qp_num);
}

static void empty(const void *row)
{
    (void)row;
    struct ibv_pd *pd = new_pd();
    struct pair *pair =
        new_pair(&(struct options){ .pd = pd, .srq = new_srq(pd, 4, 1), .rnr_retry = 255 });
    EXPECT_EQ(post_op(pair, IBV_WR_SEND, 8), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_RNR_RETRY_EXC_ERR);
    EXPECT_STATE(pair->a.qp, IBV_QPS_ERR);
    EXPECT_STATE(pair->b.qp, IBV_QPS_RTS);
}

static void full(const void *row)
{
    (void)row;
    struct pair *pair = new_srq_pair(4);
    struct ibv_srq_attr attr;
    EXPECT_EQ(ibv_query_srq(pair->b.qp->srq, &attr), 0);
    for (unsigned i = 0; i < attr.max_wr; i++)
        EXPECT_EQ(post_srq(pair->b.qp->srq, &pair->b, i, 8), 0);
    EXPECT_EQ(post_srq(pair->b.qp->srq, &pair->b, 0, 8), ENOMEM);
}

static void too_many_sges(const void *row)
{
    (void)row;
    struct pair *pair = new_srq_pair(4);
    struct ibv_srq_attr attr;
    EXPECT_EQ(ibv_query_srq(pair->b.qp->srq, &attr), 0);
    struct ibv_sge sges[64] = { { 0 } };
    struct ibv_recv_wr second = { .sg_list = sges, .num_sge = attr.max_sge + 1 };
    struct ibv_recv_wr first = { .next = &second }, *bad = NULL;
    EXPECT_EQ(ibv_post_srq_recv(pair->b.qp->srq, &first, &bad), EINVAL);
    EXPECT(bad == &second);
}

static void post_to_qp(const void *row)
{
    (void)row;
    struct pair *pair = new_srq_pair(4);
    EXPECT_EQ(post_recv(&pair->b, 1, 0, 8), EINVAL);
}

static void limit(const void *row)
{
    (void)row;
    struct pair *pair = new_srq_pair(8);
    struct ibv_srq *srq = pair->b.qp->srq;
    for (int i = 0; i < 4; i++) EXPECT_EQ(post_srq(srq, &pair->b, i, 100), 0);
    struct ibv_srq_attr attr = { .srq_limit = 3 };
    EXPECT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
    EXPECT_EQ(ibv_query_srq(srq, &attr), 0);
    EXPECT_EQ(attr.srq_limit, 3);
    EXPECT_EQ(post_op(pair, IBV_WR_SEND, 8), 0);
    EXPECT_STATUS(next_wc(pair->b.cq).status, IBV_WC_SUCCESS);
    EXPECT(!is_ready(context->async_fd, 100));
    EXPECT_EQ(post_op(pair, IBV_WR_SEND, 8), 0);
    EXPECT_STATUS(next_wc(pair->b.cq).status, IBV_WC_SUCCESS);
    struct ibv_async_event event = next_event(IBV_EVENT_SRQ_LIMIT_REACHED);
    EXPECT(event.element.srq == srq);
    ibv_ack_async_event(&event);
    /* One event per limit: the limit has to be set again. */
    EXPECT_EQ(post_op(pair, IBV_WR_SEND, 8), 0);
    EXPECT_STATUS(next_wc(pair->b.cq).status, IBV_WC_SUCCESS);
    EXPECT(!is_ready(context->async_fd, 100));
    EXPECT_EQ(ibv_query_srq(srq, &attr), 0);
    EXPECT_EQ(attr.srq_limit, 0);
}

static const struct modify { const char *name; uint32_t limit; int mask; } modifies[] = {
    { "a limit above max_wr", 1 << 20, IBV_SRQ_LIMIT }, { "an unknown attribute", 0, 1 << 5 },
};

static void modify(const void *row)
{
    const struct modify *modify = row;
    struct ibv_srq *srq = new_srq(new_pd(), 4, 1);
    struct ibv_srq_attr attr = { .srq_limit = modify->limit };
    EXPECT_EQ(ibv_modify_srq(srq, &attr, modify->mask), EINVAL);
}

/* IBV_DEVICE_SRQ_RESIZE says if the depth may change. */
static void resize(const void *row)
{
    (void)row;
    struct ibv_srq *srq = new_srq(new_pd(), 4, 1);
    struct ibv_srq_attr attr = { .max_wr = 100 };
    int code = ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR);
    if (!(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE)) return EXPECT_EQ(code, EINVAL);
    EXPECT_EQ(code, 0);
    EXPECT_EQ(ibv_query_srq(srq, &attr), 0);
    EXPECT(attr.max_wr >= 100);
}

static void not_flushed(const void *row)
{
    (void)row;
    struct pair *pair = new_srq_pair(4);
    struct pair *other = new_pair(&(struct options){ .pd = pair->pd, .srq = pair->b.qp->srq });
    EXPECT_EQ(post_srq(pair->b.qp->srq, &pair->b, 5, 100), 0);
    EXPECT_EQ(to_state(pair->b.qp, IBV_QPS_ERR), 0);
    EXPECT_NO_WC(pair->b.cq);
    EXPECT_EQ(post_op(other, IBV_WR_SEND, 8), 0);
    EXPECT_EQ(next_wc(other->b.cq).wr_id, 5);
}

static void last_wqe(const void *row)
{
    (void)row;
    struct pair *pair = new_srq_pair(4);
    EXPECT_EQ(to_state(pair->b.qp, IBV_QPS_ERR), 0);
    struct ibv_async_event event = next_event(IBV_EVENT_QP_LAST_WQE_REACHED);
    EXPECT(event.element.qp == pair->b.qp);
    ibv_ack_async_event(&event);
}

static void too_short(const void *row)
{
    (void)row;
    struct pair *pair = new_srq_pair(4);
    EXPECT_EQ(post_srq(pair->b.qp->srq, &pair->b, 5, 9), 0);
    EXPECT_EQ(post_op(pair, IBV_WR_SEND, 10), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_REM_INV_REQ_ERR);
    EXPECT_STATUS(next_wc(pair->b.cq).status, IBV_WC_LOC_LEN_ERR);
}

static void no_caps(const void *row)
{
    (void)row;
    struct ibv_pd *pd = new_pd();
    struct ibv_qp *qp = new_qp(&(struct options){ .pd = pd, .srq = new_srq(pd, 4, 1) });
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_CAP, &init), 0);
    EXPECT(init.srq == qp->srq && init.cap.max_recv_wr == 0);
}

void srq_cases(void)
{
    for (unsigned i = 0; i < ROWS(creates); i++)
        test("ibv_create_srq(3)", refused, &creates[i], "srq/create: %s", creates[i].name);
    test("ibv_query_srq(3)", query, NULL, "srq/query: attributes, fields");
    test("ibv_destroy_srq(3)", busy, NULL, "srq/busy: with a QP");
    test("ibv_post_srq_recv(3)", receives, NULL, "srq/recv: order");
    test("ibv_post_srq_recv(3)", shared, NULL, "srq/recv: two QPs");
    test("ibv_post_srq_recv(3), IBTA 9.7.5", empty, NULL, "srq/recv: none, RNR retries used up");
    test("ibv_post_srq_recv(3)", full, NULL, "srq/post: full");
    test("ibv_post_srq_recv(3)", too_many_sges, NULL, "srq/post: too many SGEs, second of a list");
    test("ibv_post_recv(3)", post_to_qp, NULL, "srq/post: to the QP");
    test("ibv_modify_srq(3), IBTA 11.6.3", limit, NULL, "srq/limit: one event");
    for (unsigned i = 0; i < ROWS(modifies); i++)
        test("ibv_modify_srq(3)", modify, &modifies[i], "srq/modify: %s", modifies[i].name);
    test("ibv_modify_srq(3)", resize, NULL, "srq/modify: max_wr");
    test("ibv_modify_qp(3), IBTA 10.2.9", not_flushed, NULL,
         "srq/error: receives stay for other QPs");
    test("ibv_get_async_event(3), o11-5.2.5", last_wqe, NULL, "srq/error: last WQE reached");
    test("IBTA 9.9.3", too_short, NULL, "srq/error: a receive that is too short");
    test("ibv_create_qp(3)", no_caps, NULL, "srq/qp: no receive queue of its own");
}
