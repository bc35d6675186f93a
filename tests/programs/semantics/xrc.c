/* XRC: domains, shared receive queues, QPs. */
#include "semantics.h"

struct xrc {
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_xrcd *xrcd;
    struct ibv_srq *srq;
    uint32_t number;
    struct ibv_qp *sender, *receiver;
    char *bytes;
    struct ibv_mr *mr;
};

static struct ibv_xrcd *new_xrcd(void)
{
    struct ibv_xrcd_init_attr attr = { IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, -1,
                                       O_CREAT };
    if (!(device.device_cap_flags & IBV_DEVICE_XRC)) skip("no XRC");
    return KEEP(ibv_open_xrcd(context, &attr), ibv_close_xrcd);
}

static struct ibv_srq *new_xrc_srq(struct xrc *xrc)
{
    struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = 8, .max_sge = 1 }, .pd = xrc->pd,
        .srq_type = IBV_SRQT_XRC, .xrcd = xrc->xrcd, .cq = xrc->cq,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ };
    return KEEP(ibv_create_srq_ex(context, &init), ibv_destroy_srq);
}

static struct xrc new_xrc(void)
{
    struct xrc xrc = { .xrcd = new_xrcd() };
    xrc.pd = new_pd(), xrc.cq = new_cq(64);
    xrc.srq = new_xrc_srq(&xrc);
    EXPECT_EQ(ibv_get_srq_num(xrc.srq, &xrc.number), 0);
    xrc.bytes = new_bytes(SIZE);
    xrc.mr = new_mr(xrc.pd, xrc.bytes, SIZE, ALL);
    struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrc.xrcd,
        .comp_mask = IBV_QP_INIT_ATTR_XRCD };
    xrc.receiver = KEEP(ibv_create_qp_ex(context, &init), ibv_destroy_qp);
    init = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_XRC_SEND,
                                         .send_cq = xrc.cq,
                                         .pd = xrc.pd,
                                         .comp_mask = IBV_QP_INIT_ATTR_PD,
                                         .cap = { .max_send_wr = 8, .max_send_sge = 1 },
                                         .sq_sig_all = 1 };
    xrc.sender = KEEP(ibv_create_qp_ex(context, &init), ibv_destroy_qp);
    struct options options = { 0 };
    connect_qp(xrc.receiver, xrc.sender->qp_num, &options);
    connect_qp(xrc.sender, xrc.receiver->qp_num, &options);
    return xrc;
}

static int post_receive(struct xrc *xrc, struct ibv_srq *srq, uint64_t wr_id)
{
    struct ibv_sge sge = sge_of(xrc->mr, xrc->bytes + 4096, 4096);
    struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
    return ibv_post_srq_recv(srq, &wr, &bad);
}

static int request(struct xrc *xrc, enum ibv_wr_opcode opcode, uint32_t number)
{
    struct ibv_sge sge = sge_of(xrc->mr, xrc->bytes, 100);
    struct ibv_send_wr wr = { .wr_id = 7, .opcode = opcode, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uintptr_t)xrc->bytes + 4096, xrc->mr->rkey },
        .qp_type.xrc.remote_srqn = number }, *bad;
    return ibv_post_send(xrc->sender, &wr, &bad);
}

