/*
 * librados and librbd without a cluster: an image in memory, and every failure that a test asks for by an option.
 *
 * Compiled twice, as librados.so.2 with -DRADOS and as librbd.so.1 with -DRBD. Options of the name whose names begin
 * with "fake_" are instructions:
 *
 *   fake_CALL=N         the call fails with the error number N (CALL: connect, pool, open, snap, stat, id, lock, ...)
 *   fake_namespace=1    there is no such namespace;  fake_namespace_exists=N  to ask for it fails with N
 *   fake_sleep=MS       opening the image takes so long
 *   fake_owner=ADDRESS  client that has the lock;  fake_watcher=ADDRESS  client that has the image open
 *   fake_no_owners=1    the list of those that have the lock is empty
 *   fake_others=N       clients that have it open, too (1)
 *   fake_lost=1         the lock is lost after opening;  fake_watchers=N  the list of clients fails with N
 *   fake_read=N ...     result of every read (also write, flush, discard), in place of the usual one
 *   fake_from=N         results are so from the operation with this number on (first: 1)
 *   fake_start=N        starting an operation fails with the error number N
 *   fake_late=MS        operations complete so late;  fake_hold=FILE  not before the file is there
 *   fake_read_hold=FILE reads complete not before the file is there;  fake_read_done=FILE  is made after a read
 *   fake_size=N         length of the image;  fake_resize=N  length from the second question on, which fails with
 *                       fake_later_size=N
 *   fake_stripes=N      objects of a stripe;  fake_object=N  length of one
 *   fake_overlap=N      length of the parent's data
 *   fake_extents=A+B,.. ranges with data;  fake_extents_hold=FILE  not before the file is there
 *   fake_log=FILE       calls are written there;  fake_options=FILE  the options, when connecting
 *
 * The client "none" cannot be made; with -DNO_COMPLETIONS no completion can.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

struct option {
    char *name, *value;
    struct option *next;
};

struct cluster {
    struct option *options;
};

struct context {
    struct cluster *cluster;
};

static const char *find(struct cluster *c, const char *name)
{
    for (struct option *o = c->options; o; o = o->next)
        if (!strcmp(o->name, name))
            return o->value;
    return NULL;
}

static long number(struct cluster *c, const char *name, long otherwise)
{
    const char *value = find(c, name);
    return value ? atol(value) : otherwise;
}

static void note(struct cluster *c, const char *text)
{
    const char *path = find(c, "fake_log");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", text);
        fclose(file);
    }
}

#ifdef RADOS
static void put(struct cluster *c, const char *name, const char *value)
{
    struct option *o = malloc(sizeof *o);
    o->name = strdup(name);
    o->value = strdup(value);
    o->next = c->options;
    c->options = o;
}

int rados_create(void **cluster, const char *id)
{
    struct cluster *c = calloc(1, sizeof *c);
    if (id && !strcmp(id, "none"))
        return -EINVAL;
    put(c, "id", id ? id : "");
    *cluster = c;
    return 0;
}

int rados_conf_read_file(void *cluster, const char *path)
{
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[64], *value;
    if (!file)
        return path ? -ENOENT : 0;
    while (fscanf(file, "%63s %ms", name, &value) == 2) {
        put(cluster, name, value);
        free(value);
    }
    fclose(file);
    return 0;
}

int rados_conf_set(void *cluster, const char *name, const char *value)
{
    if (!strcmp(name, "unknown"))
        return -ENOENT;
    put(cluster, name, value);
    return 0;
}

int rados_conf_get(void *cluster, const char *name, char *into, size_t len)
{
    const char *value = find(cluster, name);
    if (value && strlen(value) >= len)
        return -ENAMETOOLONG;
    snprintf(into, len, "%s", value ? value : "");
    return 0;
}

int rados_connect(void *cluster)
{
    const char *path = find(cluster, "fake_options");
    FILE *file = path ? fopen(path, "w") : NULL;
    for (struct option *o = ((struct cluster *)cluster)->options; file && o; o = o->next)
        fprintf(file, "%s=%s\n", o->name, o->value);
    if (file)
        fclose(file);
    note(cluster, "connect");
    return -number(cluster, "fake_connect", 0);
}

void rados_shutdown(void *cluster)
{
    note(cluster, "shutdown");
}

int rados_cluster_fsid(void *cluster, char *into, size_t len)
{
    snprintf(into, len, "fsid");
    return -number(cluster, "fake_fsid", -4);
}

int rados_ioctx_create(void *cluster, const char *pool, void **context)
{
    (void)pool;
    if (number(cluster, "fake_pool", 0))
        return -number(cluster, "fake_pool", 0);
    struct context *x = malloc(sizeof *x);
    x->cluster = cluster;
    *context = x;
    return 0;
}

void rados_ioctx_destroy(void *context)
{
    note(((struct context *)context)->cluster, "destroy");
    free(context);
}

void rados_ioctx_set_namespace(void *context, const char *space)
{
    char text[256];
    snprintf(text, sizeof text, "namespace %s", space);
    note(((struct context *)context)->cluster, text);
}

int64_t rados_ioctx_get_id(void *context)
{
    (void)context;
    return 7;
}

int rados_pool_reverse_lookup(void *cluster, int64_t id, char *into, size_t len)
{
    (void)id;
    snprintf(into, len, "pool");
    return number(cluster, "fake_pool_lookup", 4);
}

#ifndef LACKING
void rados_set_pool_full_try(void *context)
{
    note(((struct context *)context)->cluster, "full_try");
}
#endif
#endif

#ifdef RBD
#define MAX_DONE 4096
#ifndef MINOR
#define MINOR 16
#endif

struct image {
    struct cluster *cluster;
    uint64_t size;
    char *data;
    int fd, asked, sequence, head, tail, completions;
    pthread_mutex_t lock;
    struct completion *done[MAX_DONE];
};

struct completion {
    struct image *image;
    void *argument;
    ssize_t result;
    char kind;
    uint64_t offset, len;
    char *memory;
};

struct watcher {
    char *address;
    int64_t id;
    uint64_t cookie;
};

void rbd_version(int *major, int *minor, int *extra)
{
    *major = 1;
    *minor = MINOR;
    *extra = 0;
}

int rbd_namespace_exists(void *context, const char *space, _Bool *exists)
{
    (void)space;
    struct cluster *c = ((struct context *)context)->cluster;
    if (number(c, "fake_namespace_exists", 0))
        return -number(c, "fake_namespace_exists", 0);
    *exists = !number(c, "fake_namespace", 0);
    return 0;
}

static int open_image(void *context, void **image, const char *how)
{
    struct cluster *c = ((struct context *)context)->cluster;
    usleep(number(c, "fake_sleep", 0) * 1000);
    note(c, how);
    if (number(c, "fake_open", 0))
        return -number(c, "fake_open", 0);
    struct image *i = calloc(1, sizeof *i);
    i->cluster = c;
    i->size = number(c, "fake_size", 8 << 20);
    i->data = calloc(1, 8 << 20);
    pthread_mutex_init(&i->lock, NULL);
    *image = i;
    return 0;
}

int rbd_open(void *context, const char *name, void **image, const char *snap)
{
    (void)name;
    (void)snap;
    return open_image(context, image, "open");
}

int rbd_open_read_only(void *context, const char *name, void **image, const char *snap)
{
    (void)name;
    (void)snap;
    return open_image(context, image, "open read-only");
}

int rbd_close(void *image)
{
    struct image *i = image;
    note(i->cluster, i->completions ? "close with completions" : "close");
    free(i->data);
    free(i);
    return 0;
}

static int failing(void *image, const char *name)
{
    return -number(((struct image *)image)->cluster, name, 0);
}

int rbd_snap_set(void *image, const char *snap)
{
    (void)snap;
    return failing(image, "fake_snap");
}

int rbd_get_size(void *image, uint64_t *size)
{
    struct image *i = image;
    uint64_t later = number(i->cluster, "fake_resize", i->size);
    if (i->asked++ == 0) {
        *size = i->size;
        return failing(image, "fake_get_size");
    }
    *size = later;
    return failing(image, "fake_later_size");
}

int rbd_get_features(void *image, uint64_t *features)
{
    *features = number(((struct image *)image)->cluster, "fake_features", 4);
    return 0;
}

struct image_info {
    uint64_t size, obj_size, num_objs;
    int order;
    char prefix[24];
    int64_t parent_pool;
    char parent_name[96];
};

int rbd_stat(void *image, void *info, size_t len)
{
    struct image_info *i = info;
    if (len != sizeof(*i) || failing(image, "fake_stat"))
        return len != sizeof(*i) ? -EINVAL : failing(image, "fake_stat");
    memset(i, 0, len);
    i->size = ((struct image *)image)->size;
    i->obj_size = number(((struct image *)image)->cluster, "fake_object", 4 << 20);
    i->order = 22;
    return 0;
}

int rbd_get_overlap(void *image, uint64_t *overlap)
{
    *overlap = number(((struct image *)image)->cluster, "fake_overlap", 0);
    return 0;
}

int rbd_get_stripe_count(void *image, uint64_t *count)
{
    *count = number(((struct image *)image)->cluster, "fake_stripes", 1);
    return 0;
}

int rbd_get_id(void *image, char *id, size_t len)
{
    snprintf(id, len, "imageid");
    return failing(image, "fake_id");
}

int rbd_lock_acquire(void *image, int mode)
{
    note(((struct image *)image)->cluster, mode ? "lock shared" : "lock");
    return failing(image, "fake_lock");
}

int rbd_is_exclusive_lock_owner(void *image, int *owner)
{
    note(((struct image *)image)->cluster, "ask for the lock");
    *owner = !find(((struct image *)image)->cluster, "fake_lost");
    return failing(image, "fake_is_owner");
}

int rbd_lock_break(void *image, int mode, const char *owner)
{
    char text[256];
    snprintf(text, sizeof text, "break %d %s", mode, owner);
    note(((struct image *)image)->cluster, text);
    return failing(image, "fake_break");
}

int rbd_lock_get_owners(void *image, int *mode, char **owners, size_t *count)
{
    const char *owner = find(((struct image *)image)->cluster, "fake_owner");
    *mode = 0;
    if (find(((struct image *)image)->cluster, "fake_no_owners"))
        return *count = 0;
    if (!owner)
        return find(((struct image *)image)->cluster, "fake_owners") ? failing(image, "fake_owners") : -ENOENT;
    if (*count < 1)
        return -ERANGE;
    owners[0] = strdup(owner);
    *count = 1;
    return 0;
}

void rbd_lock_get_owners_cleanup(char **owners, size_t count)
{
    for (size_t n = 0; n < count; n++)
        free(owners[n]);
}

int rbd_watchers_list(void *image, struct watcher *watchers, size_t *count)
{
    const char *address = find(((struct image *)image)->cluster, "fake_watcher");
    size_t others = number(((struct image *)image)->cluster, "fake_others", 1), all = others + !!address;
    if (*count < all || find(((struct image *)image)->cluster, "fake_watchers")) {
        int result = *count < all ? -ERANGE : failing(image, "fake_watchers");
        *count = all;
        return result;
    }
    for (size_t n = 0; n < others; n++)
        watchers[n].address = strdup("10.0.0.1:0/1");
    if (address)
        watchers[others].address = strdup(address);
    *count = all;
    return 0;
}

void rbd_watchers_list_cleanup(struct watcher *watchers, size_t count)
{
    for (size_t n = 0; n < count; n++)
        free(watchers[n].address);
}

int rbd_diff_iterate2(void *image, const char *from, uint64_t offset, uint64_t len, uint8_t parent, uint8_t whole,
                      int (*each)(uint64_t, size_t, int, void *), void *argument)
{
    struct image *i = image;
    const char *at = find(i->cluster, "fake_extents");
    char text[256];
    (void)from, (void)parent, (void)whole;
    snprintf(text, sizeof text, "extents %llu+%llu", (unsigned long long)offset, (unsigned long long)len);
    note(i->cluster, text);
    const char *hold = find(i->cluster, "fake_extents_hold");
    while (hold && access(hold, F_OK))
        usleep(1000);
    while (at && *at) {
        char *next;
        uint64_t start = strtoull(at, &next, 10), length = strtoull(next + 1, &next, 10);
        if (start + length > offset && start < offset + len) {
            int result = each(start, length, 1, argument);
            if (result < 0)
                return result;
        }
        at = *next ? next + 1 : next;
    }
    return failing(image, "fake_diff");
}

int rbd_set_image_notification(void *image, int fd, int type)
{
    ((struct image *)image)->fd = fd;
    return type == 2 ? 0 : -EINVAL;
}

int rbd_poll_io_events(void *image, void **completions, int room)
{
    struct image *i = image;
    int count = 0;
    pthread_mutex_lock(&i->lock);
    while (count < room && i->head != i->tail)
        completions[count++] = i->done[i->head++ % MAX_DONE];
    pthread_mutex_unlock(&i->lock);
    return count;
}

int rbd_aio_create_completion(void *argument, void *callback, void **completion)
{
    if (callback)
        return -EINVAL;
#ifdef NO_COMPLETIONS
    return -ENOMEM;
#endif
    struct completion *c = calloc(1, sizeof *c);
    c->argument = argument;
    *completion = c;
    return 0;
}

void *rbd_aio_get_arg(void *completion)
{
    return ((struct completion *)completion)->argument;
}

ssize_t rbd_aio_get_return_value(void *completion)
{
    return ((struct completion *)completion)->result;
}

void rbd_aio_release(void *completion)
{
    struct completion *c = completion;
    if (c->image)
        __atomic_sub_fetch(&c->image->completions, 1, __ATOMIC_SEQ_CST);
    free(c);
}

static void *carry_out(void *argument)
{
    struct completion *c = argument;
    struct image *i = c->image;
    const char *hold = find(i->cluster, c->kind == 'r' ? "fake_read_hold" : "fake_hold");
    hold = hold ? hold : find(i->cluster, "fake_hold");
    usleep(number(i->cluster, "fake_late", 0) * 1000);
    while (hold && access(hold, F_OK))
        usleep(1000);
    const char *done = c->kind == 'r' ? find(i->cluster, "fake_read_done") : NULL;
    pthread_mutex_lock(&i->lock);
    if (c->kind == 'r' && c->result >= 0)
        memcpy(c->memory, i->data + c->offset, c->result < (ssize_t)c->len ? (size_t)c->result : c->len);
    if (c->kind == 'w' && c->result >= 0)
        memcpy(i->data + c->offset, c->memory, c->len);
    i->done[i->tail++ % MAX_DONE] = c;
    uint64_t one = 1;
    // With the lock: the image may be closed as soon as the completion was taken.
    if (write(i->fd, &one, sizeof one) < 0)
        abort();
    pthread_mutex_unlock(&i->lock);
    if (done)
        fclose(fopen(done, "w"));
    return NULL;
}

static int start(void *image, char kind, const char *name, uint64_t offset, uint64_t len, char *memory, void *completion)
{
    struct image *i = image;
    struct completion *c = completion;
    pthread_t thread;
    char text[256];
    snprintf(text, sizeof text, "%c %llu+%llu", kind, (unsigned long long)offset, (unsigned long long)len);
    note(i->cluster, text);
    if (number(i->cluster, "fake_start", 0))
        return -number(i->cluster, "fake_start", 0);
    __atomic_add_fetch(&i->completions, 1, __ATOMIC_SEQ_CST);
    c->image = i;
    c->kind = kind;
    c->offset = offset;
    c->len = len;
    c->memory = memory;
    c->result = kind == 'r' ? (ssize_t)len : 0;
    if (++i->sequence >= number(i->cluster, "fake_from", 1))
        c->result = number(i->cluster, name, c->result);
    pthread_create(&thread, NULL, carry_out, c);
    pthread_detach(thread);
    return 0;
}

int rbd_aio_read(void *image, uint64_t offset, size_t len, char *into, void *completion)
{
    return start(image, 'r', "fake_read", offset, len, into, completion);
}

int rbd_aio_write(void *image, uint64_t offset, size_t len, const char *from, void *completion)
{
    return start(image, 'w', "fake_write", offset, len, (char *)from, completion);
}

int rbd_aio_discard(void *image, uint64_t offset, uint64_t len, void *completion)
{
    return start(image, 'd', "fake_discard", offset, len, NULL, completion);
}

int rbd_aio_flush(void *image, void *completion)
{
    return start(image, 'f', "fake_flush", 0, 0, NULL, completion);
}
#endif
