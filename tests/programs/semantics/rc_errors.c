/* RC operations that fail: the status at both ends, and the states of both QPs. */
#include "semantics.h"

enum wrong {
    RIGHT, RKEY, BEYOND, MISALIGNED, SHORT_RECV, RECV_LKEY, NO_RECV, QP_ACCESS, LKEY, LOCAL_BEYOND,
    NO_PEER, PEER_RESET, PEER_INIT, PEER_ERR,
};
enum { NOTHING = -1 };

/* `target` is the status of the target's receive, NOTHING if none completes. */
static const struct error {
    const char *name;
    enum ibv_wr_opcode opcode;
    enum wrong wrong;
    enum ibv_wc_status initiator;
    int target;
    enum ibv_qp_state target_state;
    const char *reference;
} errors[] = {
    { "SEND, a receive one byte too short", IBV_WR_SEND, SHORT_RECV, IBV_WC_REM_INV_REQ_ERR,
      IBV_WC_LOC_LEN_ERR, IBV_QPS_ERR, "IBTA 9.9.3" },
    { "SEND with immediate, a receive too short", IBV_WR_SEND_WITH_IMM, SHORT_RECV,
      IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, IBV_QPS_ERR, "IBTA 9.9.3" },
    { "SEND, a receive with a wrong L_Key", IBV_WR_SEND, RECV_LKEY, IBV_WC_REM_OP_ERR,
      IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR, "IBTA 9.9.3" },
    { "SEND, no receive", IBV_WR_SEND, NO_RECV, IBV_WC_RNR_RETRY_EXC_ERR, NOTHING, IBV_QPS_RTS,
      "IBTA 9.7.5" },
    { "WRITE with immediate, no receive", IBV_WR_RDMA_WRITE_WITH_IMM, NO_RECV,
      IBV_WC_RNR_RETRY_EXC_ERR, NOTHING, IBV_QPS_RTS, "IBTA 9.7.5" },
    { "WRITE, a wrong R_Key", IBV_WR_RDMA_WRITE, RKEY, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR,
      IBV_QPS_ERR, "IBTA 9.9.3" },
    { "WRITE with immediate, a wrong R_Key", IBV_WR_RDMA_WRITE_WITH_IMM, RKEY,
      IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_QPS_ERR, "IBTA 9.9.3, 11.6.2" },
    { "READ, a wrong R_Key", IBV_WR_RDMA_READ, RKEY, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR,
      IBV_QPS_ERR, "IBTA 9.9.3" },
    { "compare and swap, a wrong R_Key", IBV_WR_ATOMIC_CMP_AND_SWP, RKEY, IBV_WC_REM_ACCESS_ERR,
      IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR, "IBTA 9.9.3" },
    { "fetch and add, a wrong R_Key", IBV_WR_ATOMIC_FETCH_AND_ADD, RKEY, IBV_WC_REM_ACCESS_ERR,
      IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR, "IBTA 9.9.3" },
    { "WRITE beyond the region", IBV_WR_RDMA_WRITE, BEYOND, IBV_WC_REM_ACCESS_ERR,
      IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR, "IBTA 9.9.3" },
    { "READ beyond the region", IBV_WR_RDMA_READ, BEYOND, IBV_WC_REM_ACCESS_ERR,
      IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR, "IBTA 9.9.3" },
    { "fetch and add beyond the region", IBV_WR_ATOMIC_FETCH_AND_ADD, BEYOND, IBV_WC_REM_ACCESS_ERR,
      IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR, "IBTA 9.9.3" },
    { "compare and swap, misaligned", IBV_WR_ATOMIC_CMP_AND_SWP, MISALIGNED, IBV_WC_REM_INV_REQ_ERR,
      IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR, "IBTA 9.4.5" },
    { "fetch and add, misaligned", IBV_WR_ATOMIC_FETCH_AND_ADD, MISALIGNED, IBV_WC_REM_INV_REQ_ERR,
      IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR, "IBTA 9.4.5" },
    { "WRITE, a QP without remote-write", IBV_WR_RDMA_WRITE, QP_ACCESS, IBV_WC_REM_INV_REQ_ERR,
      IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR, "ibv_modify_qp(3)" },
    { "READ, a QP without remote-read", IBV_WR_RDMA_READ, QP_ACCESS, IBV_WC_REM_INV_REQ_ERR,
      IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR, "ibv_modify_qp(3)" },
    { "fetch and add, a QP without remote-atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, QP_ACCESS,
      IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR, "ibv_modify_qp(3)" },
    { "SEND, a wrong L_Key", IBV_WR_SEND, LKEY, IBV_WC_LOC_PROT_ERR, NOTHING, IBV_QPS_RTS,
      "IBTA 9.9.2" },
    { "WRITE, a wrong L_Key", IBV_WR_RDMA_WRITE, LKEY, IBV_WC_LOC_PROT_ERR, NOTHING, IBV_QPS_RTS,
      "IBTA 9.9.2" },
    { "READ, a wrong L_Key", IBV_WR_RDMA_READ, LKEY, IBV_WC_LOC_PROT_ERR, NOTHING, IBV_QPS_RTS,
      "IBTA 9.9.2" },
    { "fetch and add, a wrong L_Key", IBV_WR_ATOMIC_FETCH_AND_ADD, LKEY, IBV_WC_LOC_PROT_ERR,
      NOTHING, IBV_QPS_RTS, "IBTA 9.9.2" },
    { "SEND from beyond the region", IBV_WR_SEND, LOCAL_BEYOND, IBV_WC_LOC_PROT_ERR, NOTHING,
      IBV_QPS_RTS, "IBTA 9.9.2" },
    { "SEND to no QP", IBV_WR_SEND, NO_PEER, IBV_WC_RETRY_EXC_ERR, NOTHING, IBV_QPS_RTS,
      "IBTA 9.9.2" },
    { "READ from no QP", IBV_WR_RDMA_READ, NO_PEER, IBV_WC_RETRY_EXC_ERR, NOTHING, IBV_QPS_RTS,
      "IBTA 9.9.2" },
    { "SEND to a QP in RESET", IBV_WR_SEND, PEER_RESET, IBV_WC_RETRY_EXC_ERR, NOTHING,
      IBV_QPS_RESET, "IBTA 10.3.1" },
    { "SEND to a QP in INIT", IBV_WR_SEND, PEER_INIT, IBV_WC_RETRY_EXC_ERR, NOTHING, IBV_QPS_INIT,
      "IBTA 10.3.1" },
    { "SEND to a QP in ERR", IBV_WR_SEND, PEER_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR,
      IBV_QPS_ERR, "IBTA 10.3.1" },
};

