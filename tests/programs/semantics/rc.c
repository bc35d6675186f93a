/* RC operations that succeed: lengths, SGEs, inline data, atomics, fences, completions. */
#include "semantics.h"

enum { MTU = 1024 };
static const uint32_t lengths[] = { 0, 1, MTU - 1, MTU, MTU + 1, 2 * MTU, 64 * MTU + 3 };

static const struct op {
    const char *name;
    enum ibv_wr_opcode opcode;
    bool receives, imm;
    enum ibv_wc_opcode wc;
} ops[] = {
    { "SEND", IBV_WR_SEND, true, false, IBV_WC_SEND },
    { "SEND with immediate", IBV_WR_SEND_WITH_IMM, true, true, IBV_WC_SEND },
    { "WRITE", IBV_WR_RDMA_WRITE, false, false, IBV_WC_RDMA_WRITE },
    { "WRITE with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, true, true, IBV_WC_RDMA_WRITE },
    { "READ", IBV_WR_RDMA_READ, false, false, IBV_WC_RDMA_READ },
};

struct length_row { const struct op *op; uint32_t length; };

static void check_receive(struct pair *pair, const struct op *op, uint32_t length)
{
    struct ibv_wc wc = next_wc(pair->b.cq);
    EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, 42);
    bool write = op->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    EXPECT_EQ(wc.opcode, write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
    EXPECT_EQ(wc.byte_len, length);
    EXPECT_EQ(wc.qp_num, pair->b.qp->qp_num);
    EXPECT_EQ(wc.wc_flags & IBV_WC_WITH_IMM, op->imm ? IBV_WC_WITH_IMM : 0);
    if (op->imm) EXPECT_EQ(wc.imm_data, htobe32(0x12345678));
}

static void length(const void *row)
{
    const struct length_row *length = row;
    const struct op *op = length->op;
    struct pair *pair = new_pair(NULL);
    fill(pair->a.bytes, SIZE, 1);
    fill(pair->b.bytes, SIZE, 2);
    char *before = memcpy(new_bytes(SIZE), pair->b.bytes, SIZE);
    char *source = memcpy(new_bytes(SIZE), pair->a.bytes, SIZE);
    if (op->receives) EXPECT_EQ(post_recv(&pair->b, 42, 0, length->length), 0);
    EXPECT_EQ(post_op(pair, op->opcode, length->length), 0);
    struct ibv_wc wc = next_wc(pair->a.cq);
    EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, op->wc);
    EXPECT_EQ(wc.wr_id, 7);
    if (op->opcode == IBV_WR_RDMA_READ) EXPECT_EQ(wc.byte_len, length->length);
    if (op->receives) check_receive(pair, op, length->length);
    /* The bytes arrive, and nothing else changes. */
    bool read = op->opcode == IBV_WR_RDMA_READ;
    memcpy(read ? source : before, read ? before : source, length->length);
    EXPECT(memcmp(pair->b.bytes, before, SIZE) == 0);
    EXPECT(memcmp(pair->a.bytes, source, SIZE) == 0);
}

/* ---- Scatter and gather. */

static const struct sges { const char *name; int count; uint32_t length; int empty; } sges[] = {
    { "one of 3000 bytes", 1, 3000, -1 }, { "4 of 700 bytes", 4, 700, -1 },
    { "4 of 1 byte", 4, 1, -1 }, { "4, the second empty", 4, 1500, 1 },
    { "4, the last empty", 4, 1500, 3 }, { "none", 0, 0, -1 },
};

struct sge_row { const struct op *op; const struct sges *sges; };

