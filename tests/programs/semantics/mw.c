/* Memory windows of both types: binding, ranges, rights, invalidation. */
#include "semantics.h"

/* A pair, a region of the target that may be bound to, and a window. */
struct window {
    struct pair *pair;
    struct ibv_mr *mr;
    struct ibv_mw *mw;
    uint32_t rkey;
};

static struct window new_window(enum ibv_mw_type type, int access)
{
    struct window window = { .pair = new_pair(NULL) };
    window.mr = new_mr(window.pair->pd, window.pair->b.bytes, SIZE, access);
    window.mw = KEEP(ibv_alloc_mw(window.pair->pd, type), ibv_dealloc_mw);
    window.rkey = window.mw->rkey;
    return window;
}

/* Binds by ibv_bind_mw or by a request, as the type needs, and returns the status. */
static enum ibv_wc_status bind(struct window *window, size_t offset, size_t length, int access)
{
    struct ibv_mw_bind_info info = { .mr = window->mr, .length = length, .mw_access_flags = access,
        .addr = access & IBV_ACCESS_ZERO_BASED ? (uintptr_t)window->mr->addr + offset
                                               : (uintptr_t)window->pair->b.bytes + offset };
    struct end *b = &window->pair->b;
    struct ibv_wc wc;
    if (window->mw->type == IBV_MW_TYPE_1) {
        struct ibv_mw_bind request = { .wr_id = 5,
                                       .send_flags = IBV_SEND_SIGNALED,
                                       .bind_info = info };
        NEED((errno = ibv_bind_mw(b->qp, window->mw, &request)) == 0);
        window->rkey = window->mw->rkey;
        wc = next_wc(b->cq);
    } else {
        window->rkey = ibv_inc_rkey(window->rkey);
        struct ibv_send_wr wr = { .wr_id = 5, .opcode = IBV_WR_BIND_MW,
            .bind_mw = { window->mw, window->rkey, info } };
        NEED((errno = post(b, &wr)) == 0);
        wc = next_wc(b->cq);
        /* With some providers the program has to store the new key, which the next bind needs. */
        if (wc.status == IBV_WC_SUCCESS) window->mw->rkey = window->rkey;
    }
    EXPECT_EQ(wc.wr_id, 5);
    if (wc.status == IBV_WC_SUCCESS) EXPECT_EQ(wc.opcode, IBV_WC_BIND_MW);
    return wc.status;
}

static enum ibv_wc_status reach(struct pair *pair, enum ibv_wr_opcode opcode, uint64_t addr,
                                uint32_t rkey, uint32_t length)
{
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, length);
    struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1 };
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        wr.wr.atomic.remote_addr = addr, wr.wr.atomic.rkey = rkey;
    else wr.wr.rdma.remote_addr = addr, wr.wr.rdma.rkey = rkey;
    NEED((errno = post(&pair->a, &wr)) == 0);
    return next_wc(pair->a.cq).status;
}

static enum ibv_wc_status write_at(struct window *window, size_t offset, uint32_t rkey)
{
    return reach(window->pair, IBV_WR_RDMA_WRITE, (uintptr_t)window->pair->b.bytes + offset, rkey,
                 8);
}

/* ---- Rights. */

static const struct right {
    const char *name;
    enum ibv_mw_type type;
    int access;
} rights[] = {
    { "type 1, write", IBV_MW_TYPE_1, RW }, { "type 1, read", IBV_MW_TYPE_1, RR },
    { "type 1, atomic", IBV_MW_TYPE_1, RA }, { "type 1, everything", IBV_MW_TYPE_1, RW | RR | RA },
    { "type 2, write", IBV_MW_TYPE_2, RW }, { "type 2, read", IBV_MW_TYPE_2, RR },
    { "type 2, atomic", IBV_MW_TYPE_2, RA }, { "type 2, everything", IBV_MW_TYPE_2, RW | RR | RA },
};

