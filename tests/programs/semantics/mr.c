/* Memory regions: access flags, bounds, keys, zero-based and empty ones, ibv_rereg_mr. */
#include "semantics.h"

static const char *names(int access)
{
    static char text[64];
    snprintf(text, sizeof text, "%s%s%s%s%s", access & LW ? " local-write" : "",
             access & RW ? " write" : "", access & RR ? " read" : "",
             access & RA ? " atomic" : "", access & BIND ? " bind" : "");
    return text[0] ? text + 1 : "none";
}

/* ---- The flags of a region, all combinations. */

static const struct { enum ibv_wr_opcode opcode; int needs; } remote_ops[] = {
    { IBV_WR_RDMA_WRITE, RW }, { IBV_WR_RDMA_READ, RR }, { IBV_WR_ATOMIC_FETCH_AND_ADD, RA },
};

/* Requests each remote operation once, with a new pair, and expects what the flags allow. */
static void remote_access(const void *row)
{
    int access = *(const int *)row;
    for (unsigned i = 0; i < ROWS(remote_ops); i++) {
        struct pair *pair = new_pair(NULL);
        struct ibv_mr *mr = new_mr(pair->pd, pair->b.bytes, SIZE, access);
        struct ibv_mr *old = pair->b.mr;
        fill(pair->a.bytes, 8, 1);
        fill(pair->b.bytes, 8, 2);
        uint64_t before = *(uint64_t *)pair->b.bytes, source = *(uint64_t *)pair->a.bytes;
        pair->b.mr = mr;
        EXPECT_EQ(post_op(pair, remote_ops[i].opcode, 8), 0);
        pair->b.mr = old;
        bool may = access & remote_ops[i].needs;
        EXPECT_STATUS(next_wc(pair->a.cq).status, may ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
        uint64_t after = before;
        if (may && i == 0) after = source;
        if (may && i == 2) after = before + 1;
        EXPECT(*(uint64_t *)pair->b.bytes == after);
        EXPECT(*(uint64_t *)pair->a.bytes == (may && i > 0 ? before : source));
    }
}

static void access_refused(const void *row)
{
    struct ibv_pd *pd = new_pd();
    EXPECT_NULL(ibv_reg_mr(pd, new_bytes(4096), 4096, *(const int *)row), EINVAL);
}

/* ---- Bounds. */

static const struct bounds { const char *name; long offset; uint32_t length; bool ok; } bounds[] = {
    { "the first byte", 0, 1, true }, { "the last byte", 4095, 1, true },
    { "all", 0, 4096, true }, { "the byte ahead", -1, 1, false },
    { "the byte behind", 4096, 1, false }, { "one byte too long", 0, 4097, false },
    { "across the end", 4090, 8, false }, { "across the start", -4, 8, false },
    { "no bytes, behind the end", 4097, 0, true },
};

static void remote_bounds(const struct bounds *bounds, enum ibv_wr_opcode opcode)
{
    struct pair *pair = new_pair(NULL);
    char *start = pair->b.bytes + 8192;
    struct ibv_mr *mr = new_mr(pair->pd, start, 4096, ALL);
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, bounds->length);
    struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uintptr_t)start + bounds->offset, mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    enum ibv_wc_status wanted = bounds->ok ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR;
    EXPECT_STATUS(next_wc(pair->a.cq).status, wanted);
}

static void write_bounds(const void *row) { remote_bounds(row, IBV_WR_RDMA_WRITE); }
static void read_bounds(const void *row) { remote_bounds(row, IBV_WR_RDMA_READ); }

static void local_bounds(const void *row)
{
    const struct bounds *bounds = row;
    struct pair *pair = new_pair(NULL);
    char *start = pair->a.bytes + 8192;
    struct ibv_mr *mr = new_mr(pair->pd, start, 4096, LW);
    struct ibv_sge sge = sge_of(mr, start + bounds->offset, bounds->length);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uintptr_t)pair->b.bytes, pair->b.mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    enum ibv_wc_status wanted = bounds->ok ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
    EXPECT_STATUS(next_wc(pair->a.cq).status, wanted);
    EXPECT_STATE(pair->a.qp, bounds->ok ? IBV_QPS_RTS : IBV_QPS_ERR);
    EXPECT_STATE(pair->b.qp, IBV_QPS_RTS);
}

/* ---- Keys. */

enum key { OTHER_PD, CHANGED, GONE, ZERO };
static const struct key_row { const char *name; enum key key; } keys[] = {
    { "of another PD", OTHER_PD }, { "with another last byte", CHANGED },
    { "deregistered", GONE }, { "never given", ZERO },
};

