// Two ranks of Gloo on its ibverbs transport: reductions of 16 B to 4 MiB with three algorithms, a
// broadcast and barriers. Every element is compared. Compiled against the distribution's libgloo.
//   gloo RANK          the ranks are 0 and 1; rank 0 is started first
// The ranks find each other by files below $TMPDIR.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>
#include <string>
#include <unistd.h>
#include <vector>

using Context = std::shared_ptr<gloo::Context>;
using Values = std::vector<uint64_t>;

static const int RANKS = 2;
static const int GID_INDEX = 1;
static const int ROUNDS = 5;
static long failed;

// What `rank` contributes at `index` in a round.
static uint64_t value(int rank, int round, size_t index) {
    return (index + 1) * 0x9e3779b97f4a7c15 + rank * 1000003 + round;
}

static void compare(const char* what, const Values& values, uint64_t (*expected)(int, size_t),
                    int round) {
    for (size_t index = 0; index < values.size(); index++) {
        if (values[index] == expected(round, index)) continue;
        printf("%s of %zu: wrong at %zu in round %d\n", what, values.size(), index, round);
        failed++;
        return;
    }
}

static uint64_t sum(int round, size_t index) {
    return value(0, round, index) + value(1, round, index);
}

static uint64_t of_rank_1(int round, size_t index) { return value(1, round, index); }

static void fill(Values& values, int rank, int round) {
    for (size_t index = 0; index < values.size(); index++)
        values[index] = value(rank, round, index);
}

// Nothing of Gloo is destroyed: its buffers must not be while a send is pending, and its algorithms
// do not wait for the sends of their notifications.
template <class Reduction>
static void reduce(const char* what, const Context& context, size_t count) {
    Values& values = *new Values(count);
    auto& reduction = *new Reduction(context, {values.data()}, int(count));
    for (int round = 0; round < ROUNDS; round++) {
        fill(values, context->rank, round);
        reduction.run();
        compare(what, values, sum, round);
    }
}

static void broadcast(const Context& context, size_t count) {
    Values& values = *new Values(count);
    auto& barrier = *new gloo::BarrierAllToAll(context);
    auto& broadcast =
        *new gloo::BroadcastOneToAll<uint64_t>(context, {values.data()}, int(count), 1);
    for (int round = 0; round < ROUNDS; round++) {
        fill(values, context->rank, round);
        broadcast.run();
        compare("broadcast", values, of_rank_1, round);
        barrier.run();
    }
}

int main(int argc, char** argv) {
    if (argc != 2 || !getenv("TMPDIR")) return fprintf(stderr, "gloo RANK, with TMPDIR\n"), 2;
    const int rank = atoi(argv[1]);
    const std::string folder = std::string(getenv("TMPDIR")) + "/gloo-ranks";
    if (rank == 0) {
        std::filesystem::remove_all(folder);
        std::filesystem::create_directory(folder);
    }
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, RANKS);
    context->setTimeout(std::chrono::seconds(30));
    gloo::rendezvous::FileStore store(folder);
    auto device = gloo::transport::ibverbs::CreateDevice({"feroce0", 1, GID_INDEX});
    context->connectFullMesh(store, device);
    for (size_t bytes = 16; bytes <= 4 << 20; bytes *= 4) {
        const size_t count = bytes / sizeof(uint64_t);
        reduce<gloo::AllreduceRing<uint64_t>>("ring", context, count);
        reduce<gloo::AllreduceRingChunked<uint64_t>>("chunked ring", context, count);
        reduce<gloo::AllreduceHalvingDoubling<uint64_t>>("halving and doubling", context, count);
        broadcast(context, count);
    }
    // A rank that ended earlier could leave the other without its last notification.
    store.set("finished" + std::to_string(rank), {1});
    store.wait({"finished0", "finished1"});
    printf("rank %d: %ld failed\n", rank, failed);
    fflush(stdout);
    _exit(failed ? 1 : 0);
}
