/* Completion queues: depth, order, resizing, overflow, notification, events. */
#include "semantics.h"

static const struct size { const char *name; int cqe; bool ok; } sizes[] = {
    { "1", 1, true }, { "100", 100, true }, { "0", 0, false }, { "-1", -1, false },
    { "above max_cqe", 0x7fffffff, false },
};

static void size(const void *row)
{
    const struct size *size = row;
    if (!size->ok) {
        EXPECT_NULL(ibv_create_cq(context, size->cqe, NULL, NULL, 0), EINVAL);
        return;
    }
    int own;
    struct ibv_cq *cq = KEEP(ibv_create_cq(context, size->cqe, &own, NULL, 0), ibv_destroy_cq);
    EXPECT(cq->cqe >= size->cqe && cq->cq_context == &own && cq->context == context);
    struct ibv_wc wc[2];
    EXPECT_EQ(ibv_poll_cq(cq, 2, wc), 0);
}

static void vector(const void *row)
{
    (void)row;
    EXPECT_NULL(ibv_create_cq(context, 10, NULL, NULL, context->num_comp_vectors), EINVAL);
    EXPECT_NULL(ibv_create_cq(context, 10, NULL, NULL, -1), EINVAL);
    for (int i = 0; i < context->num_comp_vectors && i < 4; i++)
        KEEP(ibv_create_cq(context, 10, NULL, NULL, i), ibv_destroy_cq);
}

static void busy(const void *row)
{
    (void)row;
    struct ibv_cq *cq = new_cq(10);
    struct ibv_qp *qp = new_qp(&(struct options){ .cq = cq });
    EXPECT_EQ(ibv_destroy_cq(cq), EBUSY);
    EXPECT_EQ(drop(qp), 0);
    EXPECT_EQ(drop(cq), 0);
}

static void wait_for(struct ibv_cq *cq, struct pair *pair, int count)
{
    (void)cq;
    for (int i = 0; i < count; i++) {
        struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 8);
        struct ibv_send_wr wr = { .wr_id = i,
                                  .opcode = IBV_WR_RDMA_WRITE,
                                  .sg_list = &sge,
                                  .num_sge = 1,
                                  .wr.rdma = { (uintptr_t)pair->b.bytes + 8 * i,
                                               pair->b.mr->rkey } };
        EXPECT_EQ(post(&pair->a, &wr), 0);
    }
}

static void polls(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    wait_for(pair->a.cq, pair, 10);
    struct ibv_wc wc[16];
    EXPECT_EQ(ibv_poll_cq(pair->a.cq, 0, wc), 0);
    int got = 0;
    for (int i = 0; i < 100000 && got < 10; i++) {
        int count = ibv_poll_cq(pair->a.cq, 3, wc + got);
        EXPECT(count >= 0 && count <= 3);
        got += count;
        if (count == 0) usleep(100);
    }
    EXPECT_EQ(got, 10);
    for (int i = 0; i < got; i++) {
        EXPECT_EQ(wc[i].wr_id, i);
        EXPECT_EQ(wc[i].qp_num, pair->a.qp->qp_num);
    }
    EXPECT_EQ(ibv_poll_cq(pair->a.cq, 16, wc), 0);
}

static void two_queues(const void *row)
{
    (void)row;
    struct ibv_cq *send = new_cq(10), *recv = new_cq(10);
    struct ibv_qp_init_attr init = { .send_cq = send, .recv_cq = recv, .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1, .cap = { 4, 4, 1, 1, 0 } };
    struct ibv_pd *pd = new_pd();
    struct ibv_qp *qp = KEEP(ibv_create_qp(pd, &init), ibv_destroy_qp);
    connect_qp(qp, qp->qp_num, &(struct options){ 0 });
    struct ibv_recv_wr recv_wr = { .wr_id = 1 }, *bad_recv;
    struct ibv_send_wr wr = { .wr_id = 2, .opcode = IBV_WR_SEND }, *bad;
    EXPECT_EQ(ibv_post_recv(qp, &recv_wr, &bad_recv), 0);
    EXPECT_EQ(ibv_post_send(qp, &wr, &bad), 0);
    EXPECT_EQ(next_wc(send).wr_id, 2);
    EXPECT_EQ(next_wc(recv).wr_id, 1);
}

