/* File operations that fail, are cut short, find their file cut, or end the process: preloaded between a program and its libc.
 *
 *     cc -O2 -fPIC -shared -o faults.so faults.c -ldl
 *     LD_PRELOAD=faults.so python ...        then by ctypes: faults_arm(...), faults_count(), faults_hit()
 *
 * An operation counts when its kind is among the chosen ones and its path lies below the chosen folder.
 * The counter lies in shared memory: processes that a program forks count on.
 * Where a range is chosen, only operations on these bytes of a file count.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Kinds: the order is that of KINDS in tests/faults/__init__.py. */
enum {
    OPEN = 1 << 0,      /* open for reading */
    READ = 1 << 1,      /* read, readv */
    PREAD = 1 << 2,     /* pread, preadv */
    MMAP = 1 << 3,      /* mmap of a file */
    POPULATE = 1 << 4,  /* madvise(MADV_POPULATE_READ) of such a map */
    LIST = 1 << 5,      /* opendir, fdopendir */
    STAT = 1 << 6,      /* stat, lstat, fstat, fstatat */
    CREATE = 1 << 7,    /* open with O_CREAT */
    OPEN_WRITE = 1 << 8,
    WRITE = 1 << 9,     /* write, writev */
    PWRITE = 1 << 10,   /* pwrite, pwritev */
    COPY = 1 << 11,     /* copy_file_range, sendfile */
    TRUNCATE = 1 << 12, /* truncate, ftruncate */
    ALLOCATE = 1 << 13, /* fallocate, posix_fallocate */
    RENAME = 1 << 14,
    LINK = 1 << 15,     /* link, symlink */
    UNLINK = 1 << 16,
    RMDIR = 1 << 17,
    MKDIR = 1 << 18,
    FSYNC = 1 << 19,
    FDATASYNC = 1 << 20,
    SYNCFS = 1 << 21,
    UTIME = 1 << 22,
    OWNER = 1 << 23,    /* chmod, chown */
};

enum how { FAIL, SHORT, KILL_BEFORE, KILL_HALF, KILL_AFTER, CUT };
enum verdict { GO_ON, REFUSE, HALF, HALF_THEN_DIE, DIE_AFTER };

#define MADV_POPULATE_READ_ 22
#define MOST_MAPS 4096

static struct {
    volatile int armed;
    long first;        /* number of the first operation that it happens to, from 1; 0: none */
    int sticky;        /* whether it happens to all later ones, too */
    int how, error;
    unsigned kinds;
    char folder[PATH_MAX];
    long long start, stop; /* bytes of a file; stop 0: all operations */
    long long size;        /* what a file is cut to */
    int log;           /* descriptor for a line for each operation; -1: none */
} settings = {.log = -1};

static struct shared {
    long count;
    char hit[PATH_MAX + 64];
} *shared;

static struct map {
    void *address;
    size_t length;
    off64_t offset;
    char *path;
} maps[MOST_MAPS];
static int map_count;
static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void start(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void faults_arm(const char *folder, unsigned kinds, int how, int error, long first, int sticky,
                long long start, long long stop, long long size, int log) {
    settings.armed = 0;
    snprintf(settings.folder, sizeof settings.folder, "%s", folder);
    settings.kinds = kinds;
    settings.how = how;
    settings.error = error;
    settings.first = first;
    settings.sticky = sticky;
    settings.start = start;
    settings.stop = stop;
    settings.size = size;
    settings.log = log;
    shared->count = 0;
    shared->hit[0] = 0;
    settings.armed = 1;
}

void faults_disarm(void) { settings.armed = 0; }
long faults_count(void) { return shared->count; }
const char *faults_hit(void) { return shared->hit; }

static _Noreturn void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static const char *path_of(int fd, char *into) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlink, link, into, PATH_MAX - 1);
    into[length < 0 ? 0 : length] = 0;
    return into;
}

/* The path of `name`, which may be relative to an open folder. */
static const char *path_at(int folder, const char *name, char *into) {
    if (name == NULL || name[0] == '/') return name;
    if (folder == AT_FDCWD) {
        if (syscall(SYS_getcwd, into, PATH_MAX) < 0) return name;
    } else {
        path_of(folder, into);
    }
    size_t used = strlen(into);
    if (name[0]) snprintf(into + used, PATH_MAX - used, "/%s", name);
    return into;
}

