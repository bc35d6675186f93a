/* ibv_wr_*: each operation with each setter, batches, aborts, creation. */
#include "semantics.h"

enum setter { SGE, SGE_LIST, INLINE, INLINE_LIST, SETTERS };
static const char *const setters[] = { "sge", "sge_list", "inline_data", "inline_data_list" };

static const struct op {
    const char *name;
    uint64_t flag;
    bool receives, reads;
    enum ibv_wc_opcode wc;
} ops[] = {
    { "send", IBV_QP_EX_WITH_SEND, true, false, IBV_WC_SEND },
    { "send_imm", IBV_QP_EX_WITH_SEND_WITH_IMM, true, false, IBV_WC_SEND },
    { "rdma_write", IBV_QP_EX_WITH_RDMA_WRITE, false, false, IBV_WC_RDMA_WRITE },
    { "rdma_write_imm", IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, true, false, IBV_WC_RDMA_WRITE },
    { "rdma_read", IBV_QP_EX_WITH_RDMA_READ, false, true, IBV_WC_RDMA_READ },
    { "atomic_cmp_swp", IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, false, true, IBV_WC_COMP_SWAP },
    { "atomic_fetch_add", IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, false, true, IBV_WC_FETCH_ADD },
};
struct row { const struct op *op; enum setter setter; };

static void begin_op(struct ibv_qp_ex *qp, const struct op *op, struct pair *pair)
{
    uint64_t addr = (uintptr_t)pair->b.bytes;
    uint32_t rkey = pair->b.mr->rkey;
    switch (op->flag) {
    case IBV_QP_EX_WITH_SEND: return ibv_wr_send(qp);
    case IBV_QP_EX_WITH_SEND_WITH_IMM: return ibv_wr_send_imm(qp, htobe32(99));
    case IBV_QP_EX_WITH_RDMA_WRITE: return ibv_wr_rdma_write(qp, rkey, addr);
    case IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM:
        return ibv_wr_rdma_write_imm(qp, rkey, addr, htobe32(99));
    case IBV_QP_EX_WITH_RDMA_READ: return ibv_wr_rdma_read(qp, rkey, addr);
    case IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: return ibv_wr_atomic_cmp_swp(qp, rkey, addr, 5, 6);
    default: return ibv_wr_atomic_fetch_add(qp, rkey, addr, 7);
    }
}

static void set_data(struct ibv_qp_ex *qp, enum setter setter, struct pair *pair)
{
    char *bytes = pair->a.bytes;
    struct ibv_sge list[] = { sge_of(pair->a.mr, bytes, 3), sge_of(pair->a.mr, bytes + 3, 5) };
    struct ibv_data_buf bufs[] = { { bytes, 3 }, { bytes + 3, 5 } };
    switch (setter) {
    case SGE: return ibv_wr_set_sge(qp, pair->a.mr->lkey, (uintptr_t)bytes, 8);
    case SGE_LIST: return ibv_wr_set_sge_list(qp, 2, list);
    case INLINE: return ibv_wr_set_inline_data(qp, bytes, 8);
    default: return ibv_wr_set_inline_data_list(qp, 2, bufs);
    }
}

static struct pair *ex_pair(uint64_t ops)
{
    return new_pair(&(struct options){ .ops = ops, .cap = { .max_inline_data = 32 } });
}

static void op(const void *of)
{
    const struct row *row = of;
    const struct op *op = row->op;
    struct pair *pair = ex_pair(op->flag);
    fill(pair->a.bytes, 8, 1);
    uint64_t source = *(uint64_t *)pair->a.bytes, *far = (uint64_t *)pair->b.bytes;
    *far = 5;
    if (op->receives) EXPECT_EQ(post_recv(&pair->b, 42, 0, 8), 0);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair->a.qp);
    NEED(qp);
    ibv_wr_start(qp);
    qp->wr_id = 31;
    qp->wr_flags = IBV_SEND_SIGNALED;
    begin_op(qp, op, pair);
    set_data(qp, row->setter, pair);
    EXPECT_EQ(ibv_wr_complete(qp), 0);
    struct ibv_wc wc = next_wc(pair->a.cq);
    EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, 31);
    EXPECT_EQ(wc.opcode, op->wc);
    if (op->receives) EXPECT_EQ(next_wc(pair->b.cq).wr_id, 42);
    uint64_t after = op->wc == IBV_WC_COMP_SWAP ? 6 : op->wc == IBV_WC_FETCH_ADD ? 12 : 5;
    EXPECT(*far == (op->reads ? after : source));
    EXPECT(*(uint64_t *)pair->a.bytes == (op->reads ? 5 : source));
}