static const struct op { const char *name; enum ibv_wr_opcode opcode; bool receives; } ops[] = {
    { "SEND", IBV_WR_SEND, true },
    { "WRITE", IBV_WR_RDMA_WRITE, false },
    { "WRITE with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, true },
    { "READ", IBV_WR_RDMA_READ, false },
};

static void op(const void *row)
{
    const struct op *op = row;
    struct xrc xrc = new_xrc();
    fill(xrc.bytes, 4096, 1);
    fill(xrc.bytes + 4096, 4096, 2);
    if (op->receives) EXPECT_EQ(post_receive(&xrc, xrc.srq, 42), 0);
    EXPECT_EQ(request(&xrc, op->opcode, xrc.number), 0);
    bool seen[2] = { false, false };
    for (int i = 0; i < 1 + op->receives; i++) {
        struct ibv_wc wc = next_wc(xrc.cq);
        EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
        seen[wc.wr_id == 42] = true;
        if (wc.wr_id == 42) EXPECT_EQ(wc.qp_num, xrc.receiver->qp_num);
    }
    EXPECT(seen[0] && seen[1] == op->receives);
    EXPECT(memcmp(xrc.bytes, xrc.bytes + 4096, 100) == 0);
}

static void two_queues(const void *row)
{
    (void)row;
    struct xrc xrc = new_xrc();
    struct ibv_srq *other = new_xrc_srq(&xrc);
    uint32_t number;
    EXPECT_EQ(ibv_get_srq_num(other, &number), 0);
    EXPECT(number != xrc.number);
    EXPECT_EQ(post_receive(&xrc, xrc.srq, 1), 0);
    EXPECT_EQ(post_receive(&xrc, other, 2), 0);
    EXPECT_EQ(request(&xrc, IBV_WR_SEND, number), 0);
    uint64_t sum = next_wc(xrc.cq).wr_id;
    sum += next_wc(xrc.cq).wr_id;
    EXPECT_EQ(sum, 7 + 2);
}

static void wrong_number(const void *row)
{
    (void)row;
    struct xrc xrc = new_xrc();
    EXPECT_EQ(request(&xrc, IBV_WR_SEND, 0xabcdef), 0);
    EXPECT_STATUS(next_wc(xrc.cq).status, IBV_WC_REM_INV_REQ_ERR);
    EXPECT_STATE(xrc.sender, IBV_QPS_ERR);
}

static void busy(const void *row)
{
    (void)row;
    struct xrc xrc = new_xrc();
    EXPECT_EQ(ibv_close_xrcd(xrc.xrcd), EBUSY);
    EXPECT_EQ(drop(xrc.receiver), 0);
    EXPECT_EQ(drop(xrc.srq), 0);
    EXPECT_EQ(drop(xrc.xrcd), 0);
}

static void posts(const void *row)
{
    (void)row;
    struct xrc xrc = new_xrc();
    struct ibv_recv_wr recv = { 0 }, *bad_recv;
    struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad;
    EXPECT_EQ(ibv_post_recv(xrc.sender, &recv, &bad_recv), EINVAL);
    EXPECT_EQ(ibv_post_send(xrc.receiver, &send, &bad), EINVAL);
    EXPECT_EQ(ibv_post_recv(xrc.receiver, &recv, &bad_recv), EINVAL);
}

static void open_qp(const void *row)
{
    (void)row;
    struct xrc xrc = new_xrc();
    struct ibv_qp_open_attr attr = { .qp_num = xrc.receiver->qp_num, .xrcd = xrc.xrcd,
        .qp_type = IBV_QPT_XRC_RECV,
        .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE };
    struct ibv_qp *opened = KEEP(ibv_open_qp(context, &attr), ibv_destroy_qp);
    EXPECT_EQ(opened->qp_num, xrc.receiver->qp_num);
    EXPECT_EQ(drop(xrc.receiver), 0);
    EXPECT_EQ(post_receive(&xrc, xrc.srq, 2), 0);
    EXPECT_EQ(request(&xrc, IBV_WR_SEND, xrc.number), 0);
    for (int i = 0; i < 2; i++) EXPECT_STATUS(next_wc(xrc.cq).status, IBV_WC_SUCCESS);
    attr.qp_num = xrc.sender->qp_num;
    EXPECT_NULL(ibv_open_qp(context, &attr), EINVAL);
}

static void number_of_plain(const void *row)
{
    (void)row;
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 1, .max_sge = 1 } };
    struct ibv_srq *srq = KEEP(ibv_create_srq(new_pd(), &init), ibv_destroy_srq);
    uint32_t number;
    EXPECT(ibv_get_srq_num(srq, &number) != 0);
}

void xrc_cases(void)
{
    for (unsigned i = 0; i < ROWS(ops); i++)
        test("IBTA annex A14", op, &ops[i], "xrc/op: %s", ops[i].name);
    test("ibv_get_srq_num(3)", two_queues, NULL, "xrc/srq: the SRQ that the request names");
    test("IBTA annex A14", wrong_number, NULL, "xrc/srq: a wrong number");
    test("ibv_get_srq_num(3)", number_of_plain, NULL,
         "xrc/srq: an SRQ that is not XRC has no number");
    test("ibv_close_xrcd(3)", busy, NULL, "xrc/domain: busy");
    test("ibv_create_qp_ex(3)", posts, NULL,
         "xrc/post: receives to the sender, sends to the receiver");
    test("ibv_open_qp(3)", open_qp, NULL, "xrc/open: a QP exists as long as a handle");
}