static int is_below(const char *path) {
    size_t length = strlen(settings.folder);
    return path != NULL && strncmp(path, settings.folder, length) == 0 &&
           (path[length] == 0 || path[length] == '/' || length == 0 || settings.folder[length - 1] == '/');
}

/* What happens to an operation; `from` and `length` are its bytes, length -1 where it has none. */
static enum verdict judge(const char *name, const char *path, long long from, long long length) {
    if (!is_below(path)) return GO_ON;
    if (settings.stop && (length < 0 || from >= settings.stop || from + length <= settings.start)) return GO_ON;
    long number = __sync_add_and_fetch(&shared->count, 1);
    if (settings.log >= 0) {
        char line[PATH_MAX + 64];
        int size = snprintf(line, sizeof line, "%s %s\n", name, path);
        syscall(SYS_write, settings.log, line, size);
    }
    if (!settings.first || number < settings.first || (number > settings.first && !settings.sticky)) return GO_ON;
    if (number == settings.first) snprintf(shared->hit, sizeof shared->hit, "%s %s", name, path);
    switch (settings.how) {
        case FAIL: return REFUSE;
        case SHORT: return length > 1 ? HALF : GO_ON;
        case KILL_BEFORE: die();
        case CUT: syscall(SYS_truncate, path, settings.size); return GO_ON;
        case KILL_HALF: return length > 1 ? HALF_THEN_DIE : DIE_AFTER;
        default: return DIE_AFTER;
    }
}

#define COUNTS(kind) (settings.armed && (settings.kinds & (kind)))

static enum verdict of_file(unsigned kind, const char *name, int fd, long long from, long long length) {
    if (!COUNTS(kind)) return GO_ON;
    int before = errno;
    char path[PATH_MAX];
    enum verdict verdict = judge(name, path_of(fd, path), from, length);
    errno = before;
    return verdict;
}

static enum verdict of_path(unsigned kind, const char *name, int folder, const char *path) {
    if (!COUNTS(kind)) return GO_ON;
    int before = errno;
    char whole[PATH_MAX];
    enum verdict verdict = judge(name, path_at(folder, path, whole), 0, -1);
    errno = before;
    return verdict;
}

static long long position(int fd) { return syscall(SYS_lseek, fd, 0, SEEK_CUR); }

static long long total(const struct iovec *parts, int count) {
    long long bytes = 0;
    for (int each = 0; each < count; each++) bytes += parts[each].iov_len;
    return bytes;
}

/* The libc's own function of the same name. */
#define REAL(type, name, ...)                                     \
    static type (*real)(__VA_ARGS__);                             \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define REFUSED(value)               \
    do {                             \
        errno = settings.error;      \
        return value;                \
    } while (0)

/* An operation that has no half: done or not. */
#define WHOLE(type, bad, judged, call)           \
    do {                                         \
        enum verdict what = judged;              \
        if (what == REFUSE) REFUSED(bad);        \
        type result = call;                      \
        if (what >= HALF_THEN_DIE) die();        \
        return result;                           \
    } while (0)

/* An operation on `size` bytes, of which half may be done; `size` is changed before `call` uses it. */
#define PIECE(judged, size, call)                                           \
    do {                                                                    \
        enum verdict what = judged;                                         \
        if (what == REFUSE) REFUSED(-1);                                    \
        if (what == HALF || what == HALF_THEN_DIE) size = size / 2;         \
        ssize_t result = call;                                              \
        if (what >= HALF_THEN_DIE) die();                                   \
        return result;                                                      \
    } while (0)

/* opening */

static int opening(const char *name, int folder, const char *path, int flags, mode_t mode) {
    REAL(int, "openat64", int, const char *, int, ...);
    unsigned kind = flags & O_CREAT ? CREATE : (flags & O_ACCMODE) == O_RDONLY ? OPEN : OPEN_WRITE;
    WHOLE(int, -1, of_path(kind, name, folder, path), real(folder, path, flags, mode));
}

#define MODE_OF(flags)                                     \
    mode_t mode = 0;                                       \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {               \
        va_list more;                                      \
        va_start(more, flags);                             \
        mode = va_arg(more, mode_t);                       \
        va_end(more);                                      \
    }