/* Creates a pair whose target, or whose connection to the target, has the error of the row. */
static struct pair *wrong_pair(const struct error *error)
{
    struct options options = { .rnr_retry = error->wrong == NO_RECV ? 255 : 7 };
    if (error->wrong == QP_ACCESS)
        options.access = error->opcode == IBV_WR_RDMA_WRITE ? RR | RA
            : error->opcode == IBV_WR_RDMA_READ ? RW | RA : RW | RR;
    if (error->wrong >= NO_PEER) options.timeout = 10, options.retry_cnt = 1;
    struct pair *pair = new_pair(&options);
    if (error->wrong == NO_PEER) {
        pair->a.qp = new_qp(&(struct options){ .pd = pair->pd, .cq = pair->a.cq });
        connect_qp(pair->a.qp, 0xabcdef, &options);
    }
    if (error->wrong == PEER_RESET || error->wrong == PEER_INIT)
        EXPECT_EQ(to_state(pair->b.qp, IBV_QPS_RESET), 0);
    if (error->wrong == PEER_INIT) EXPECT_EQ(to_init(pair->b.qp, &options), 0);
    return pair;
}

static void post_target(struct pair *pair, const struct error *error)
{
    if (error->wrong == NO_RECV || error->wrong == PEER_RESET) return;
    struct ibv_sge sge = sge_of(pair->b.mr, pair->b.bytes, error->wrong == SHORT_RECV ? 7 : 100);
    if (error->wrong == RECV_LKEY) sge.lkey = 0xfffffff0;
    struct ibv_recv_wr wr = { .wr_id = 42, .sg_list = &sge, .num_sge = 1 }, *bad;
    EXPECT_EQ(ibv_post_recv(pair->b.qp, &wr, &bad), 0);
    if (error->wrong == PEER_ERR) EXPECT_EQ(to_state(pair->b.qp, IBV_QPS_ERR), 0);
}