static uint32_t wrong_key(const void *row, struct pair *pair, char *bytes)
{
    enum key key = ((const struct key_row *)row)->key;
    struct ibv_mr *mr = new_mr(key == OTHER_PD ? new_pd() : pair->pd, bytes, SIZE, ALL);
    uint32_t number = mr->rkey;
    if (key == GONE) EXPECT_EQ(drop(mr), 0);
    return key == CHANGED ? number ^ 0x5a : key == ZERO ? 0xfffffff0 : number;
}

static void remote_key(const void *row)
{
    struct pair *pair = new_pair(NULL);
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 8);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uintptr_t)pair->b.bytes, wrong_key(row, pair, pair->b.bytes) } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_REM_ACCESS_ERR);
}

static void local_key(const void *row)
{
    struct pair *pair = new_pair(NULL);
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 8);
    sge.lkey = wrong_key(row, pair, pair->a.bytes);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uintptr_t)pair->b.bytes, pair->b.mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_LOC_PROT_ERR);
}

/* Without LOCAL_WRITE, the device may not store the response to a READ in the region. */
static void read_only(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    struct ibv_mr *mr = new_mr(pair->pd, pair->a.bytes, SIZE, RR);
    struct ibv_sge sge = sge_of(mr, pair->a.bytes, 8);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uintptr_t)pair->b.bytes, pair->b.mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_LOC_PROT_ERR);
    EXPECT_STATE(pair->a.qp, IBV_QPS_ERR);
}

/* ---- Addresses. */

static void at_iova(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    struct ibv_mr *mr = KEEP(ibv_reg_mr_iova(pair->pd, pair->b.bytes, SIZE, 0x7000000000, ALL),
                             ibv_dereg_mr);
    fill(pair->a.bytes, 100, 3);
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 100);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { 0x7000000010, mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT(memcmp(pair->a.bytes, pair->b.bytes + 16, 100) == 0);
    wr.wr.rdma.remote_addr = (uintptr_t)pair->b.bytes;
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_REM_ACCESS_ERR);
}

static void zero_based(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    struct ibv_mr *mr = new_mr(pair->pd, pair->b.bytes + 100, 1000, ALL | IBV_ACCESS_ZERO_BASED);
    EXPECT(mr->addr == pair->b.bytes + 100 && mr->length == 1000);
    fill(pair->a.bytes, 990, 4);
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 990);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { 10, mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT(memcmp(pair->a.bytes, pair->b.bytes + 110, 990) == 0);
    wr.wr.rdma.remote_addr = 11;
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_REM_ACCESS_ERR);
}

static void null_region(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    struct ibv_mr *null = KEEP(ibv_alloc_null_mr(pair->pd), ibv_dereg_mr);
    fill(pair->b.bytes, 100, 5);
    struct ibv_sge sges[] = { sge_of(pair->a.mr, pair->a.bytes, 10), { 0, 80, null->lkey },
        sge_of(pair->a.mr, pair->a.bytes + 90, 10) };
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ, .sg_list = sges, .num_sge = 3,
        .wr.rdma = { (uintptr_t)pair->b.bytes, pair->b.mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT(memcmp(pair->a.bytes, pair->b.bytes, 10) == 0);
    EXPECT(memcmp(pair->a.bytes + 90, pair->b.bytes + 90, 10) == 0 && pair->a.bytes[50] == 0);
    wr.opcode = IBV_WR_RDMA_WRITE;
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    for (int i = 10; i < 90; i++) EXPECT(pair->b.bytes[i] == 0);
}

static void implicit(const void *row)
{
    (void)row;
    struct ibv_device_attr_ex attr;
    NEED(ibv_query_device_ex(context, NULL, &attr) == 0);
    if (!(attr.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT)) skip("no implicit regions");
    struct pair *pair = new_pair(NULL);
    struct ibv_mr *mr = KEEP(ibv_reg_mr(pair->pd, NULL, SIZE_MAX, ALL | IBV_ACCESS_ON_DEMAND),
                             ibv_dereg_mr);
    char *late = new_bytes(4096);
    fill(late, 4096, 6);
    struct ibv_sge sge = sge_of(mr, late, 4096);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uintptr_t)pair->b.bytes, pair->b.mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT(memcmp(late, pair->b.bytes, 4096) == 0);
}

static void fields(const void *row)
{
    (void)row;
    struct ibv_pd *pd = new_pd();
    char *bytes = new_bytes(4096);
    struct ibv_mr *one = new_mr(pd, bytes, 100, ALL), *two = new_mr(pd, bytes, 100, ALL);
    EXPECT(one->addr == bytes && one->length == 100 && one->pd == pd && one->context == context);
    EXPECT(one->lkey != two->lkey && one->rkey != two->rkey);
}

static void unmapped(const void *row)
{
    (void)row;
    EXPECT_NULL((ibv_reg_mr)(new_pd(), (void *)8, 4096, LW), EFAULT);
}