static void right(const void *row)
{
    const struct right *right = row;
    static const struct { enum ibv_wr_opcode opcode; int needs; } ops[] = {
        { IBV_WR_RDMA_WRITE, RW }, { IBV_WR_RDMA_READ, RR }, { IBV_WR_ATOMIC_FETCH_AND_ADD, RA } };
    for (unsigned i = 0; i < ROWS(ops); i++) {
        struct window window = new_window(right->type, LW | BIND);
        EXPECT_STATUS(bind(&window, 64, 64, right->access), IBV_WC_SUCCESS);
        uint64_t addr = (uintptr_t)window.pair->b.bytes + 64;
        EXPECT_STATUS(reach(window.pair, ops[i].opcode, addr, window.rkey, 8),
                      right->access & ops[i].needs ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
    }
}

/* ---- Ranges. */

static const struct range { const char *name; int offset, length; bool ok; } ranges[] = {
    { "all", 0, 64, true }, { "the byte ahead", -1, 1, false }, { "the byte behind", 64, 1, false },
    { "the last byte", 63, 1, true }, { "across the end", 60, 8, false },
};

static void range(const void *row, enum ibv_mw_type type)
{
    const struct range *range = row;
    struct window window = new_window(type, LW | BIND);
    EXPECT_STATUS(bind(&window, 4096, 64, RW), IBV_WC_SUCCESS);
    uint64_t addr = (uintptr_t)window.pair->b.bytes + 4096 + range->offset;
    EXPECT_STATUS(reach(window.pair, IBV_WR_RDMA_WRITE, addr, window.rkey, range->length),
                  range->ok ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
}

static void range_1(const void *row) { range(row, IBV_MW_TYPE_1); }
static void range_2(const void *row) { range(row, IBV_MW_TYPE_2); }

/* ---- Binds that are wrong. */

static const struct wrong_bind {
    const char *name;
    int mr_access, access;
    long offset;
} wrong_binds[] = {
    { "a region without MW_BIND", LW, RW, 0 },
    { "write, region without local-write", BIND, RW, 0 },
    { "atomic, region without local-write", BIND, RA, 0 },
    { "beyond the region's end", LW | BIND, RW, SIZE - 63 },
    { "ahead of the region", LW | BIND, RW, -1 },
};

static void wrong_bind(const void *row, enum ibv_mw_type type)
{
    const struct wrong_bind *wrong = row;
    struct window window = new_window(type, wrong->mr_access);
    struct ibv_mw_bind_info info = { window.mr, (uintptr_t)window.pair->b.bytes + wrong->offset, 64,
        wrong->access };
    struct end *b = &window.pair->b;
    int code;
    if (type == IBV_MW_TYPE_1) {
        struct ibv_mw_bind request = { 5, IBV_SEND_SIGNALED, info };
        code = ibv_bind_mw(b->qp, window.mw, &request);
    } else {
        struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW,
            .bind_mw = { window.mw, ibv_inc_rkey(window.rkey), info } };
        code = post(b, &wr);
    }
    /* A provider may find out when the bind is posted. */
    if (code != 0) return EXPECT_EQ(code, EINVAL);
    EXPECT_STATUS(next_wc(b->cq).status, IBV_WC_MW_BIND_ERR);
    EXPECT_STATE(b->qp, IBV_QPS_ERR);
}

static void wrong_bind_1(const void *row) { wrong_bind(row, IBV_MW_TYPE_1); }
static void wrong_bind_2(const void *row) { wrong_bind(row, IBV_MW_TYPE_2); }

static void wrong_function(const void *row)
{
    (void)row;
    struct window one = new_window(IBV_MW_TYPE_1, LW | BIND),
                  two = new_window(IBV_MW_TYPE_2, LW | BIND);
    struct ibv_mw_bind_info info = { two.mr, (uintptr_t)two.pair->b.bytes, 64, RW };
    struct ibv_mw_bind request = { 5, IBV_SEND_SIGNALED, info };
    EXPECT_EQ(ibv_bind_mw(two.pair->b.qp, two.mw, &request), EINVAL);
    info.mr = one.mr;
    struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW,
                              .bind_mw = { one.mw, one.mw->rkey + 1, info } };
    EXPECT_EQ(post(&one.pair->b, &wr), EINVAL);
}