static void scatter(const void *row)
{
    const struct op *op = ((const struct sge_row *)row)->op;
    const struct sges *list = ((const struct sge_row *)row)->sges;
    struct pair *pair = new_pair(NULL);
    char *joined = new_bytes(SIZE), *far = pair->b.bytes;
    fill(pair->a.bytes, SIZE, 3);
    fill(pair->b.bytes, SIZE, 4);
    struct ibv_sge gather[4];
    uint32_t total = 0;
    bool read = op->opcode == IBV_WR_RDMA_READ;
    for (int i = 0; i < list->count; i++) {
        uint32_t part = i == list->empty ? 0 : list->length;
        gather[i] = sge_of(pair->a.mr, pair->a.bytes + 10000 * i, part);
        memcpy(joined + total, pair->a.bytes + 10000 * i, part);
        total += part;
    }
    if (op->receives) EXPECT_EQ(post_recv(&pair->b, 42, 0, SIZE), 0);
    struct ibv_send_wr wr = { .opcode = op->opcode, .sg_list = gather, .num_sge = list->count,
        .wr.rdma = { (uintptr_t)far, pair->b.mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    if (op->receives) EXPECT_EQ(next_wc(pair->b.cq).byte_len, total);
    if (!read) {
        EXPECT(memcmp(far, joined, total) == 0);
        return;
    }
    for (int i = 0; i < list->count; far += gather[i++].length)
        EXPECT(memcmp((char *)(uintptr_t)gather[i].addr, far, gather[i].length) == 0);
}

static void scatter_receive(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    fill(pair->a.bytes, 5000, 5);
    struct ibv_sge list[4];
    for (int i = 0; i < 4; i++) list[i] = sge_of(pair->b.mr, pair->b.bytes + 10000 * i, 1300);
    struct ibv_recv_wr wr = { .wr_id = 42, .sg_list = list, .num_sge = 4 }, *bad;
    EXPECT_EQ(ibv_post_recv(pair->b.qp, &wr, &bad), 0);
    EXPECT_EQ(post_op(pair, IBV_WR_SEND, 5000), 0);
    EXPECT_EQ(next_wc(pair->b.cq).byte_len, 5000);
    for (int i = 0; i < 4; i++)
        EXPECT(memcmp(pair->b.bytes + 10000 * i, pair->a.bytes + 1300 * i, i < 3 ? 1300 : 1100) ==
               0);
    EXPECT(pair->b.bytes[31100] == 0);
}

/* ---- Inline data. */

static const struct inlined { const char *name; uint32_t length; } inlines[] = {
    { "nothing", 0 }, { "1 byte", 1 }, { "64 bytes", 64 },
};

/* The memory need not be registered, and may change as soon as the request is posted. */
static void inlined(const void *row)
{
    uint32_t length = ((const struct inlined *)row)->length;
    struct pair *pair = new_pair(&(struct options){ .cap = { .max_inline_data = 64 } });
    char data[64], copy[64];
    fill(data, 64, 6);
    memcpy(copy, data, 64);
    struct ibv_sge sge = { (uintptr_t)data, length, 0 };
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .send_flags = IBV_SEND_INLINE, .wr.rdma = { (uintptr_t)pair->b.bytes, pair->b.mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    memset(data, 0, 64);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT(memcmp(pair->b.bytes, copy, length) == 0);
}

/* ---- Atomics. */

static const struct atomic {
    const char *name;
    bool swap;
    uint64_t before, first, second, after;
} atomics[] = {
    { "compare and swap, equal", true, 5, 5, 9, 9 },
    { "compare and swap, not equal", true, 5, 6, 9, 5 },
    { "compare and swap, 64 bits", true, 1ull << 63 | 1, 1ull << 63 | 1, ~0ull, ~0ull },
    { "fetch and add", false, 5, 7, 0, 12 },
    { "fetch and add, across 32 bits", false, 0xffffffff, 1, 0, 0x100000000 },
    { "fetch and add, across 64 bits", false, ~0ull, 2, 0, 1 },
};

static void atomic(const void *row)
{
    const struct atomic *atomic = row;
    struct pair *pair = new_pair(NULL);
    uint64_t *target = (uint64_t *)(pair->b.bytes + 64), *result = (uint64_t *)pair->a.bytes;
    *target = atomic->before;
    struct ibv_sge sge = sge_of(pair->a.mr, result, 8);
    struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1,
        .opcode = atomic->swap ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD,
        .wr.atomic = { (uintptr_t)target, atomic->first, atomic->second, pair->b.mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    struct ibv_wc wc = next_wc(pair->a.cq);
    EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, atomic->swap ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD);
    EXPECT(*result == atomic->before && *target == atomic->after);
}

/* ---- Order and completions. */

static void fence(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    for (int round = 0; round < 20; round++) {
        memset(pair->b.bytes, round + 1, 8192);
        struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 8192);
        struct ibv_send_wr write = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
            .send_flags = IBV_SEND_FENCE | IBV_SEND_SIGNALED,
            .wr.rdma = { (uintptr_t)pair->b.bytes + 8192, pair->b.mr->rkey } };
        struct ibv_send_wr read = { .opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1,
            .next = &write, .wr.rdma = { (uintptr_t)pair->b.bytes, pair->b.mr->rkey } };
        EXPECT_EQ(post(&pair->a, &read), 0);
        EXPECT_EQ(next_wc(pair->a.cq).opcode, IBV_WC_RDMA_READ);
        EXPECT_EQ(next_wc(pair->a.cq).opcode, IBV_WC_RDMA_WRITE);
        EXPECT(memcmp(pair->b.bytes, pair->b.bytes + 8192, 8192) == 0);
    }
}

static void unsignaled(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(&(struct options){ .unsignaled = true });
    for (int i = 0; i < 100; i++) {
        struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 8);
        struct ibv_send_wr wr = { .wr_id = i,
                                  .opcode = IBV_WR_RDMA_WRITE,
                                  .sg_list = &sge,
                                  .num_sge = 1,
                                  .wr.rdma = { (uintptr_t)pair->b.bytes, pair->b.mr->rkey } },
                           *bad;
        if (i % 8 == 7) wr.send_flags = IBV_SEND_SIGNALED;
        EXPECT_EQ(ibv_post_send(pair->a.qp, &wr, &bad), 0);
        if (i % 8 == 7) EXPECT_EQ(next_wc(pair->a.cq).wr_id, i);
    }
    EXPECT_NO_WC(pair->a.cq);
}