static void read_only_pages(const void *row)
{
    (void)row;
    char *bytes = new_bytes(4096);
    struct ibv_pd *pd = new_pd();
    EXPECT(mprotect(bytes, 4096, PROT_READ) == 0);
    EXPECT_NULL((ibv_reg_mr)(pd, bytes, 4096, LW), EFAULT);
    new_mr(pd, bytes, 4096, RR);
}

static void wraps(const void *row)
{
    (void)row;
    struct ibv_pd *pd = new_pd();
    EXPECT(!(ibv_reg_mr)(pd, new_bytes(4096), SIZE_MAX, LW));
    EXPECT(errno == EINVAL || errno == ENOMEM || errno == EFAULT);
}

static void unknown_access(const void *row)
{
    (void)row;
    struct ibv_pd *pd = new_pd();
    EXPECT(!(ibv_reg_mr)(pd, new_bytes(4096), 4096, LW | 1 << 19));
    EXPECT(errno == EINVAL || errno == EOPNOTSUPP);
    new_mr(pd, new_bytes(4096), 4096, LW | 1 << 29); /* of IBV_ACCESS_OPTIONAL_RANGE */
}

static void relaxed(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    struct ibv_mr *mr = pair->b.mr;
    pair->b.mr = new_mr(pair->pd, pair->b.bytes, SIZE, ALL | IBV_ACCESS_RELAXED_ORDERING);
    EXPECT_EQ(post_op(pair, IBV_WR_RDMA_WRITE, 5000), 0);
    pair->b.mr = mr;
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
}

/* ---- DMA buffers: wrong descriptors, and arguments that are refused before the descriptor is
 * examined. Few kernels let a program make a buffer, so the cases that need one are in
 * tests/programs/extensions.c.
 */

static const struct dmabuf {
    const char *name;
    uint64_t offset, iova;
    int access;
    bool is_memfd;
    int error;
} dmabufs[] = {
    { "a descriptor that is not open", 4096, 0x10000, ALL, false, EBADF },
    { "a descriptor of other memory", 4096, 0x10000, ALL, true, EINVAL },
    { "an IOVA with another page offset", 4096, 0x10040, ALL, false, EINVAL },
    { "memory windows", 4096, 0x10000, LW | BIND, false, EINVAL },
    { "zero-based", 4096, 0x10000, LW | IBV_ACCESS_ZERO_BASED, false, EINVAL },
    { "on-demand", 4096, 0x10000, LW | IBV_ACCESS_ON_DEMAND, false, EINVAL },
    { "remote write without local", 4096, 0x10000, RW, false, EINVAL },
};

static void dmabuf_refused(const void *row)
{
    const struct dmabuf *wrong = row;
    struct ibv_pd *pd = new_pd();
    int memory = memfd_create("memory", 0), fd = wrong->is_memfd ? memory : -1;
    EXPECT(memory >= 0 && ftruncate(memory, 8192) == 0);
    errno = 0;
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, wrong->offset, 4096, wrong->iova, fd, wrong->access);
    int error = errno;
    close(memory);
    EXPECT(!mr);
    if (error == EOPNOTSUPP || error == ENOSYS) skip("no regions of DMA buffers");
    EXPECT_EQ(error, wrong->error);
}

/* ---- ibv_rereg_mr. */

enum {
    T = IBV_REREG_MR_CHANGE_TRANSLATION,
    P = IBV_REREG_MR_CHANGE_PD,
    A = IBV_REREG_MR_CHANGE_ACCESS
};
static const struct rereg { const char *name; int flags, access, error; } reregs[] = {
    { "translation", T, 0, 0 },
    { "domain", P, 0, 0 },
    { "access", A, LW | RW, 0 },
    { "translation and domain", T | P, 0, 0 },
    { "translation and access", T | A, LW | RW, 0 },
    { "domain and access", P | A, LW | RW, 0 },
    { "everything", T | P | A, LW | RW, 0 },
    { "nothing", 0, 0, IBV_REREG_MR_ERR_INPUT },
    { "an unknown flag", 8, 0, IBV_REREG_MR_ERR_INPUT },
    { "remote write without local", A, RW, IBV_REREG_MR_ERR_CMD },
};

/* The region of one pair changes to the memory, the domain or the rights that the other pair
 * needs.
 */