static void other_domain(const void *row)
{
    (void)row;
    struct window window = new_window(IBV_MW_TYPE_1, LW | BIND);
    struct ibv_mr *foreign = new_mr(new_pd(), window.pair->b.bytes, SIZE, LW | BIND);
    struct ibv_mw_bind request = { 5, 0, { foreign, (uintptr_t)window.pair->b.bytes, 64, RW } };
    EXPECT_EQ(ibv_bind_mw(window.pair->b.qp, window.mw, &request), EPERM);
}

/* ---- The end of windows. */

static void unbound(const void *row)
{
    const enum ibv_mw_type *type = row;
    struct window window = new_window(*type, LW | BIND);
    EXPECT_STATUS(write_at(&window, 0, window.rkey), IBV_WC_REM_ACCESS_ERR);
}

static void rebind(const void *row)
{
    (void)row;
    struct window window = new_window(IBV_MW_TYPE_1, LW | BIND);
    uint32_t first = window.rkey;
    EXPECT_STATUS(bind(&window, 0, 64, RW), IBV_WC_SUCCESS);
    uint32_t second = window.rkey;
    EXPECT_STATUS(bind(&window, 4096, 64, RW), IBV_WC_SUCCESS);
    EXPECT(first != second && second != window.rkey);
    EXPECT_STATUS(write_at(&window, 4096, window.rkey), IBV_WC_SUCCESS);
    EXPECT_STATUS(write_at(&window, 0, second), IBV_WC_REM_ACCESS_ERR);
}

static void unbind(const void *row)
{
    (void)row;
    struct window window = new_window(IBV_MW_TYPE_1, LW | BIND);
    EXPECT_STATUS(bind(&window, 0, 64, RW), IBV_WC_SUCCESS);
    uint32_t bound = window.rkey;
    EXPECT_STATUS(bind(&window, 0, 0, 0), IBV_WC_SUCCESS);
    EXPECT_EQ(drop(window.mr), 0);
    EXPECT_STATUS(write_at(&window, 0, bound), IBV_WC_REM_ACCESS_ERR);
}

static void holds_region(const void *row)
{
    const enum ibv_mw_type *type = row;
    struct window window = new_window(*type, LW | BIND);
    EXPECT_STATUS(bind(&window, 0, 64, RW), IBV_WC_SUCCESS);
    int code = ibv_dereg_mr(window.mr);
    EXPECT(code == EBUSY || code == EINVAL); /* The man page names no number. */
    EXPECT_EQ(drop(window.mw), 0);
    EXPECT_EQ(drop(window.mr), 0);
}

static void dealloc_ends(const void *row)
{
    const enum ibv_mw_type *type = row;
    struct window window = new_window(*type, LW | BIND);
    EXPECT_STATUS(bind(&window, 0, 64, RW), IBV_WC_SUCCESS);
    uint32_t rkey = window.rkey;
    EXPECT_EQ(drop(window.mw), 0);
    EXPECT_STATUS(write_at(&window, 0, rkey), IBV_WC_REM_ACCESS_ERR);
}

static void bind_twice(const void *row)
{
    (void)row;
    struct window window = new_window(IBV_MW_TYPE_2, LW | BIND);
    EXPECT_STATUS(bind(&window, 0, 64, RW), IBV_WC_SUCCESS);
    EXPECT_STATUS(bind(&window, 0, 64, RW), IBV_WC_MW_BIND_ERR);
}

