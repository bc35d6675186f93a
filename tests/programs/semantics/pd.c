/* Protection domains, parent domains and thread domains. */
#include "semantics.h"

static void *user_mr(struct ibv_pd *pd) { return new_mr(pd, new_bytes(4096), 4096, 0); }
static void *user_qp(struct ibv_pd *pd) { return new_qp(&(struct options){ .pd = pd }); }
static void *user_ah(struct ibv_pd *pd) { return new_ah(pd); }

static void *user_srq(struct ibv_pd *pd)
{
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 1, .max_sge = 1 } };
    return KEEP(ibv_create_srq(pd, &init), ibv_destroy_srq);
}

static void *user_mw(struct ibv_pd *pd)
{
    return KEEP(ibv_alloc_mw(pd, IBV_MW_TYPE_1), ibv_dealloc_mw);
}

static void *user_parent(struct ibv_pd *pd)
{
    struct ibv_parent_domain_init_attr init = { .pd = pd };
    return KEEP(ibv_alloc_parent_domain(context, &init), ibv_dealloc_pd);
}

static const struct user { const char *name; void *(*make)(struct ibv_pd *); } users[] = {
    { "an MR", user_mr }, { "a QP", user_qp }, { "an SRQ", user_srq }, { "an AH", user_ah },
    { "an MW", user_mw }, { "a parent domain", user_parent },
};

static void busy(const void *row)
{
    struct ibv_pd *pd = new_pd();
    void *user = ((const struct user *)row)->make(pd);
    EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
    EXPECT_EQ(drop(user), 0);
    EXPECT_EQ(drop(pd), 0);
}

static void separate(const void *row)
{
    (void)row;
    struct ibv_pd *one = new_pd(), *two = new_pd();
    EXPECT(one != two && one->context == context && two->context == context);
}

static const struct parent {
    const char *name;
    uint32_t comp_mask;
    bool no_pd;
    int error;
} parents[] = {
    { "no protection domain", 0, true, EINVAL },
    { "comp_mask bit 2", 1 << 2, false, EOPNOTSUPP },
    { "comp_mask bit 31", 1u << 31, false, EOPNOTSUPP },
};

static void parent_refused(const void *row)
{
    const struct parent *parent = row;
    struct ibv_parent_domain_init_attr init = { .pd = parent->no_pd ? NULL : new_pd(),
        .comp_mask = parent->comp_mask };
    struct ibv_pd *pd = ibv_alloc_parent_domain(context, &init);
    if (pd) ibv_dealloc_pd(pd);
    if (!pd && errno == EOPNOTSUPP && parent->error != EOPNOTSUPP) skip(strerror(errno));
    EXPECT(!pd);
    EXPECT_EQ(errno, parent->error);
}

static void parent_traffic(const void *row)
{
    (void)row;
    struct ibv_td_init_attr none = { 0 };
    struct ibv_td *td = KEEP(ibv_alloc_td(context, &none), ibv_dealloc_td);
    struct ibv_parent_domain_init_attr init = { .pd = new_pd(), .td = td };
    struct ibv_pd *parent = KEEP(ibv_alloc_parent_domain(context, &init), ibv_dealloc_pd);
    struct pair *pair = new_pair(&(struct options){ .pd = parent });
    EXPECT_EQ(post_op(pair, IBV_WR_RDMA_WRITE, 100), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT(pair->a.qp->pd == parent && pair->a.mr->pd == parent);
    EXPECT_EQ(ibv_dealloc_td(td), EBUSY);
}

static void parent_shares(const void *row)
{
    (void)row;
    struct ibv_parent_domain_init_attr init = { .pd = new_pd() };
    struct ibv_pd *parent = KEEP(ibv_alloc_parent_domain(context, &init), ibv_dealloc_pd);
    struct pair *pair = new_pair(&(struct options){ .pd = parent });
    struct ibv_mr *mr = new_mr(init.pd, pair->a.bytes, SIZE, ALL);
    struct ibv_sge sge = sge_of(mr, pair->a.bytes, 100);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uintptr_t)pair->b.bytes, pair->b.mr->rkey } };
    EXPECT_EQ(post(&pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
}

static void td_refused(const void *row)
{
    (void)row;
    struct ibv_td_init_attr none = { 0 }, unknown = { 1 };
    KEEP(ibv_alloc_td(context, &none), ibv_dealloc_td);
    struct ibv_td *td = ibv_alloc_td(context, &unknown);
    if (td) ibv_dealloc_td(td);
    EXPECT(!td && (errno == EOPNOTSUPP || errno == EINVAL));
}

void pd_cases(void)
{
    test("ibv_alloc_pd(3)", separate, NULL, "pd/alloc: two PDs are separate");
    for (unsigned i = 0; i < ROWS(users); i++)
        test("ibv_dealloc_pd(3)", busy, &users[i], "pd/busy: with %s", users[i].name);
    for (unsigned i = 0; i < ROWS(parents); i++)
        test("ibv_alloc_parent_domain(3)", parent_refused, &parents[i], "pd/parent: %s",
             parents[i].name);
    test("ibv_alloc_parent_domain(3)", parent_traffic, NULL, "pd/parent: with a thread domain");
    test("ibv_alloc_parent_domain(3)", parent_shares, NULL, "pd/parent: MRs of its PD are usable");
    test("ibv_alloc_td(3)", td_refused, NULL, "td/alloc: unknown comp_mask");
}
