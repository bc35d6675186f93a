/* The table of verbs semantics: cases that compare verbs of any RNIC with man pages and clauses of
 * the specification. Both QPs of a case are on one device. docs/semantics.md describes the table.
 *   semantics [--list] [--filter TEXT] [--device NAME] [--port N] [--gid INDEX]
 * The output is that of TAP. The exit code is 1 if a case fails, and 2 if the program cannot start.
 */
#include "semantics.h"

struct ibv_context *context;
struct ibv_device_attr device;
struct ibv_port_attr port;
uint8_t port_num = 1;
int gid_index = 1;
union ibv_gid gid;

static bool listing;
static const char *filter = "", *device_name;
static unsigned cases, failing, skipped;

static jmp_buf end_of_case;
static bool failed;
static const char *skip_reason;
static char title[256];

static struct { void *object; destroyer *destroy; const char *what; } kept[4096];
static unsigned kept_count;

/* ---- Cases. */

static void late(int signal)
{
    (void)signal;
    static const char text[] = "Bail out! a case takes longer than 120 s: ";
    if (write(1, text, sizeof text - 1) < 0 || write(1, title, strlen(title)) < 0) _exit(1);
    if (write(1, "\n", 1) < 0) _exit(1);
    _exit(1);
}

static void destroy_kept(void)
{
    while (kept_count > 0) {
        kept_count--;
        int code = kept[kept_count].destroy(kept[kept_count].object);
        if (code != 0)
            fail(__FILE__, __LINE__, "%s: destroyed with %d", kept[kept_count].what, code);
    }
}

void test(const char *reference, body *run, const void *row, const char *name, ...)
{
    va_list arguments;
    va_start(arguments, name);
    int length = vsnprintf(title, sizeof title, name, arguments);
    va_end(arguments);
    snprintf(title + length, sizeof title - length, " (%s)", reference);
    if (!strstr(title, filter)) return;
    cases++;
    if (listing) {
        puts(title);
        return;
    }
    failed = false, skip_reason = NULL;
    alarm(120);
    if (setjmp(end_of_case) == 0) run(row);
    if (setjmp(end_of_case) == 0) destroy_kept();
    drain_events();
    alarm(0);
    if (failed) failing++;
    else if (skip_reason) skipped++;
    printf("%s %u - %s", failed ? "not ok" : "ok", cases, title);
    if (!failed && skip_reason) printf(" # SKIP %s", skip_reason);
    putchar('\n');
    fflush(stdout);
}

void fail(const char *file, int line, const char *format, ...)
{
    const char *base = strrchr(file, '/');
    printf("# %s:%d: ", base ? base + 1 : file, line);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    failed = true;
}

void skip(const char *reason)
{
    skip_reason = reason;
    longjmp(end_of_case, 1);
}

void give_up(void)
{
    failed = true;
    longjmp(end_of_case, 1);
}

void need_failed(const char *file, int line, const char *what)
{
    if (errno == EOPNOTSUPP || errno == ENOSYS) skip(strerror(errno));
    fail(file, line, "required, but does not hold: %s (errno %d)", what, errno);
    give_up();
}

/* ---- Objects. */

void *keep(void *object, destroyer *destroy, const char *what)
{
    if (!object || kept_count == ROWS(kept)) need_failed(__FILE__, __LINE__, what);
    kept[kept_count].object = object;
    kept[kept_count].destroy = destroy;
    kept[kept_count].what = what;
    kept_count++;
    return object;
}

int drop(void *object)
{
    for (unsigned i = kept_count; i-- > 0;) {
        if (kept[i].object != object) continue;
        int code = kept[i].destroy(object);
        if (code != 0) return code;
        memmove(kept + i, kept + i + 1, (kept_count - i - 1) * sizeof *kept);
        kept_count--;
        return 0;
    }
    fail(__FILE__, __LINE__, "an object that is not kept");
    give_up();
}

/* ---- The device. */

static bool open_device(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (int i = 0; list && i < count && !context; i++)
        if (!device_name || !strcmp(device_name, ibv_get_device_name(list[i])))
            context = ibv_open_device(list[i]);
    if (list) ibv_free_device_list(list);
    if (!context)
        return fprintf(stderr, "no such device: %s\n", device_name ? device_name : "any"), false;
    fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
    if (ibv_query_device(context, &device) || ibv_query_port(context, port_num, &port)
        || ibv_query_gid(context, port_num, gid_index, &gid))
        return perror("device, port or GID"), false;
    return true;
}

static bool read_options(char **argv)
{
    for (; *argv; argv++) {
        if (!strcmp(*argv, "--list")) {
            listing = true;
            continue;
        }
        const char *value = argv[1];
        if (!value) return false;
        if (!strcmp(*argv, "--filter")) filter = value;
        else if (!strcmp(*argv, "--device")) device_name = value;
        else if (!strcmp(*argv, "--port")) port_num = atoi(value);
        else if (!strcmp(*argv, "--gid")) gid_index = atoi(value);
        else return false;
        argv++;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (argc < 1 || !read_options(argv + 1)) {
        fputs(
            "usage: semantics [--list] [--filter TEXT] [--device NAME] [--port N] [--gid INDEX]\n",
            stderr);
        return 2;
    }
    if (!listing && !open_device()) return 2;
    signal(SIGALRM, late);
    device_cases();
    pd_cases();
    mr_cases();
    mw_cases();
    cq_cases();
    cq_ex_cases();
    srq_cases();
    qp_cases();
    transition_cases();
    rc_cases();
    rc_error_cases();
    uc_cases();
    ud_cases();
    xrc_cases();
    wr_cases();
    event_cases();
    if (listing) return 0;
    printf("1..%u\n%u cases, %u failing, %u skipped\n", cases, cases, failing, skipped);
    return failing != 0;
}
