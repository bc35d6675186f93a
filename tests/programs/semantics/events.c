/* Asynchronous events of QPs. */
#include "semantics.h"

static const struct row {
    const char *name;
    enum ibv_wr_opcode opcode;
    bool misaligned;
    enum ibv_event_type event;
} rows[] = {
    { "WRITE, a wrong R_Key", IBV_WR_RDMA_WRITE, false, IBV_EVENT_QP_ACCESS_ERR },
    { "READ, a wrong R_Key", IBV_WR_RDMA_READ, false, IBV_EVENT_QP_ACCESS_ERR },
    { "fetch and add, misaligned", IBV_WR_ATOMIC_FETCH_AND_ADD, true, IBV_EVENT_QP_REQ_ERR },
};

static void violation(const void *of)
{
    const struct row *row = of;
    struct pair *pair = new_pair(NULL);
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 8);
    struct ibv_send_wr wr = { .opcode = row->opcode, .sg_list = &sge, .num_sge = 1 };
    uint64_t addr = (uintptr_t)pair->b.bytes + (row->misaligned ? 4 : 0);
    if (row->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        wr.wr.atomic.remote_addr = addr, wr.wr.atomic.rkey = pair->b.mr->rkey;
    else wr.wr.rdma.remote_addr = addr, wr.wr.rdma.rkey = 0xfffffff0;
    int code = post(&pair->a, &wr);
    if (code == EINVAL && row->misaligned) return; /* refused when posted */
    EXPECT_EQ(code, 0);
    next_wc(pair->a.cq);
    struct ibv_async_event event = next_event(row->event);
    EXPECT(event.element.qp == pair->b.qp);
    ibv_ack_async_event(&event);
}

/* The first message establishes the connection of a QP that is still in RTR. */
static void established(const void *row)
{
    (void)row;
    struct options options = { .pd = new_pd(), .cq = new_cq(64) };
    struct ibv_qp *a = new_qp(&options), *b = new_qp(&options);
    EXPECT_EQ(to_init(b, &options), 0);
    EXPECT_EQ(to_rtr(b, a->qp_num, &options), 0);
    connect_qp(a, b->qp_num, &options);
    struct ibv_recv_wr recv = { 0 }, *bad_recv;
    EXPECT_EQ(ibv_post_recv(b, &recv, &bad_recv), 0);
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
    EXPECT_EQ(ibv_post_send(a, &wr, &bad), 0);
    struct ibv_async_event event = next_event(IBV_EVENT_COMM_EST);
    EXPECT(event.element.qp == b);
    ibv_ack_async_event(&event);
    next_wc(options.cq), next_wc(options.cq);
}

static void *destroy(void *qp) { return (void *)(intptr_t)drop(qp); }

static void waits_for_acks(const void *row)
{
    (void)row;
    struct ibv_pd *pd = new_pd();
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
    struct ibv_srq *srq = KEEP(ibv_create_srq(pd, &init), ibv_destroy_srq);
    struct pair *pair = new_pair(&(struct options){ .pd = pd, .srq = srq });
    EXPECT_EQ(to_state(pair->b.qp, IBV_QPS_ERR), 0);
    struct ibv_async_event event = next_event(IBV_EVENT_QP_LAST_WQE_REACHED);
    pthread_t thread;
    void *code;
    pthread_create(&thread, NULL, destroy, pair->b.qp);
    usleep(100000);
    EXPECT_EQ(pthread_tryjoin_np(thread, NULL), EBUSY);
    ibv_ack_async_event(&event);
    EXPECT_EQ(pthread_join(thread, &code), 0);
    EXPECT_EQ((intptr_t)code, 0);
}

static void empty(const void *row)
{
    (void)row;
    drain_events();
    struct ibv_async_event event;
    EXPECT(!is_ready(context->async_fd, 0));
    errno = 0;
    EXPECT_EQ(ibv_get_async_event(context, &event), -1);
    EXPECT_EQ(errno, EAGAIN);
}

void event_cases(void)
{
    for (unsigned i = 0; i < ROWS(rows); i++)
        test("ibv_get_async_event(3), C9-222.1", violation, &rows[i], "event/target: %s",
             rows[i].name);
    test("ibv_get_async_event(3), IBTA 11.6.3", established, NULL,
         "event/target: communication established");
    test("ibv_ack_async_event(3)", waits_for_acks, NULL,
         "event/ack: destroying a QP waits for acknowledgements");
    test("ibv_get_async_event(3)", empty, NULL, "event/none: a nonblocking descriptor");
}
