/* Extended completion queues: fields, flags, polling, moderation. */
#include "semantics.h"

static struct ibv_cq_ex *new_cq_ex(uint64_t wc_flags)
{
    struct ibv_cq_init_attr_ex init = { .cqe = 64, .wc_flags = wc_flags };
    errno = 0;
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
    if (!cq && errno == EINVAL && wc_flags & ~IBV_WC_STANDARD_FLAGS) skip("no such field");
    return KEEP(cq, ibv_destroy_cq);
}

static int begin(struct ibv_cq_ex *cq)
{
    struct ibv_poll_cq_attr none = { 0 };
    int code = ENOENT;
    for (int i = 0; i < 100000 && code == ENOENT; i++, usleep(i > 200 ? 100 : 0))
        code = ibv_start_poll(cq, &none);
    return code;
}

/* A SEND of 100 bytes with immediate data, whose receive is polled. */
static struct pair *received(struct ibv_cq_ex *cq)
{
    struct pair *pair = new_pair(NULL);
    struct ibv_cq *narrow = ibv_cq_ex_to_cq(cq);
    struct ibv_qp_init_attr init = { .send_cq = narrow, .recv_cq = narrow, .qp_type = IBV_QPT_RC,
        .cap = { 4, 4, 1, 1, 0 } };
    pair->b.qp = KEEP(ibv_create_qp(pair->pd, &init), ibv_destroy_qp);
    pair->a.qp = new_qp(&(struct options){ .pd = pair->pd, .cq = pair->a.cq });
    connect_qp(pair->b.qp, pair->a.qp->qp_num, &(struct options){ 0 });
    connect_qp(pair->a.qp, pair->b.qp->qp_num, &(struct options){ 0 });
    EXPECT_EQ(post_recv(&pair->b, 77, 0, 1000), 0);
    EXPECT_EQ(post_op(pair, IBV_WR_SEND_WITH_IMM, 100), 0);
    EXPECT_EQ(begin(cq), 0);
    EXPECT_EQ(cq->wr_id, 77);
    EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
    return pair;
}

static void byte_len(struct ibv_cq_ex *cq, struct pair *pair)
{
    (void)pair;
    EXPECT_EQ(ibv_wc_read_byte_len(cq), 100);
}

