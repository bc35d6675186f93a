/* UC operations: messages that arrive, and messages that are dropped silently. */
#include "semantics.h"

static const struct op { const char *name; enum ibv_wr_opcode opcode; bool receives; } ops[] = {
    { "SEND", IBV_WR_SEND, true },
    { "SEND with immediate", IBV_WR_SEND_WITH_IMM, true },
    { "WRITE", IBV_WR_RDMA_WRITE, false },
    { "WRITE with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, true },
};
static const uint32_t lengths[] = { 0, 1, 1023, 1024, 1025, 10000 };
struct row { const struct op *op; uint32_t length; };

static struct pair *uc_pair(void) { return new_pair(&(struct options){ .type = IBV_QPT_UC }); }

static void length(const void *row)
{
    const struct op *op = ((const struct row *)row)->op;
    uint32_t length = ((const struct row *)row)->length;
    struct pair *pair = uc_pair();
    fill(pair->a.bytes, SIZE, 1);
    if (op->receives) EXPECT_EQ(post_recv(&pair->b, 42, 0, length), 0);
    EXPECT_EQ(post_op(pair, op->opcode, length), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    if (op->receives) {
        struct ibv_wc wc = next_wc(pair->b.cq);
        EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc.byte_len, length);
    }
    for (int i = 0; i < 5000 && memcmp(pair->a.bytes, pair->b.bytes, length); i++) usleep(1000);
    EXPECT(memcmp(pair->a.bytes, pair->b.bytes, length) == 0 && pair->b.bytes[length] == 0);
}

/* Expects that a later SEND arrives: the connection still works. */
static void expect_alive(struct pair *pair)
{
    EXPECT_STATE(pair->a.qp, IBV_QPS_RTS);
    EXPECT_EQ(post_recv(&pair->b, 43, 0, 100), 0);
    EXPECT_EQ(post_op(pair, IBV_WR_SEND, 50), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    struct ibv_wc wc = next_wc(pair->b.cq);
    EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, 43);
}

static void no_receive(const void *row)
{
    struct pair *pair = uc_pair();
    EXPECT_EQ(post_op(pair, *(const enum ibv_wr_opcode *)row, 3000), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT_NO_WC(pair->b.cq);
    expect_alive(pair);
}

static void wrong_rkey(const void *row)
{
    (void)row;
    struct pair *pair = uc_pair();
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 8);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uintptr_t)pair->b.bytes, 0xfffffff0 } };
    fill(pair->a.bytes, 8, 1);
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT_NO_WC(pair->b.cq);
    EXPECT_STATE(pair->a.qp, IBV_QPS_RTS);
    for (int i = 0; i < 8; i++) EXPECT(pair->b.bytes[i] == 0);
}

static void no_peer(const void *row)
{
    (void)row;
    struct pair *pair = uc_pair();
    EXPECT_EQ(to_state(pair->b.qp, IBV_QPS_RESET), 0);
    EXPECT_EQ(post_op(pair, IBV_WR_SEND, 8), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT_STATE(pair->a.qp, IBV_QPS_RTS);
}

static void wrong_lkey(const void *row)
{
    (void)row;
    struct pair *pair = uc_pair();
    struct ibv_sge sge = { (uintptr_t)pair->a.bytes, 8, 0xfffffff0 };
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_LOC_PROT_ERR);
    EXPECT_STATE(pair->a.qp, IBV_QPS_SQE);
    EXPECT_EQ(post_op(pair, IBV_WR_SEND, 8), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(to_state(pair->a.qp, IBV_QPS_RTS), 0);
    expect_alive(pair);
}

/* Operations that UC does not have, refused when posted or completed in error. */
static const struct op missing[] = {
    { "READ", IBV_WR_RDMA_READ, false }, { "compare and swap", IBV_WR_ATOMIC_CMP_AND_SWP, false },
    { "fetch and add", IBV_WR_ATOMIC_FETCH_AND_ADD, false },
};

static void unsupported(const void *row)
{
    struct pair *pair = uc_pair();
    int code = post_op(pair, ((const struct op *)row)->opcode, 8);
    if (code != 0) return EXPECT_EQ(code, EINVAL);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_LOC_QP_OP_ERR);
}

static void order(const void *row)
{
    (void)row;
    struct pair *pair = uc_pair();
    for (int i = 0; i < 10; i++) EXPECT_EQ(post_recv(&pair->b, i, 4096 * i, 4096), 0);
    for (int i = 0; i < 10; i++) EXPECT_EQ(post_op(pair, IBV_WR_SEND, 100 * i), 0);
    for (int i = 0; i < 10; i++) {
        struct ibv_wc wc = next_wc(pair->b.cq);
        EXPECT_EQ(wc.wr_id, i);
        EXPECT_EQ(wc.byte_len, 100 * i);
    }
}

void uc_cases(void)
{
    static struct row rows[ROWS(ops) * ROWS(lengths)];
    for (unsigned i = 0; i < ROWS(rows); i++) {
        rows[i] = (struct row){ &ops[i / ROWS(lengths)], lengths[i % ROWS(lengths)] };
        test("ibv_post_send(3)", length, &rows[i], "uc/length: %s of %u bytes", rows[i].op->name,
             rows[i].length);
    }
    static const enum ibv_wr_opcode send = IBV_WR_SEND, write = IBV_WR_RDMA_WRITE_WITH_IMM;
    test("IBTA 9.8.2", no_receive, &send, "uc/drop: SEND, no receive");
    test("IBTA 9.8.2", no_receive, &write, "uc/drop: WRITE with immediate, no receive");
    test("IBTA 9.8.2", wrong_rkey, NULL, "uc/drop: WRITE, a wrong R_Key");
    test("IBTA 9.8.2", no_peer, NULL, "uc/drop: a peer in RESET");
    test("ibv_modify_qp(3), IBTA 10.3.1", wrong_lkey, NULL,
         "uc/error: a wrong L_Key, SQE, back to RTS");
    for (unsigned i = 0; i < ROWS(missing); i++)
        test("ibv_post_send(3)", unsupported, &missing[i], "uc/error: %s", missing[i].name);
    test("IBTA 9.5", order, NULL, "uc/order: ten messages");
}