/* ---- Resizing. */

static void resize_keeps(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    wait_for(pair->a.cq, pair, 8);
    EXPECT_EQ(next_wc(pair->a.cq).wr_id, 0);
    NEED((errno = ibv_resize_cq(pair->a.cq, 500)) == 0);
    EXPECT(pair->a.cq->cqe >= 500);
    for (int i = 1; i < 8; i++) EXPECT_EQ(next_wc(pair->a.cq).wr_id, i);
    EXPECT_EQ(ibv_resize_cq(pair->a.cq, 16), 0);
    EXPECT(pair->a.cq->cqe >= 16);
    wait_for(pair->a.cq, pair, 8);
    for (int i = 0; i < 8; i++) EXPECT_EQ(next_wc(pair->a.cq).wr_id, i);
}

static const struct size resizes[] = { { "0", 0, false }, { "above max_cqe", 0x7fffffff, false } };

static void resize_refused(const void *row)
{
    const struct size *size = row;
    struct ibv_cq *cq = new_cq(10);
    NEED((errno = ibv_resize_cq(cq, 20)) == 0);
    EXPECT_EQ(ibv_resize_cq(cq, size->cqe), EINVAL);
    EXPECT(cq->cqe >= 20);
}

/* A size below the number of entries: no entry may be lost. */
static void resize_full(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    wait_for(pair->a.cq, pair, 10);
    struct ibv_wc wc;
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    usleep(100000);
    int code = ibv_resize_cq(pair->a.cq, 1);
    if (code == EOPNOTSUPP || code == ENOSYS) skip("no resizing");
    if (code == 0) EXPECT(pair->a.cq->cqe >= 9);
    else EXPECT_EQ(code, EINVAL);
    for (int i = 1; i < 10; i++) EXPECT_EQ(next_wc(pair->a.cq).wr_id, i);
    EXPECT_EQ(ibv_poll_cq(pair->a.cq, 1, &wc), 0);
}

static void overflow(const void *row)
{
    (void)row;
    struct ibv_cq *cq = new_cq(1);
    struct ibv_qp *qp =
        new_qp(&(struct options){ .cq = cq, .cap = { .max_recv_wr = cq->cqe + 1 } });
    EXPECT_EQ(to_init(qp, &(struct options){ 0 }), 0);
    struct ibv_recv_wr wr = { 0 }, *bad;
    for (int i = 0; i <= cq->cqe; i++) EXPECT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
    EXPECT_EQ(to_state(qp, IBV_QPS_ERR), 0);
    struct ibv_async_event event = next_event(IBV_EVENT_CQ_ERR);
    EXPECT(event.element.cq == cq);
    ibv_ack_async_event(&event);
}

/* ---- Notification. */

enum { ANY = 0, SOLICITED = 1, NEVER = 2 };
enum source { PLAIN, SOLICITING, SOLICITING_IMM, REQUEST, ERROR };
static const struct notify {
    const char *name;
    int arm, again; /* how the CQ is armed */
    enum source source;
    bool event;
} notifies[] = {
    { "not armed", NEVER, NEVER, PLAIN, false },
    { "any, a receive", ANY, NEVER, PLAIN, true },
    { "any, a solicited receive", ANY, NEVER, SOLICITING, true },
    { "any, a request", ANY, NEVER, REQUEST, true },
    { "solicited, a receive", SOLICITED, NEVER, PLAIN, false },
    { "solicited, a solicited receive", SOLICITED, NEVER, SOLICITING, true },
    { "solicited, a solicited WRITE with immediate", SOLICITED, NEVER, SOLICITING_IMM, true },
    { "solicited, a request", SOLICITED, NEVER, REQUEST, false },
    { "solicited, an error", SOLICITED, NEVER, ERROR, true },
    { "any, then solicited: a receive", ANY, SOLICITED, PLAIN, true },
    { "solicited, then any: a receive", SOLICITED, ANY, PLAIN, true },
    { "twice: one event", ANY, ANY, PLAIN, true },
};