static void sig_all(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    struct ibv_send_wr wr = { .wr_id = 8, .opcode = IBV_WR_RDMA_WRITE }, *bad;
    EXPECT_EQ(ibv_post_send(pair->a.qp, &wr, &bad), 0);
    EXPECT_EQ(next_wc(pair->a.cq).wr_id, 8);
}

static void order(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
        IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND };
    for (int i = 0; i < 3; i++) EXPECT_EQ(post_recv(&pair->b, i, 4096, 100), 0);
    for (int i = 0; i < 12; i++) EXPECT_EQ(post_op(pair, opcodes[i % 4], 8), 0);
    static const enum ibv_wc_opcode expected[] = { IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE,
        IBV_WC_FETCH_ADD, IBV_WC_SEND };
    for (int i = 0; i < 12; i++) EXPECT_EQ(next_wc(pair->a.cq).opcode, expected[i % 4]);
    for (int i = 0; i < 3; i++) EXPECT_EQ(next_wc(pair->b.cq).wr_id, i);
}

/* More READs than may be outstanding. */
static void many_reads(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(&(struct options){ .max_rd_atomic = 1 });
    fill(pair->b.bytes, SIZE, 7);
    for (int i = 0; i < 16; i++) {
        struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes + 5000 * i, 5000);
        struct ibv_send_wr wr = { .wr_id = i,
                                  .opcode = IBV_WR_RDMA_READ,
                                  .sg_list = &sge,
                                  .num_sge = 1,
                                  .wr.rdma = { (uintptr_t)pair->b.bytes + 5000 * i,
                                               pair->b.mr->rkey } };
        EXPECT_EQ(post(&pair->a, &wr), 0);
    }
    for (int i = 0; i < 16; i++) EXPECT_EQ(next_wc(pair->a.cq).wr_id, i);
    EXPECT(memcmp(pair->a.bytes, pair->b.bytes, 16 * 5000) == 0);
}

static void rnr_then_receive(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    EXPECT_EQ(post_op(pair, IBV_WR_SEND, 100), 0);
    EXPECT_NO_WC(pair->a.cq);
    EXPECT_EQ(post_recv(&pair->b, 42, 0, 100), 0);
    EXPECT_STATUS(next_wc(pair->b.cq).status, IBV_WC_SUCCESS);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
}

static void in_rtr(const void *row)
{
    (void)row;
    struct options options = { .pd = new_pd(), .cq = new_cq(64) };
    struct ibv_qp *a = new_qp(&options), *b = new_qp(&options);
    EXPECT_EQ(to_init(b, &options), 0);
    EXPECT_EQ(to_rtr(b, a->qp_num, &options), 0);
    connect_qp(a, b->qp_num, &options);
    struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv;
    EXPECT_EQ(ibv_post_recv(b, &recv, &bad_recv), 0);
    struct ibv_send_wr wr = { .wr_id = 2, .opcode = IBV_WR_SEND }, *bad;
    EXPECT_EQ(ibv_post_send(a, &wr, &bad), 0);
    int seen = next_wc(options.cq).wr_id + next_wc(options.cq).wr_id;
    EXPECT_EQ(seen, 3);
    EXPECT_STATE(b, IBV_QPS_RTR);
}