static void write_one(struct ibv_qp_ex *qp, struct pair *pair, uint64_t wr_id)
{
    qp->wr_id = wr_id;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qp, pair->b.mr->rkey, (uintptr_t)pair->b.bytes + 8 * wr_id);
    ibv_wr_set_sge(qp, pair->a.mr->lkey, (uintptr_t)pair->a.bytes, 8);
}

static void batch(const void *row)
{
    (void)row;
    struct pair *pair = ex_pair(IBV_QP_EX_WITH_RDMA_WRITE);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair->a.qp);
    ibv_wr_start(qp);
    for (int i = 0; i < 10; i++) write_one(qp, pair, i);
    EXPECT_NO_WC(pair->a.cq);
    EXPECT_EQ(ibv_wr_complete(qp), 0);
    for (int i = 0; i < 10; i++) EXPECT_EQ(next_wc(pair->a.cq).wr_id, i);
}

static void aborted(const void *row)
{
    (void)row;
    struct pair *pair = ex_pair(IBV_QP_EX_WITH_RDMA_WRITE);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair->a.qp);
    fill(pair->a.bytes, 8, 1);
    ibv_wr_start(qp);
    for (int i = 0; i < 3; i++) write_one(qp, pair, i);
    ibv_wr_abort(qp);
    EXPECT_NO_WC(pair->a.cq);
    EXPECT(pair->b.bytes[0] == 0 && pair->b.bytes[8] == 0);
    ibv_wr_start(qp);
    write_one(qp, pair, 9);
    EXPECT_EQ(ibv_wr_complete(qp), 0);
    EXPECT_EQ(next_wc(pair->a.cq).wr_id, 9);
}

static void full(const void *row)
{
    (void)row;
    struct pair *pair = ex_pair(IBV_QP_EX_WITH_RDMA_WRITE);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair->a.qp);
    ibv_wr_start(qp);
    for (int i = 0; i < 10000; i++) write_one(qp, pair, 1);
    EXPECT_EQ(ibv_wr_complete(qp), ENOMEM);
    EXPECT_NO_WC(pair->a.cq);
    ibv_wr_start(qp);
    write_one(qp, pair, 2);
    EXPECT_EQ(ibv_wr_complete(qp), 0);
    EXPECT_EQ(next_wc(pair->a.cq).wr_id, 2);
}

static const struct wrong { const char *name; int sges; size_t inlined; } wrongs[] = {
    { "too many SGEs", 100, 0 }, { "inline data that is too long", 0, 60000 },
};

static void wrong(const void *row)
{
    const struct wrong *wrong = row;
    struct pair *pair = ex_pair(IBV_QP_EX_WITH_RDMA_WRITE);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair->a.qp);
    struct ibv_sge sges[100] = { { 0 } };
    ibv_wr_start(qp);
    write_one(qp, pair, 1);
    ibv_wr_rdma_write(qp, pair->b.mr->rkey, (uintptr_t)pair->b.bytes);
    if (wrong->sges) ibv_wr_set_sge_list(qp, wrong->sges, sges);
    else ibv_wr_set_inline_data(qp, pair->a.bytes, wrong->inlined);
    int code = ibv_wr_complete(qp);
    EXPECT(code == EINVAL || code == ENOMEM);
    EXPECT_NO_WC(pair->a.cq);
}

static void unsignaled(const void *row)
{
    (void)row;
    struct pair *pair =
        new_pair(&(struct options){ .ops = IBV_QP_EX_WITH_RDMA_WRITE, .unsignaled = true });
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair->a.qp);
    ibv_wr_start(qp);
    for (int i = 0; i < 4; i++) {
        qp->wr_id = i;
        qp->wr_flags = i == 3 ? IBV_SEND_SIGNALED : 0;
        ibv_wr_rdma_write(qp, pair->b.mr->rkey, (uintptr_t)pair->b.bytes);
        ibv_wr_set_sge(qp, pair->a.mr->lkey, (uintptr_t)pair->a.bytes, 8);
    }
    EXPECT_EQ(ibv_wr_complete(qp), 0);
    EXPECT_EQ(next_wc(pair->a.cq).wr_id, 3);
    EXPECT_NO_WC(pair->a.cq);
}

static const struct creation {
    const char *name;
    enum ibv_qp_type type;
    uint64_t ops;
} creations[] = {
    { "unknown operation", IBV_QPT_RC, 1ull << 40 },
    { "UD, WRITE", IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE },
    { "UD, READ", IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_READ },
    { "UC, READ", IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ },
    { "UC, atomic", IBV_QPT_UC, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD },
    { "RC, TSO", IBV_QPT_RC, IBV_QP_EX_WITH_TSO },
};