static void imm(struct ibv_cq_ex *cq, struct pair *pair)
{
    (void)pair;
    EXPECT_EQ(ibv_wc_read_imm_data(cq), htobe32(0x12345678));
    EXPECT_EQ(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
}

static void qp_num(struct ibv_cq_ex *cq, struct pair *pair)
{
    EXPECT_EQ(ibv_wc_read_qp_num(cq), pair->b.qp->qp_num);
}

static void path(struct ibv_cq_ex *cq, struct pair *pair)
{
    (void)pair;
    EXPECT_EQ(ibv_wc_read_dlid_path_bits(cq), 0);
}

static void slid(struct ibv_cq_ex *cq, struct pair *pair)
{
    (void)pair;
    EXPECT_EQ(ibv_wc_read_slid(cq), 0);
}

static void timestamp(struct ibv_cq_ex *cq, struct pair *pair)
{
    (void)pair;
    EXPECT(ibv_wc_read_completion_ts(cq) != 0);
}

static void wallclock(struct ibv_cq_ex *cq, struct pair *pair)
{
    (void)pair;
    long long age =
        (long long)time(NULL) - (long long)(ibv_wc_read_completion_wallclock_ns(cq) / 1000000000);
    EXPECT(age >= -2 && age < 30);
}

static const struct field {
    const char *name;
    uint64_t flag;
    void (*check)(struct ibv_cq_ex *, struct pair *);
} fields[] = {
    { "byte_len", IBV_WC_EX_WITH_BYTE_LEN, byte_len }, { "imm_data", IBV_WC_EX_WITH_IMM, imm },
    { "qp_num", IBV_WC_EX_WITH_QP_NUM, qp_num }, { "slid", IBV_WC_EX_WITH_SLID, slid },
    { "dlid_path_bits", IBV_WC_EX_WITH_DLID_PATH_BITS, path },
    { "timestamp", IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, timestamp },
    { "wall-clock timestamp", IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, wallclock },
};

static void field(const void *row)
{
    const struct field *field = row;
    struct ibv_cq_ex *cq = new_cq_ex(field->flag);
    struct pair *pair = received(cq);
    field->check(cq, pair);
    EXPECT_EQ(ibv_next_poll(cq), ENOENT);
    ibv_end_poll(cq);
    EXPECT_EQ(drop(pair->b.qp), 0);
}

static void empty(const void *row)
{
    (void)row;
    struct ibv_cq_ex *cq = new_cq_ex(IBV_WC_STANDARD_FLAGS);
    struct ibv_poll_cq_attr attr = { 0 };
    EXPECT_EQ(ibv_start_poll(cq, &attr), ENOENT);
    attr.comp_mask = 1;
    EXPECT_EQ(ibv_start_poll(cq, &attr), EINVAL);
}

/* ibv_poll_cq and ibv_start_poll take completions of the same queue. */
static void both_interfaces(const void *row)
{
    (void)row;
    struct ibv_cq_ex *cq = new_cq_ex(IBV_WC_STANDARD_FLAGS);
    struct pair *pair = new_pair(&(struct options){ .cq = ibv_cq_ex_to_cq(cq) });
    for (int i = 0; i < 3; i++) EXPECT_EQ(post_op(pair, IBV_WR_RDMA_WRITE, 8), 0);
    EXPECT_STATUS(next_wc(ibv_cq_ex_to_cq(cq)).status, IBV_WC_SUCCESS);
    EXPECT_EQ(begin(cq), 0);
    EXPECT_EQ(ibv_wc_read_opcode(cq), IBV_WC_RDMA_WRITE);
    ibv_end_poll(cq);
    EXPECT_STATUS(next_wc(ibv_cq_ex_to_cq(cq)).status, IBV_WC_SUCCESS);
}

static const struct creation {
    const char *name;
    struct ibv_cq_init_attr_ex init;
    int error;
} creations[] = {
    { "unknown wc_flags", { .cqe = 4, .wc_flags = 1ull << 40 }, EOPNOTSUPP },
    { "unknown comp_mask", { .cqe = 4, .comp_mask = 1 << 20 }, EOPNOTSUPP },
    { "unknown flags",
      { .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = 1 << 20 },
      EOPNOTSUPP },
    { "no entries", { .cqe = 0 }, EINVAL },
};

static void creation(const void *row)
{
    const struct creation *creation = row;
    struct ibv_cq_init_attr_ex init = creation->init;
    errno = 0;
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
    if (cq) ibv_destroy_cq(ibv_cq_ex_to_cq(cq));
    EXPECT(!cq);
    /* For unknown flags, providers return one or the other. */
    EXPECT(errno == creation->error || errno == EINVAL);
}

static void single_threaded(const void *row)
{
    (void)row;
    struct ibv_cq_init_attr_ex init = { .cqe = 64, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
        .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED };
    struct ibv_cq_ex *cq = KEEP(ibv_create_cq_ex(context, &init), ibv_destroy_cq);
    struct pair *pair = new_pair(&(struct options){ .cq = ibv_cq_ex_to_cq(cq) });
    EXPECT_EQ(post_op(pair, IBV_WR_RDMA_WRITE, 8), 0);
    EXPECT_EQ(begin(cq), 0);
    EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
    ibv_end_poll(cq);
}

static void moderation(const void *row)
{
    (void)row;
    struct ibv_cq_ex *cq = new_cq_ex(0);
    struct ibv_modify_cq_attr attr = { IBV_CQ_ATTR_MODERATE, { 16, 10 } };
    NEED((errno = ibv_modify_cq(ibv_cq_ex_to_cq(cq), &attr)) == 0);
    attr.attr_mask = 1 << 8;
    EXPECT(ibv_modify_cq(ibv_cq_ex_to_cq(cq), &attr) != 0);
}

void cq_ex_cases(void)
{
    for (unsigned i = 0; i < ROWS(fields); i++)
        test("ibv_create_cq_ex(3)", field, &fields[i], "cq_ex/field: %s", fields[i].name);
    test("ibv_create_cq_ex(3)", empty, NULL, "cq_ex/poll: an empty queue, unknown comp_mask");
    test("ibv_create_cq_ex(3)", both_interfaces, NULL, "cq_ex/poll: ibv_poll_cq of the same queue");
    for (unsigned i = 0; i < ROWS(creations); i++)
        test("ibv_create_cq_ex(3)", creation, &creations[i], "cq_ex/create: %s", creations[i].name);
    test("ibv_create_cq_ex(3)", single_threaded, NULL, "cq_ex/create: single-threaded");
    test("ibv_modify_cq(3)", moderation, NULL, "cq_ex/modify: moderation, unknown attributes");
}