int open(const char *path, int flags, ...) { MODE_OF(flags) return opening("open", AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE_OF(flags) return opening("open", AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE_OF(flags) return opening("open", folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE_OF(flags) return opening("open", folder, path, flags, mode); }

DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", const char *);
    WHOLE(DIR *, NULL, of_path(LIST, "opendir", AT_FDCWD, path), real(path));
}

DIR *fdopendir(int fd) {
    REAL(DIR *, "fdopendir", int);
    WHOLE(DIR *, NULL, of_file(LIST, "opendir", fd, 0, -1), real(fd));
}

/* looking */

int stat64(const char *path, struct stat64 *into) {
    REAL(int, "stat64", const char *, struct stat64 *);
    WHOLE(int, -1, of_path(STAT, "stat", AT_FDCWD, path), real(path, into));
}

int lstat64(const char *path, struct stat64 *into) {
    REAL(int, "lstat64", const char *, struct stat64 *);
    WHOLE(int, -1, of_path(STAT, "lstat", AT_FDCWD, path), real(path, into));
}

int fstat64(int fd, struct stat64 *into) {
    REAL(int, "fstat64", int, struct stat64 *);
    WHOLE(int, -1, of_file(STAT, "fstat", fd, 0, -1), real(fd, into));
}

int fstatat64(int folder, const char *path, struct stat64 *into, int flags) {
    REAL(int, "fstatat64", int, const char *, struct stat64 *, int);
    WHOLE(int, -1, of_path(STAT, "fstatat", folder, path), real(folder, path, into, flags));
}

/* On 64-bit Linux both structures are one. */
int stat(const char *path, struct stat *into) { return stat64(path, (struct stat64 *)into); }
int lstat(const char *path, struct stat *into) { return lstat64(path, (struct stat64 *)into); }
int fstat(int fd, struct stat *into) { return fstat64(fd, (struct stat64 *)into); }
int fstatat(int folder, const char *path, struct stat *into, int flags) {
    return fstatat64(folder, path, (struct stat64 *)into, flags);
}

/* reading */

ssize_t read(int fd, void *into, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    PIECE(of_file(READ, "read", fd, COUNTS(READ) ? position(fd) : 0, size), size, real(fd, into, size));
}

ssize_t readv(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "readv", int, const struct iovec *, int);
    PIECE(of_file(READ, "readv", fd, COUNTS(READ) ? position(fd) : 0, total(parts, count)), count,
          real(fd, parts, count));
}

ssize_t pread64(int fd, void *into, size_t size, off64_t offset) {
    REAL(ssize_t, "pread64", int, void *, size_t, off64_t);
    PIECE(of_file(PREAD, "pread", fd, offset, size), size, real(fd, into, size, offset));
}

ssize_t pread(int fd, void *into, size_t size, off_t offset) { return pread64(fd, into, size, offset); }

static ssize_t reading_parts(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    REAL(ssize_t, "preadv64v2", int, const struct iovec *, int, off64_t, int);
    enum verdict what = of_file(PREAD, "preadv", fd, offset, total(parts, count));
    if (what == REFUSE) REFUSED(-1);
    struct iovec half = parts[0];
    half.iov_len /= 2;
    int is_half = what == HALF || what == HALF_THEN_DIE;
    ssize_t result = is_half ? real(fd, &half, 1, offset, flags) : real(fd, parts, count, offset, flags);
    if (what >= HALF_THEN_DIE) die();
    return result;
}

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    return reading_parts(fd, parts, count, offset, flags);
}
ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return reading_parts(fd, parts, count, offset, flags);
}
ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t offset) {
    return reading_parts(fd, parts, count, offset, 0);
}
ssize_t preadv(int fd, const struct iovec *parts, int count, off_t offset) {
    return reading_parts(fd, parts, count, offset, 0);
}

/* maps: their files are remembered, for populating them is a reading of these */

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset) {
    REAL(void *, "mmap64", void *, size_t, int, int, int, off64_t);
    enum verdict what = fd >= 0 ? of_file(MMAP, "mmap", fd, offset, length) : GO_ON;
    if (what == REFUSE) REFUSED(MAP_FAILED);
    void *made = real(address, length, protection, flags, fd, offset);
    if (what >= HALF_THEN_DIE) die();
    if (made == MAP_FAILED || fd < 0 || !settings.armed) return made;
    char path[PATH_MAX];
    if (!is_below(path_of(fd, path))) return made;
    pthread_mutex_lock(&maps_lock);
    if (map_count < MOST_MAPS) maps[map_count++] = (struct map){made, length, offset, strdup(path)};
    pthread_mutex_unlock(&maps_lock);
    return made;
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    return mmap64(address, length, protection, flags, fd, offset);
}