static void local_invalidate(const void *row)
{
    (void)row;
    struct window window = new_window(IBV_MW_TYPE_2, LW | BIND);
    EXPECT_STATUS(bind(&window, 0, 64, RW), IBV_WC_SUCCESS);
    uint32_t bound = window.rkey;
    EXPECT_STATUS(write_at(&window, 0, bound), IBV_WC_SUCCESS);
    struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = bound };
    EXPECT_EQ(post(&window.pair->b, &wr), 0);
    struct ibv_wc wc = next_wc(window.pair->b.cq);
    EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_LOCAL_INV);
    EXPECT_STATUS(bind(&window, 4096, 64, RW), IBV_WC_SUCCESS);
    EXPECT_STATUS(write_at(&window, 4096, window.rkey), IBV_WC_SUCCESS);
    EXPECT_STATUS(write_at(&window, 0, bound), IBV_WC_REM_ACCESS_ERR);
}

static void remote_invalidate(const void *row)
{
    (void)row;
    struct window window = new_window(IBV_MW_TYPE_2, LW | BIND);
    struct pair *pair = window.pair;
    EXPECT_STATUS(bind(&window, 0, 64, RW), IBV_WC_SUCCESS);
    EXPECT_EQ(post_recv(&pair->b, 9, 8192, 100), 0);
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 10);
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_INV, .sg_list = &sge, .num_sge = 1,
        .invalidate_rkey = window.rkey };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    struct ibv_wc wc = next_wc(pair->b.cq);
    EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wc_flags & IBV_WC_WITH_INV, IBV_WC_WITH_INV);
    EXPECT_EQ(wc.invalidated_rkey, window.rkey);
    EXPECT_EQ(wc.byte_len, 10);
    EXPECT_STATUS(write_at(&window, 0, window.rkey), IBV_WC_REM_ACCESS_ERR);
}

/* A type 2B window belongs to the QP that bound it. */
static void other_qp(const void *row)
{
    (void)row;
    if (!(device.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B)) skip("no type 2B windows");
    struct window window = new_window(IBV_MW_TYPE_2, LW | BIND);
    EXPECT_STATUS(bind(&window, 0, 64, RW), IBV_WC_SUCCESS);
    struct pair *other = new_pair(&(struct options){ .pd = window.pair->pd });
    uint64_t addr = (uintptr_t)window.pair->b.bytes;
    EXPECT_STATUS(reach(other, IBV_WR_RDMA_WRITE, addr, window.rkey, 8), IBV_WC_REM_ACCESS_ERR);
}

static void any_qp(const void *row)
{
    (void)row;
    struct window window = new_window(IBV_MW_TYPE_1, LW | BIND);
    EXPECT_STATUS(bind(&window, 0, 64, RW), IBV_WC_SUCCESS);
    struct pair *other = new_pair(&(struct options){ .pd = window.pair->pd });
    uint64_t addr = (uintptr_t)window.pair->b.bytes;
    EXPECT_STATUS(reach(other, IBV_WR_RDMA_WRITE, addr, window.rkey, 8), IBV_WC_SUCCESS);
}

static void low_bits(const void *row)
{
    (void)row;
    struct window window = new_window(IBV_MW_TYPE_2, LW | BIND);
    uint32_t old = window.rkey;
    struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .bind_mw = { window.mw, ibv_inc_rkey(old),
        { window.mr, (uintptr_t)window.pair->b.bytes, 64, RW } } };
    EXPECT_EQ(post(&window.pair->b, &wr), 0);
    EXPECT_STATUS(next_wc(window.pair->b.cq).status, IBV_WC_SUCCESS);
    EXPECT_STATUS(write_at(&window, 0, ibv_inc_rkey(old)), IBV_WC_SUCCESS);
}