static struct ibv_send_wr request(struct pair *pair, const struct error *error, struct ibv_sge *sge)
{
    uint64_t remote = (uintptr_t)pair->b.bytes;
    uint32_t rkey = error->wrong == RKEY ? 0xfffffff0 : pair->b.mr->rkey;
    if (error->wrong == BEYOND) remote += SIZE;
    if (error->wrong == MISALIGNED) remote += 4;
    *sge = sge_of(pair->a.mr, pair->a.bytes, 8);
    if (error->wrong == LKEY) sge->lkey = 0xfffffff0;
    if (error->wrong == LOCAL_BEYOND) sge->addr += SIZE;
    struct ibv_send_wr wr = { .wr_id = 7, .opcode = error->opcode, .sg_list = sge, .num_sge = 1 };
    if (error->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || error->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        wr.wr.atomic.remote_addr = remote, wr.wr.atomic.rkey = rkey;
    else wr.wr.rdma.remote_addr = remote, wr.wr.rdma.rkey = rkey;
    return wr;
}

static void error(const void *row)
{
    const struct error *error = row;
    struct pair *pair = wrong_pair(error);
    post_target(pair, error);
    char *before = memcpy(new_bytes(SIZE), pair->b.bytes, SIZE);
    struct ibv_sge sge;
    struct ibv_send_wr wr = request(pair, error, &sge);
    int code = post(&pair->a, &wr);
    /* A provider may refuse a misaligned address when the request is posted. */
    if (code == EINVAL && error->wrong == MISALIGNED) return;
    EXPECT_EQ(code, 0);
    struct ibv_wc wc = next_wc(pair->a.cq);
    EXPECT_STATUS(wc.status, error->initiator);
    EXPECT_EQ(wc.wr_id, 7);
    EXPECT_EQ(wc.qp_num, pair->a.qp->qp_num);
    EXPECT_STATE(pair->a.qp, IBV_QPS_ERR);
    /* A later request is flushed. */
    EXPECT_EQ(post_op(pair, IBV_WR_RDMA_WRITE, 8), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_STATE(pair->b.qp, error->target_state);
    if (error->target == NOTHING) {
        EXPECT_NO_WC(pair->b.cq);
    } else {
        wc = next_wc(pair->b.cq);
        EXPECT_STATUS(wc.status, (enum ibv_wc_status)error->target);
        EXPECT_EQ(wc.wr_id, 42);
    }
    if (error->wrong != SHORT_RECV) EXPECT(memcmp(pair->b.bytes, before, SIZE) == 0);
}

/* Requests ahead of the wrong one complete, those behind are flushed. */
static void among_others(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    for (int i = 0; i < 5; i++) {
        struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 8);
        struct ibv_send_wr wr = { .wr_id = i,
                                  .opcode = IBV_WR_RDMA_WRITE,
                                  .sg_list = &sge,
                                  .num_sge = 1,
                                  .wr.rdma = { (uintptr_t)pair->b.bytes,
                                               i == 2 ? 0xfffffff0 : pair->b.mr->rkey } };
        EXPECT_EQ(post(&pair->a, &wr), 0);
    }
    for (int i = 0; i < 5; i++) {
        struct ibv_wc wc = next_wc(pair->a.cq);
        EXPECT_EQ(wc.wr_id, i);
        EXPECT_STATUS(wc.status, i < 2 ? IBV_WC_SUCCESS
                      : i == 2 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR);
    }
}

/* A local error waits for the requests ahead of it. */
static void local_among_others(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    for (int i = 0; i < 5; i++) {
        struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 8);
        if (i == 2) sge.lkey = 0xfffffff0;
        struct ibv_send_wr wr = { .wr_id = i,
                                  .opcode = IBV_WR_RDMA_READ,
                                  .sg_list = &sge,
                                  .num_sge = 1,
                                  .wr.rdma = { (uintptr_t)pair->b.bytes, pair->b.mr->rkey } };
        EXPECT_EQ(post(&pair->a, &wr), 0);
    }
    for (int i = 0; i < 5; i++) {
        struct ibv_wc wc = next_wc(pair->a.cq);
        EXPECT_EQ(wc.wr_id, i);
        EXPECT_STATUS(wc.status, i < 2 ? IBV_WC_SUCCESS
                      : i == 2 ? IBV_WC_LOC_PROT_ERR : IBV_WC_WR_FLUSH_ERR);
    }
}

static void unsignaled_error(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(&(struct options){ .unsignaled = true });
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 8);
    struct ibv_send_wr wr = { .wr_id = 9,
                              .opcode = IBV_WR_RDMA_WRITE,
                              .sg_list = &sge,
                              .num_sge = 1,
                              .wr.rdma = { (uintptr_t)pair->b.bytes, 0xfffffff0 } },
                       *bad;
    EXPECT_EQ(ibv_post_send(pair->a.qp, &wr, &bad), 0);
    struct ibv_wc wc = next_wc(pair->a.cq);
    EXPECT_STATUS(wc.status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(wc.wr_id, 9);
}

/* Both ends can be connected again after an error. */
static void again(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 8);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uintptr_t)pair->b.bytes, 0xfffffff0 } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(to_state(pair->a.qp, IBV_QPS_RESET), 0);
    EXPECT_EQ(to_state(pair->b.qp, IBV_QPS_RESET), 0);
    connect_qp(pair->b.qp, pair->a.qp->qp_num, &pair->options);
    connect_qp(pair->a.qp, pair->b.qp->qp_num, &pair->options);
    wr.wr.rdma.rkey = pair->b.mr->rkey;
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
}

void rc_error_cases(void)
{
    for (unsigned i = 0; i < ROWS(errors); i++)
        test(errors[i].reference, error, &errors[i], "rc/error: %s", errors[i].name);
    test("C9-220, C10-42", among_others, NULL, "rc/error: remote, the third of five");
    test("C9-220, C10-42", local_among_others, NULL, "rc/error: local, the third of five");
    test("ibv_post_send(3)", unsignaled_error, NULL, "rc/error: unsignaled, completes");
    test("IBTA 10.3.1", again, NULL, "rc/error: connected again after RESET");
}