int munmap(void *address, size_t length) {
    REAL(int, "munmap", void *, size_t);
    if (settings.armed) {
        pthread_mutex_lock(&maps_lock);
        for (int each = 0; each < map_count; each++)
            if (maps[each].address == address) {
                free(maps[each].path);
                maps[each] = maps[--map_count];
                break;
            }
        pthread_mutex_unlock(&maps_lock);
    }
    return real(address, length);
}

int madvise(void *address, size_t length, int advice) {
    REAL(int, "madvise", void *, size_t, int);
    if (advice != MADV_POPULATE_READ_ || !COUNTS(POPULATE)) return real(address, length, advice);
    char path[PATH_MAX] = "";
    long long offset = 0;
    pthread_mutex_lock(&maps_lock);
    for (int each = 0; each < map_count; each++) {
        long long into = (char *)address - (char *)maps[each].address;
        if (into >= 0 && (size_t)into < maps[each].length) {
            snprintf(path, sizeof path, "%s", maps[each].path);
            offset = maps[each].offset + into;
        }
    }
    pthread_mutex_unlock(&maps_lock);
    if (path[0] && judge("populate", path, offset, length) == REFUSE) REFUSED(-1);
    return real(address, length, advice);
}

/* writing */

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    PIECE(of_file(WRITE, "write", fd, 0, size), size, real(fd, data, size));
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    enum verdict what = of_file(WRITE, "writev", fd, 0, total(parts, count));
    if (what == REFUSE) REFUSED(-1);
    struct iovec half = parts[0];
    half.iov_len = (half.iov_len + 1) / 2;
    int is_half = what == HALF || what == HALF_THEN_DIE;
    ssize_t result = is_half ? real(fd, &half, 1) : real(fd, parts, count);
    if (what >= HALF_THEN_DIE) die();
    return result;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    PIECE(of_file(PWRITE, "pwrite", fd, offset, size), size, real(fd, data, size, offset));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off64_t);
    enum verdict what = of_file(PWRITE, "pwritev", fd, offset, total(parts, count));
    if (what == REFUSE) REFUSED(-1);
    struct iovec half = parts[0];
    half.iov_len = (half.iov_len + 1) / 2;
    int is_half = what == HALF || what == HALF_THEN_DIE;
    ssize_t result = is_half ? real(fd, &half, 1, offset) : real(fd, parts, count, offset);
    if (what >= HALF_THEN_DIE) die();
    return result;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    return pwritev64(fd, parts, count, offset);
}

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *into, size_t size, unsigned flags) {
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    PIECE(of_file(COPY, "copy_file_range", to, into ? *into : 0, size), size, real(from, at, to, into, size, flags));
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    REAL(ssize_t, "sendfile64", int, int, off64_t *, size_t);
    PIECE(of_file(COPY, "sendfile", to, 0, size), size, real(to, from, at, size));
}

ssize_t sendfile(int to, int from, off_t *at, size_t size) { return sendfile64(to, from, at, size); }

/* sizes */

int ftruncate64(int fd, off64_t size) {
    REAL(int, "ftruncate64", int, off64_t);
    WHOLE(int, -1, of_file(TRUNCATE, "ftruncate", fd, 0, -1), real(fd, size));
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int truncate64(const char *path, off64_t size) {
    REAL(int, "truncate64", const char *, off64_t);
    WHOLE(int, -1, of_path(TRUNCATE, "truncate", AT_FDCWD, path), real(path, size));
}

int truncate(const char *path, off_t size) { return truncate64(path, size); }

int posix_fallocate64(int fd, off64_t offset, off64_t size) {
    REAL(int, "posix_fallocate64", int, off64_t, off64_t);
    enum verdict what = of_file(ALLOCATE, "posix_fallocate", fd, 0, -1);
    if (what == REFUSE) return settings.error; /* this one returns it */
    int result = real(fd, offset, size);
    if (what >= HALF_THEN_DIE) die();
    return result;
}

int posix_fallocate(int fd, off_t offset, off_t size) { return posix_fallocate64(fd, offset, size); }

int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
    REAL(int, "fallocate64", int, int, off64_t, off64_t);
    WHOLE(int, -1, of_file(ALLOCATE, "fallocate", fd, 0, -1), real(fd, mode, offset, size));
}