static void zero_based(const void *row)
{
    (void)row;
    struct window window = new_window(IBV_MW_TYPE_2, LW | BIND);
    EXPECT_STATUS(bind(&window, 128, 64, RW | IBV_ACCESS_ZERO_BASED), IBV_WC_SUCCESS);
    fill(window.pair->a.bytes, 8, 1);
    EXPECT_STATUS(reach(window.pair, IBV_WR_RDMA_WRITE, 56, window.rkey, 8), IBV_WC_SUCCESS);
    EXPECT(memcmp(window.pair->b.bytes + 128 + 56, window.pair->a.bytes, 8) == 0);
    EXPECT_STATUS(reach(window.pair, IBV_WR_RDMA_WRITE, 57, window.rkey, 8), IBV_WC_REM_ACCESS_ERR);
}

static void alloc(const void *row)
{
    (void)row;
    struct ibv_pd *pd = new_pd();
    struct ibv_mw *mw = KEEP(ibv_alloc_mw(pd, IBV_MW_TYPE_1), ibv_dealloc_mw);
    EXPECT(mw->pd == pd && mw->context == context && mw->type == IBV_MW_TYPE_1);
    EXPECT_NULL(ibv_alloc_mw(pd, 3), EINVAL);
}

void mw_cases(void)
{
    static const enum ibv_mw_type types[] = { IBV_MW_TYPE_1, IBV_MW_TYPE_2 };
    test("ibv_alloc_mw(3)", alloc, NULL, "mw/alloc: fields, wrong type");
    for (unsigned i = 0; i < ROWS(rights); i++)
        test("ibv_bind_mw(3)", right, &rights[i], "mw/rights: %s", rights[i].name);
    for (unsigned i = 0; i < ROWS(ranges); i++) {
        test("ibv_bind_mw(3)", range_1, &ranges[i], "mw/range: type 1, %s", ranges[i].name);
        test("ibv_post_send(3)", range_2, &ranges[i], "mw/range: type 2, %s", ranges[i].name);
    }
    for (unsigned i = 0; i < ROWS(wrong_binds); i++) {
        const char *name = wrong_binds[i].name;
        test("ibv_bind_mw(3), IBTA 10.6.7", wrong_bind_1, &wrong_binds[i], "mw/wrong: type 1, %s",
             name);
        test("ibv_post_send(3), IBTA 10.6.7", wrong_bind_2, &wrong_binds[i], "mw/wrong: type 2, %s",
             name);
    }
    test("ibv_bind_mw(3), ibv_post_send(3)", wrong_function, NULL,
         "mw/wrong: bound as the other type");
    test("ibv_bind_mw(3)", other_domain, NULL, "mw/wrong: a region of another PD");
    for (unsigned i = 0; i < 2; i++) {
        test("IBTA 10.6.7", unbound, &types[i], "mw/life: type %u, never bound", i + 1);
        test("ibv_dereg_mr(3)", holds_region, &types[i], "mw/life: type %u, holds its region",
             i + 1);
        test("ibv_dealloc_mw(3)", dealloc_ends, &types[i], "mw/life: type %u, deallocated", i + 1);
    }
    test("ibv_bind_mw(3)", rebind, NULL, "mw/life: type 1, bound again");
    test("ibv_bind_mw(3)", unbind, NULL, "mw/life: type 1, unbound by length 0");
    test("IBTA 10.6.7", any_qp, NULL, "mw/life: type 1, reached by any QP of the PD");
    test("IBTA 10.6.7", other_qp, NULL, "mw/life: type 2B, reached by another QP");
    test("IBTA 10.6.7", bind_twice, NULL, "mw/life: type 2, bound while bound");
    test("ibv_post_send(3)", local_invalidate, NULL, "mw/invalidate: LOCAL_INV");
    test("ibv_post_send(3), ibv_poll_cq(3)", remote_invalidate, NULL,
         "mw/invalidate: SEND_WITH_INV");
    test("ibv_inc_rkey(3)", low_bits, NULL, "mw/key: type 2, low bits of the program");
    test("ibv_bind_mw(3)", zero_based, NULL, "mw/zero-based: type 2");
}