static void cause(struct pair *pair, enum source source)
{
    if (source == ERROR) return EXPECT_EQ(to_state(pair->b.qp, IBV_QPS_ERR), 0);
    struct end *end = source == REQUEST ? &pair->b : &pair->a;
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
    if (source != PLAIN) wr.send_flags = IBV_SEND_SOLICITED;
    if (source == SOLICITING_IMM) wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    if (source == REQUEST) wr.opcode = IBV_WR_RDMA_WRITE, wr.send_flags = 0;
    EXPECT_EQ(post(end, &wr), 0);
}

static void notify(const void *row)
{
    const struct notify *notify = row;
    struct ibv_comp_channel *channel =
        KEEP(ibv_create_comp_channel(context), ibv_destroy_comp_channel);
    int own;
    struct ibv_cq *cq = KEEP(ibv_create_cq(context, 64, &own, channel, 0), ibv_destroy_cq);
    struct pair *pair = new_pair(&(struct options){ .cq = cq });
    struct ibv_qp *silent = pair->a.qp;
    (void)silent;
    if (notify->source != REQUEST) EXPECT_EQ(post_recv(&pair->b, 1, 0, 100), 0);
    if (notify->arm != NEVER) EXPECT_EQ(ibv_req_notify_cq(cq, notify->arm), 0);
    if (notify->again != NEVER) EXPECT_EQ(ibv_req_notify_cq(cq, notify->again), 0);
    cause(pair, notify->source);
    EXPECT_EQ(is_ready(channel->fd, notify->event ? 5000 : 200), notify->event);
    if (!notify->event) return;
    struct ibv_cq *which = NULL;
    void *data = NULL;
    EXPECT_EQ(ibv_get_cq_event(channel, &which, &data), 0);
    EXPECT(which == cq && data == &own);
    ibv_ack_cq_events(cq, 1);
    EXPECT(!is_ready(channel->fd, 100));
}

static void one_shot(const void *row)
{
    (void)row;
    struct ibv_comp_channel *channel =
        KEEP(ibv_create_comp_channel(context), ibv_destroy_comp_channel);
    struct ibv_cq *cq = KEEP(ibv_create_cq(context, 64, NULL, channel, 0), ibv_destroy_cq), *which;
    void *data;
    struct pair *pair = new_pair(&(struct options){ .cq = cq });
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(ibv_req_notify_cq(cq, 0), 0);
        for (int j = 0; j < 3; j++) {
            EXPECT_EQ(post_op(pair, IBV_WR_RDMA_WRITE, 8), 0);
            EXPECT_STATUS(next_wc(cq).status, IBV_WC_SUCCESS);
        }
        EXPECT(is_ready(channel->fd, 5000));
        EXPECT_EQ(ibv_get_cq_event(channel, &which, &data), 0);
        EXPECT(!is_ready(channel->fd, 50));
    }
    ibv_ack_cq_events(cq, 3);
}

static void channel_busy(const void *row)
{
    (void)row;
    struct ibv_comp_channel *channel =
        KEEP(ibv_create_comp_channel(context), ibv_destroy_comp_channel);
    struct ibv_cq *cq = KEEP(ibv_create_cq(context, 4, NULL, channel, 0), ibv_destroy_cq);
    EXPECT(cq->channel == channel);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), EBUSY);
    struct ibv_cq *which;
    void *data;
    fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
    errno = 0;
    EXPECT_EQ(ibv_get_cq_event(channel, &which, &data), -1);
    EXPECT_EQ(errno, EAGAIN);
}