int fallocate(int fd, int mode, off_t offset, off_t size) { return fallocate64(fd, mode, offset, size); }

/* names: of two, the new one counts */

int rename(const char *old, const char *new) {
    REAL(int, "rename", const char *, const char *);
    WHOLE(int, -1, of_path(RENAME, "rename", AT_FDCWD, new), real(old, new));
}

int renameat(int from, const char *old, int to, const char *new) {
    REAL(int, "renameat", int, const char *, int, const char *);
    WHOLE(int, -1, of_path(RENAME, "rename", to, new), real(from, old, to, new));
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    WHOLE(int, -1, of_path(RENAME, "rename", to, new), real(from, old, to, new, flags));
}

int link(const char *old, const char *new) {
    REAL(int, "link", const char *, const char *);
    WHOLE(int, -1, of_path(LINK, "link", AT_FDCWD, new), real(old, new));
}

int linkat(int from, const char *old, int to, const char *new, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    WHOLE(int, -1, of_path(LINK, "link", to, new), real(from, old, to, new, flags));
}

int symlink(const char *old, const char *new) {
    REAL(int, "symlink", const char *, const char *);
    WHOLE(int, -1, of_path(LINK, "symlink", AT_FDCWD, new), real(old, new));
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    WHOLE(int, -1, of_path(UNLINK, "unlink", AT_FDCWD, path), real(path));
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    unsigned kind = flags & AT_REMOVEDIR ? RMDIR : UNLINK;
    WHOLE(int, -1, of_path(kind, "unlink", folder, path), real(folder, path, flags));
}

int rmdir(const char *path) {
    REAL(int, "rmdir", const char *);
    WHOLE(int, -1, of_path(RMDIR, "rmdir", AT_FDCWD, path), real(path));
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    WHOLE(int, -1, of_path(MKDIR, "mkdir", AT_FDCWD, path), real(path, mode));
}

int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    WHOLE(int, -1, of_path(MKDIR, "mkdir", folder, path), real(folder, path, mode));
}

/* flushing */

int fsync(int fd) {
    REAL(int, "fsync", int);
    WHOLE(int, -1, of_file(FSYNC, "fsync", fd, 0, -1), real(fd));
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    WHOLE(int, -1, of_file(FDATASYNC, "fdatasync", fd, 0, -1), real(fd));
}

int syncfs(int fd) {
    REAL(int, "syncfs", int);
    WHOLE(int, -1, of_file(SYNCFS, "syncfs", fd, 0, -1), real(fd));
}

/* times, owner, mode */

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    REAL(int, "utimensat", int, const char *, const struct timespec *, int);
    WHOLE(int, -1, of_path(UTIME, "utimensat", folder, path), real(folder, path, times, flags));
}

int futimens(int fd, const struct timespec times[2]) {
    REAL(int, "futimens", int, const struct timespec *);
    WHOLE(int, -1, of_file(UTIME, "futimens", fd, 0, -1), real(fd, times));
}

int chmod(const char *path, mode_t mode) {
    REAL(int, "chmod", const char *, mode_t);
    WHOLE(int, -1, of_path(OWNER, "chmod", AT_FDCWD, path), real(path, mode));
}

int fchmod(int fd, mode_t mode) {
    REAL(int, "fchmod", int, mode_t);
    WHOLE(int, -1, of_file(OWNER, "fchmod", fd, 0, -1), real(fd, mode));
}

int chown(const char *path, uid_t owner, gid_t group) {
    REAL(int, "chown", const char *, uid_t, gid_t);
    WHOLE(int, -1, of_path(OWNER, "chown", AT_FDCWD, path), real(path, owner, group));
}

int fchown(int fd, uid_t owner, gid_t group) {
    REAL(int, "fchown", int, uid_t, gid_t);
    WHOLE(int, -1, of_file(OWNER, "fchown", fd, 0, -1), real(fd, owner, group));
}
