/* MPI: messages around a ring, reductions and exchanges of all with all, of 4 B to 4 MiB per pair
 * of ranks, and one-sided operations. Every byte is compared. mpirun starts the program; rank 0
 * prints how many comparisons failed.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST (4 << 20)
#define ROUNDS 3

static int rank, ranks, failed;

#define CHECK(what)                                                                 \
    do {                                                                            \
        if (!(what)) {                                                              \
            if (failed++ < 10) printf("rank %d, line %d: %s\n", rank, __LINE__, #what); \
        }                                                                           \
    } while (0)

/* The word at `index` of the block that `from` sends to `to`. */
static uint32_t word(int from, int to, int round, size_t index)
{
    return (uint32_t)(index + 1) * 2654435761u ^ (uint32_t)(from << 24 | to << 16 | round);
}

static void fill(uint32_t *block, size_t words, int from, int to, int round)
{
    for (size_t index = 0; index < words; index++)
        block[index] = word(from, to, round, index);
}

static int is_from(const uint32_t *block, size_t words, int from, int to, int round)
{
    for (size_t index = 0; index < words; index++)
        if (block[index] != word(from, to, round, index)) return 0;
    return 1;
}

static void ring(uint32_t *sent, uint32_t *received, size_t words, int round)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    fill(sent, words, rank, next, round);
    memset(received, 0, words * 4);
    MPI_Sendrecv(sent, words, MPI_UINT32_T, next, round, received, words, MPI_UINT32_T, previous,
                 round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(is_from(received, words, previous, rank, round));
}

static void allreduce(uint32_t *sent, uint32_t *received, size_t words, int round)
{
    fill(sent, words, rank, 0, round);
    memset(received, 0, words * 4);
    MPI_Allreduce(sent, received, words, MPI_UINT32_T, MPI_SUM, MPI_COMM_WORLD);
    for (size_t index = 0; index < words; index++) {
        uint32_t sum = 0;
        for (int from = 0; from < ranks; from++)
            sum += word(from, 0, round, index);
        if (received[index] == sum) continue;
        CHECK(!"the sum of all ranks");
        break;
    }
}

static void alltoall(uint32_t *sent, uint32_t *received, size_t words, int round)
{
    for (int to = 0; to < ranks; to++)
        fill(sent + to * words, words, rank, to, round);
    memset(received, 0, words * 4 * ranks);
    MPI_Alltoall(sent, words, MPI_UINT32_T, received, words, MPI_UINT32_T, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        CHECK(is_from(received + from * words, words, from, rank, round));
}

/* Each rank writes to the next one, reads that back, and adds to a counter of rank 0. */
static void one_sided(uint32_t *sent, uint32_t *received, size_t words, int round)
{
    uint32_t *window, *counter, one = 1, before = 0;
    MPI_Win win, counters;
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    MPI_Win_allocate(words * 4, 4, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    MPI_Win_allocate(4, 4, MPI_INFO_NULL, MPI_COMM_WORLD, &counter, &counters);
    memset(window, 0, words * 4);
    *counter = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    fill(sent, words, rank, next, round);
    memset(received, 0, words * 4);
    MPI_Win_lock_all(0, win);
    MPI_Put(sent, words, MPI_UINT32_T, next, 0, words, MPI_UINT32_T, win);
    MPI_Win_flush(next, win);
    MPI_Get(received, words, MPI_UINT32_T, next, 0, words, MPI_UINT32_T, win);
    MPI_Win_flush(next, win);
    CHECK(is_from(received, words, rank, next, round));
    MPI_Win_unlock_all(win);
    for (int count = 0; count < 10; count++) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, counters);
        MPI_Fetch_and_op(&one, &before, MPI_UINT32_T, 0, 0, MPI_SUM, counters);
        MPI_Win_unlock(0, counters);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, win);
    CHECK(is_from(window, words, previous, rank, round));
    MPI_Win_unlock(rank, win);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, counters);
    MPI_Fetch_and_op(&one, &before, MPI_UINT32_T, 0, 0, MPI_NO_OP, counters);
    MPI_Win_unlock(0, counters);
    CHECK(before == (uint32_t)(10 * ranks));
    MPI_Win_free(&counters);
    MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint32_t *sent = malloc((size_t)LARGEST * ranks), *received = malloc((size_t)LARGEST * ranks);
    for (size_t bytes = 4; bytes <= LARGEST; bytes *= 4) {
        for (int round = 0; round < ROUNDS; round++) {
            ring(sent, received, bytes / 4, round);
            allreduce(sent, received, bytes / 4, round);
            alltoall(sent, received, bytes / 4, round);
            MPI_Barrier(MPI_COMM_WORLD);
        }
        one_sided(sent, received, bytes / 4, 0);
    }
    int all = 0;
    MPI_Reduce(&failed, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks, %d failed\n", ranks, all);
    MPI_Finalize();
    return failed ? 1 : 0;
}
