// Calls every function of the C library that libsysview.so.1 replaces, by its name, on a file that
// the library shows and on one of the host. Run by run_view.rs under `feroce run -i v0`.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NODE "/dev/infiniband/uverbs0"
#define DEVICE "/sys/class/infiniband/feroce0"
#define REAL "/sys/devices/pcif0ce:00/f0ce:00:00.0/infiniband/feroce0"
#define LINK "../../devices/pcif0ce:00/f0ce:00:00.0/infiniband/feroce0"

static const char shown[] = DEVICE "/node_type", host[] = "/sys/class/net/v0/ifindex";
static const char none[] = DEVICE "/none";
static int failed;

#define CHECK(what) \
    do { \
        if (!(what)) { failed++; printf("%s: %s (%s)\n", name, #what, strerror(errno)); } \
    } while (0)

// The version of struct stat in calls of older programs.
#ifdef __x86_64__
#define VERSION 1
#else
#define VERSION 0
#endif

// Counts what the program and its libraries allocate.
static int allocations;
void *__libc_malloc(size_t size);
void *malloc(size_t size) {
    allocations++;
    return __libc_malloc(size);
}

// Returns the function; null, with a message, if the C library does not have it.
static void *function(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found) { failed++; printf("no %s\n", name); }
    return found;
}

static int reads(int fd, const char *text) {
    char bytes[8] = "";
    int ok = fd >= 0 && read(fd, bytes, sizeof bytes - 1) > 0 && strstr(bytes, text);
    if (fd >= 0) close(fd);
    return ok;
}

static void opening(void) {
    const char *names[] = {"open", "open64", "__open_2", "__open64_2"};
    for (int i = 0; i < 4; i++) {
        const char *name = names[i];
        int (*call)(const char *, int, ...) = function(name);
        CHECK(reads(call(shown, O_RDONLY), "1: CA"));
        CHECK(reads(call(host, O_RDONLY), "\n"));
        CHECK(call(none, O_RDONLY) == -1 && errno == ENOENT);
        CHECK(call(NULL, O_RDONLY) == -1 && errno == EFAULT);
    }
    const char *at[] = {"openat", "openat64", "__openat_2", "__openat64_2"};
    int folder = open(DEVICE, O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < 4; i++) {
        const char *name = at[i];
        int (*call)(int, const char *, int, ...) = function(name);
        CHECK(reads(call(AT_FDCWD, shown, O_RDONLY), "1: CA"));
        CHECK(reads(call(folder, "node_type", O_RDONLY), "1: CA"));
        CHECK(reads(call(folder, "../../net/v0/address", O_RDONLY), ":"));
    }
    close(folder);
    const char *streams[] = {"fopen", "fopen64"};
    for (int i = 0; i < 2; i++) {
        const char *name = streams[i];
        FILE *(*call)(const char *, const char *) = function(name);
        FILE *file = call(shown, "r");
        CHECK(file && fgetc(file) == '1');
        if (file) fclose(file);
        CHECK(!call(none, "r") && errno == ENOENT);
    }
    // The mode of a new file arrives.
    const char *name = "open";
    char path[] = "./fr-view-XXXXXX";
    const char *tmp = getenv("TMPDIR");
    CHECK(tmp && chdir(tmp) == 0 && mkdtemp(path) && chdir(path) == 0);
    umask(0);
    struct stat found;
    int fd = open("new", O_CREAT | O_WRONLY, 0604);
    CHECK(fstat(fd, &found) == 0 && (found.st_mode & 0777) == 0604);
    close(fd);
    CHECK(unlink("new") == 0 && chdir("..") == 0 && rmdir(path) == 0);
}

// Paths of the host take no memory: a signal handler may use them.
static void allocating(void) {
    const char *name = "allocations";
    struct stat found;
    char to[100];
    int before = allocations, fd = open(host, O_RDONLY);
    CHECK(fd >= 0 && stat(host, &found) == 0 && access("/sys/class/net", F_OK) == 0);
    CHECK(readlink("/proc/self/exe", to, sizeof to) > 0 && getcwd(to, sizeof to));
    CHECK(stat("/sys/devices/none", &found) == -1 && stat("/dev/null", &found) == 0);
    CHECK(allocations == before);
    free(realpath("/proc", NULL)); // is counted, although the C library allocates
    CHECK(allocations > before);
    close(fd);
}

static void folders(void) {
    const char *name = "opendir";
    DIR *folder = opendir("/sys/class/infiniband");
    struct dirent *entry;
    int devices = 0;
    while (folder && (entry = readdir(folder))) devices += !strcmp(entry->d_name, "feroce0");
    CHECK(devices == 1);
    if (folder) closedir(folder);
    const char *names[] = {"scandir", "scandir64"};
    for (int i = 0; i < 2; i++) {
        name = names[i];
        int (*call)(const char *, struct dirent ***, void *, void *) = function(name);
        struct dirent **list;
        CHECK(call("/dev/infiniband", &list, NULL, NULL) == 4); // ".", "..", rdma_cm, uverbs0
        CHECK(call("/dev/infiniband/none", &list, NULL, NULL) == -1 && errno == ENOENT);
    }
}

static void status(void) {
    struct stat to;
    struct statx more;
    const char *names[] = {"stat", "stat64", "lstat", "lstat64"};
    const char *old[] = {"__xstat", "__xstat64", "__lxstat", "__lxstat64"};
    for (int i = 0; i < 4; i++) {
        const char *name = names[i];
        int (*call)(const char *, struct stat *) = function(name);
        if (call) CHECK(call(shown, &to) == 0 && S_ISREG(to.st_mode) && to.st_size == 6);
        if (call) CHECK(call(DEVICE, &to) == 0);
        if (call) CHECK(i < 2 ? S_ISDIR(to.st_mode) : S_ISLNK(to.st_mode));
        name = old[i];
        int (*older)(int, const char *, struct stat *) = function(name);
        if (older) CHECK(older(VERSION, shown, &to) == 0 && to.st_size == 6);
        if (older) CHECK(older(VERSION, none, &to) == -1 && errno == ENOENT);
    }
    const char *at[] = {"fstatat", "fstatat64"}, *old_at[] = {"__fxstatat", "__fxstatat64"};
    for (int i = 0; i < 2; i++) {
        const char *name = at[i];
        int (*call)(int, const char *, struct stat *, int) = function(name);
        if (call) CHECK(call(AT_FDCWD, NODE, &to, 0) == 0 && S_ISCHR(to.st_mode));
        name = old_at[i];
        int (*older)(int, int, const char *, struct stat *, int) = function(name);
        if (older) CHECK(older(VERSION, AT_FDCWD, shown, &to, 0) == 0 && to.st_size == 6);
    }
    const char *name = "statx";
    CHECK(statx(AT_FDCWD, shown, 0, STATX_SIZE, &more) == 0 && more.stx_size == 6);
    const char *accesses[] = {"access", "eaccess", "euidaccess"};
    for (int i = 0; i < 3; i++) {
        name = accesses[i];
        int (*call)(const char *, int) = function(name);
        CHECK(call(NODE, R_OK | W_OK) == 0);
        CHECK(call(none, F_OK) == -1 && errno == ENOENT);
    }
    const char *systems[] = {"statfs", "statfs64", "statvfs", "statvfs64"};
    for (int i = 0; i < 4; i++) {
        name = systems[i];
        char room[512];
        int (*call)(const char *, void *) = function(name);
        CHECK(call(shown, room) == 0);
        CHECK(call(none, room) == -1 && errno == ENOENT);
    }
    const char *values[] = {"getxattr", "lgetxattr"}, *lists[] = {"listxattr", "llistxattr"};
    for (int i = 0; i < 2; i++) {
        name = values[i];
        ssize_t (*call)(const char *, const char *, void *, size_t) = function(name);
        CHECK(call(shown, "user.none", NULL, 0) == -1 && errno != ENOENT);
        name = lists[i];
        ssize_t (*list)(const char *, char *, size_t) = function(name);
        CHECK(list(shown, NULL, 0) >= 0 || errno != ENOENT);
    }
    name = "faccessat";
    CHECK(faccessat(AT_FDCWD, shown, R_OK, 0) == 0);
}

static void links(void) {
    char to[4096];
    const char *names[] = {"readlink", "__readlink_chk"};
    const char *at[] = {"readlinkat", "__readlinkat_chk"};
    for (int i = 0; i < 2; i++) {
        const char *name = names[i];
        ssize_t (*call)(const char *, char *, size_t, size_t) = function(name);
        CHECK(call(DEVICE, to, sizeof to, sizeof to) == strlen(LINK));
        CHECK(!memcmp(to, LINK, strlen(LINK)));
        name = at[i];
        ssize_t (*call_at)(int, const char *, char *, size_t, size_t) = function(name);
        CHECK(call_at(AT_FDCWD, DEVICE, to, sizeof to, sizeof to) == strlen(LINK));
    }
    const char *real[] = {"realpath", "__realpath_chk"};
    for (int i = 0; i < 2; i++) {
        const char *name = real[i];
        char *(*call)(const char *, char *, size_t) = function(name);
        CHECK(call(DEVICE "/device/..", to, sizeof to) == to);
        CHECK(!strcmp(to, "/sys/devices/pcif0ce:00"));
        CHECK(call(DEVICE "/device/net/v0/address", to, sizeof to) == to);
        CHECK(strstr(to, "/devices/") && strstr(to, "/net/v0/address"));
        CHECK(call("/proc/self/..", to, sizeof to) == to && !strcmp(to, "/proc"));
        CHECK(!call(none, to, sizeof to) && errno == ENOENT);
    }
    const char *name = "realpath";
    char *made = realpath(DEVICE, NULL);
    CHECK(made && !strcmp(made, REAL));
    free(made);
    name = "canonicalize_file_name";
    made = canonicalize_file_name(DEVICE);
    CHECK(made && !strcmp(made, REAL));
    free(made);
    name = "chdir";
    CHECK(chdir(DEVICE "/ports/1") == 0 && access("state", R_OK) == 0);
    name = "getcwd";
    CHECK(getcwd(to, sizeof to) == to && !strcmp(to, REAL "/ports/1"));
    name = "__getcwd_chk";
    char *(*call)(char *, size_t, size_t) = function(name);
    CHECK(call(to, sizeof to, sizeof to) == to && !strcmp(to, REAL "/ports/1"));
    CHECK(chdir("/") == 0 && getcwd(to, sizeof to) && !strcmp(to, "/"));
}

int main(void) {
    allocating();
    opening();
    folders();
    status();
    links();
    printf("%d checks failed\n", failed);
    return failed != 0;
}