static void refused(const void *row)
{
    const struct creation *creation = row;
    struct ibv_cq *cq = new_cq(4);
    struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .pd = new_pd(),
        .cap = { 1, 1, 1, 1, 0 }, .qp_type = creation->type, .send_ops_flags = creation->ops,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS };
    errno = 0;
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    if (qp) ibv_destroy_qp(qp);
    EXPECT(!qp && (errno == EOPNOTSUPP || errno == EINVAL));
}

static void plain(const void *row)
{
    (void)row;
    EXPECT(ibv_qp_to_qp_ex(new_qp(&(struct options){ 0 })) == NULL);
}

static void mixed(const void *row)
{
    (void)row;
    struct pair *pair = ex_pair(IBV_QP_EX_WITH_RDMA_WRITE);
    EXPECT_EQ(post_op(pair, IBV_WR_RDMA_READ, 8), 0);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair->a.qp);
    ibv_wr_start(qp);
    write_one(qp, pair, 1);
    EXPECT_EQ(ibv_wr_complete(qp), 0);
    EXPECT_EQ(next_wc(pair->a.cq).opcode, IBV_WC_RDMA_READ);
    EXPECT_EQ(next_wc(pair->a.cq).opcode, IBV_WC_RDMA_WRITE);
}

static void datagram(const void *row)
{
    (void)row;
    struct pair *pair =
        new_pair(&(struct options){ .type = IBV_QPT_UD, .ops = IBV_QP_EX_WITH_SEND });
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair->a.qp);
    EXPECT_EQ(post_recv(&pair->b, 42, 0, 100), 0);
    ibv_wr_start(qp);
    qp->wr_id = 1, qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(qp);
    ibv_wr_set_ud_addr(qp, new_ah(pair->pd), pair->b.qp->qp_num, QKEY);
    ibv_wr_set_sge(qp, pair->a.mr->lkey, (uintptr_t)pair->a.bytes, 8);
    EXPECT_EQ(ibv_wr_complete(qp), 0);
    EXPECT_EQ(next_wc(pair->b.cq).byte_len, 48);
}

static void window(const void *row)
{
    (void)row;
    struct pair *pair = ex_pair(IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV);
    struct ibv_mr *mr = new_mr(pair->pd, pair->a.bytes, SIZE, LW | BIND);
    struct ibv_mw *mw = KEEP(ibv_alloc_mw(pair->pd, IBV_MW_TYPE_2), ibv_dealloc_mw);
    struct ibv_mw_bind_info info = { mr, (uintptr_t)pair->a.bytes, 64, RW };
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair->a.qp);
    uint32_t rkey = ibv_inc_rkey(mw->rkey);
    ibv_wr_start(qp);
    qp->wr_id = 1, qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_bind_mw(qp, mw, rkey, &info);
    qp->wr_id = 2;
    ibv_wr_local_inv(qp, rkey);
    EXPECT_EQ(ibv_wr_complete(qp), 0);
    EXPECT_EQ(next_wc(pair->a.cq).opcode, IBV_WC_BIND_MW);
    struct ibv_wc wc = next_wc(pair->a.cq);
    EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_LOCAL_INV);
}

void wr_cases(void)
{
    static const char reference[] = "ibv_wr_post(3)";
    static struct row rows[ROWS(ops) * SETTERS];
    for (unsigned i = 0; i < ROWS(rows); i++) {
        rows[i] = (struct row){ &ops[i / SETTERS], i % SETTERS };
        if (rows[i].op->reads && rows[i].setter >= INLINE) continue;
        /* An atomic has one SGE of eight bytes. */
        if (rows[i].op->wc >= IBV_WC_COMP_SWAP && rows[i].op->wc <= IBV_WC_FETCH_ADD
            && rows[i].setter != SGE)
            continue;
        test(reference, op, &rows[i], "wr/op: %s, %s", rows[i].op->name, setters[rows[i].setter]);
    }
    test(reference, window, NULL, "wr/op: bind_mw, local_inv");
    test(reference, datagram, NULL, "wr/op: send, set_ud_addr");
    test(reference, batch, NULL, "wr/batch: ten, executed together");
    test(reference, aborted, NULL, "wr/batch: aborted");
    test(reference, full, NULL, "wr/batch: larger than the queue");
    for (unsigned i = 0; i < ROWS(wrongs); i++)
        test(reference, wrong, &wrongs[i], "wr/batch: %s", wrongs[i].name);
    test(reference, unsignaled, NULL, "wr/flags: unsignaled");
    test(reference, mixed, NULL, "wr/mixed: with ibv_post_send");
    for (unsigned i = 0; i < ROWS(creations); i++)
        test("ibv_create_qp_ex(3)", refused, &creations[i], "wr/create: %s", creations[i].name);
    test("ibv_qp_to_qp_ex(3)", plain, NULL, "wr/create: a QP without send_ops_flags");
}