static void rereg(const void *row)
{
    const struct rereg *change = row;
    struct pair *first = new_pair(NULL), *second = new_pair(NULL);
    struct ibv_mr *mr = new_mr(first->pd, first->b.bytes, SIZE, change->flags & A ? LW : ALL);
    errno = 0;
    int code = ibv_rereg_mr(mr, change->flags, change->flags & P ? second->pd : NULL,
                            change->flags & T ? second->b.bytes : NULL,
                            change->flags & T ? SIZE : 0, change->access);
    if (code == IBV_REREG_MR_ERR_CMD && (errno == EOPNOTSUPP || errno == ENOSYS)) skip("no rereg");
    EXPECT_EQ(code, change->error);
    if (change->error) return;
    EXPECT(mr->pd == (change->flags & P ? second : first)->pd);
    EXPECT(mr->addr == (change->flags & T ? second : first)->b.bytes && mr->length == SIZE);
    struct pair *pair = change->flags & P ? second : first;
    fill(pair->a.bytes, 100, change->flags);
    struct ibv_sge sge = sge_of(pair->a.mr, pair->a.bytes, 100);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uintptr_t)mr->addr, mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT(memcmp(pair->a.bytes, mr->addr, 100) == 0);
    if (!(change->flags & P)) return;
    EXPECT_EQ(post(&first->a, &(struct ibv_send_wr){ .opcode = IBV_WR_RDMA_READ, .num_sge = 1,
        .sg_list = &(struct ibv_sge){ (uintptr_t)first->a.bytes, 8, first->a.mr->lkey },
        .wr.rdma = { (uintptr_t)mr->addr, mr->rkey } }), 0);
    EXPECT_STATUS(next_wc(first->a.cq).status, IBV_WC_REM_ACCESS_ERR);
}

static void rereg_takes_away(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    int code = ibv_rereg_mr(pair->b.mr, A, NULL, NULL, 0, LW | RR);
    if (code == IBV_REREG_MR_ERR_CMD && (errno == EOPNOTSUPP || errno == ENOSYS)) skip("no rereg");
    EXPECT_EQ(code, 0);
    EXPECT_EQ(post_op(pair, IBV_WR_RDMA_WRITE, 8), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_REM_ACCESS_ERR);
}

void mr_cases(void)
{
    test("ibv_reg_mr(3)", fields, NULL, "mr/reg: fields; two registrations differ");
    test("ibv_reg_mr(3)", unmapped, NULL, "mr/reg: memory that is not mapped");
    test("ibv_reg_mr(3)", read_only_pages, NULL, "mr/reg: read-only pages");
    test("ibv_reg_mr(3)", wraps, NULL, "mr/reg: across the end of the address space");
    test("ibv_reg_mr(3)", unknown_access, NULL, "mr/reg: unknown flags, optional flags");
    test("ibv_reg_mr(3)", relaxed, NULL, "mr/reg: relaxed ordering");
    static int combinations[32];
    static const int flags[] = { LW, RW, RR, RA, BIND };
    for (int i = 0; i < 32; i++) {
        for (int bit = 0; bit < 5; bit++)
            if (i & 1 << bit) combinations[i] |= flags[bit];
        bool refused = combinations[i] & (RW | RA) && !(combinations[i] & LW);
        test("ibv_reg_mr(3)", refused ? access_refused : remote_access, &combinations[i],
             "mr/access: %s%s", names(combinations[i]), refused ? ": refused" : "");
    }
    for (unsigned i = 0; i < ROWS(bounds); i++) {
        test("IBTA 10.6.3, C9-88", write_bounds, &bounds[i], "mr/bounds: WRITE, %s",
             bounds[i].name);
        test("IBTA 10.6.3, C9-88", read_bounds, &bounds[i], "mr/bounds: READ, %s", bounds[i].name);
        if (bounds[i].length > 0)
            test("IBTA 10.6.3", local_bounds, &bounds[i], "mr/bounds: local, %s", bounds[i].name);
    }
    for (unsigned i = 0; i < ROWS(keys); i++) {
        test("IBTA 10.6.3", remote_key, &keys[i], "mr/key: R_Key %s", keys[i].name);
        test("IBTA 10.6.3", local_key, &keys[i], "mr/key: L_Key %s", keys[i].name);
    }
    test("ibv_reg_mr(3)", read_only, NULL, "mr/access: READ into a region without local-write");
    test("ibv_reg_mr_iova(3)", at_iova, NULL, "mr/iova: remote address");
    test("ibv_reg_mr(3)", zero_based, NULL, "mr/zero-based: remote address, bounds");
    test("ibv_alloc_null_mr(3)", null_region, NULL, "mr/null: reads as zeros, discards writes");
    test("ibv_reg_mr(3)", implicit, NULL, "mr/implicit: memory mapped later");
    for (unsigned i = 0; i < ROWS(dmabufs); i++)
        test("ibv_reg_mr(3)", dmabuf_refused, &dmabufs[i], "mr/dmabuf: %s", dmabufs[i].name);
    for (unsigned i = 0; i < ROWS(reregs); i++)
        test("ibv_rereg_mr(3)", rereg, &reregs[i], "mr/rereg: %s", reregs[i].name);
    test("ibv_rereg_mr(3)", rereg_takes_away, NULL, "mr/rereg: rights taken away");
}