static void two_on_a_channel(const void *row)
{
    (void)row;
    struct ibv_comp_channel *channel =
        KEEP(ibv_create_comp_channel(context), ibv_destroy_comp_channel);
    struct ibv_cq *cqs[2], *which;
    void *data;
    int own[2];
    for (int i = 0; i < 2; i++) {
        cqs[i] = KEEP(ibv_create_cq(context, 64, &own[i], channel, 0), ibv_destroy_cq);
        EXPECT_EQ(ibv_req_notify_cq(cqs[i], 0), 0);
    }
    for (int i = 1; i >= 0; i--) {
        struct pair *pair = new_pair(&(struct options){ .cq = cqs[i] });
        EXPECT_EQ(post_op(pair, IBV_WR_RDMA_WRITE, 8), 0);
        EXPECT_EQ(ibv_get_cq_event(channel, &which, &data), 0);
        EXPECT(which == cqs[i] && data == &own[i]);
        ibv_ack_cq_events(which, 1);
    }
}

static void *destroy(void *cq) { return (void *)(intptr_t)drop(cq); }

static void waits_for_acks(const void *row)
{
    (void)row;
    struct ibv_comp_channel *channel =
        KEEP(ibv_create_comp_channel(context), ibv_destroy_comp_channel);
    struct ibv_cq *cq = KEEP(ibv_create_cq(context, 64, NULL, channel, 0), ibv_destroy_cq), *which;
    struct ibv_qp *qp = new_qp(&(struct options){ .cq = cq });
    EXPECT_EQ(ibv_req_notify_cq(cq, 0), 0);
    EXPECT_EQ(to_init(qp, &(struct options){ 0 }), 0);
    struct ibv_recv_wr wr = { 0 }, *bad;
    EXPECT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
    EXPECT_EQ(to_state(qp, IBV_QPS_ERR), 0);
    void *data, *code;
    EXPECT_EQ(ibv_get_cq_event(channel, &which, &data), 0);
    EXPECT_EQ(drop(qp), 0);
    pthread_t thread;
    pthread_create(&thread, NULL, destroy, cq);
    usleep(100000);
    EXPECT_EQ(pthread_tryjoin_np(thread, NULL), EBUSY);
    ibv_ack_cq_events(cq, 1);
    EXPECT_EQ(pthread_join(thread, &code), 0);
    EXPECT_EQ((intptr_t)code, 0);
}

void cq_cases(void)
{
    for (unsigned i = 0; i < ROWS(sizes); i++)
        test("ibv_create_cq(3)", size, &sizes[i], "cq/depth: %s", sizes[i].name);
    test("ibv_create_cq(3)", vector, NULL, "cq/vector: invalid ones, every valid one");
    test("ibv_destroy_cq(3)", busy, NULL, "cq/busy: with a QP");
    test("ibv_poll_cq(3)", polls, NULL, "cq/poll: order, in several calls");
    test("ibv_create_qp(3)", two_queues, NULL, "cq/poll: a CQ for sends, another for receives");
    test("ibv_resize_cq(3)", resize_keeps, NULL, "cq/resize: entries are kept");
    test("ibv_resize_cq(3)", resize_full, NULL, "cq/resize: smaller than its number of entries");
    for (unsigned i = 0; i < ROWS(resizes); i++)
        test("ibv_resize_cq(3)", resize_refused, &resizes[i], "cq/resize: to %s", resizes[i].name);
    test("ibv_get_async_event(3), IBTA 11.6.3", overflow, NULL, "cq/overflow: an event");
    for (unsigned i = 0; i < ROWS(notifies); i++)
        test("ibv_req_notify_cq(3), IBTA 11.4.2.2", notify, &notifies[i], "cq/notify: %s",
             notifies[i].name);
    test("ibv_req_notify_cq(3)", one_shot, NULL, "cq/notify: one event for each arming");
    test("ibv_create_comp_channel(3)", channel_busy, NULL,
         "cq/channel: busy; no event, not blocking");
    test("ibv_get_cq_event(3)", two_on_a_channel, NULL, "cq/channel: two CQs");
    test("ibv_get_cq_event(3), ibv_destroy_cq(3)", waits_for_acks, NULL,
         "cq/events: destroying waits for acknowledgements");
}