static void itself(const void *row)
{
    (void)row;
    struct options options = { .pd = new_pd(), .cq = new_cq(64) };
    struct ibv_qp *qp = new_qp(&options);
    connect_qp(qp, qp->qp_num, &options);
    char *bytes = new_bytes(8192);
    struct ibv_mr *mr = new_mr(options.pd, bytes, 8192, ALL);
    fill(bytes, 4096, 8);
    struct ibv_sge sge = sge_of(mr, bytes, 4096);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uintptr_t)bytes + 4096, mr->rkey } }, *bad;
    EXPECT_EQ(ibv_post_send(qp, &wr, &bad), 0);
    EXPECT_STATUS(next_wc(options.cq).status, IBV_WC_SUCCESS);
    EXPECT(memcmp(bytes, bytes + 4096, 4096) == 0);
}

static const enum ibv_mtu mtus[] = { IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048,
                                     IBV_MTU_4096 };

static void mtu(const void *row)
{
    enum ibv_mtu mtu = *(const enum ibv_mtu *)row;
    if (mtu > port.active_mtu) skip("above the port's MTU");
    struct pair *pair = new_pair(&(struct options){ .mtu = mtu });
    fill(pair->a.bytes, 50001, mtu);
    EXPECT_EQ(post_op(pair, IBV_WR_RDMA_WRITE, 50001), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT(memcmp(pair->a.bytes, pair->b.bytes, 50001) == 0);
    memset(pair->a.bytes, 0, 50001);
    EXPECT_EQ(post_op(pair, IBV_WR_RDMA_READ, 50001), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT(memcmp(pair->a.bytes, pair->b.bytes, 50001) == 0);
}

void rc_cases(void)
{
    static struct length_row rows[ROWS(ops) * ROWS(lengths)];
    for (unsigned i = 0; i < ROWS(rows); i++) {
        rows[i] = (struct length_row){ &ops[i / ROWS(lengths)], lengths[i % ROWS(lengths)] };
        test("ibv_post_send(3), ibv_poll_cq(3)", length, &rows[i], "rc/length: %s of %u bytes",
             rows[i].op->name, rows[i].length);
    }
    static struct sge_row sge_rows[3 * ROWS(sges)];
    for (unsigned i = 0; i < ROWS(sge_rows); i++) {
        sge_rows[i] = (struct sge_row){ &ops[i / ROWS(sges) * 2], &sges[i % ROWS(sges)] };
        test("ibv_post_send(3)", scatter, &sge_rows[i], "rc/sges: %s, %s", sge_rows[i].op->name,
             sge_rows[i].sges->name);
    }
    test("ibv_post_recv(3)", scatter_receive, NULL, "rc/sges: a receive of 4");
    for (unsigned i = 0; i < ROWS(inlines); i++)
        test("ibv_post_send(3)", inlined, &inlines[i], "rc/inline: %s", inlines[i].name);
    for (unsigned i = 0; i < ROWS(atomics); i++)
        test("ibv_post_send(3), IBTA 9.4.5", atomic, &atomics[i], "rc/atomic: %s", atomics[i].name);
    for (unsigned i = 0; i < ROWS(mtus); i++)
        test("ibv_modify_qp(3)", mtu, &mtus[i], "rc/mtu: %d bytes", 128 << mtus[i]);
    test("ibv_post_send(3)", fence, NULL, "rc/fence: a WRITE of data that a READ returns");
    test("ibv_post_send(3)", unsignaled, NULL, "rc/signal: unsignaled requests");
    test("ibv_create_qp(3)", sig_all, NULL, "rc/signal: sq_sig_all");
    test("IBTA 9.5", order, NULL, "rc/order: READ, WRITE, atomic, SEND");
    test("ibv_modify_qp(3)", many_reads, NULL, "rc/reads: more than max_rd_atomic");
    test("ibv_modify_qp(3), IBTA 9.7.5", rnr_then_receive, NULL,
         "rc/rnr: a receive that comes late");
    test("IBTA 10.3.1", in_rtr, NULL, "rc/rtr: a QP in RTR receives");
    test("ibv_modify_qp(3)", itself, NULL, "rc/self: a QP connected with itself");
}
