/* A folder with the files of /sys (fake_sysfs.h). */
#include "tests/worker/doctor/fake_sysfs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/fs.h"
#include "tests/tmp.h"

#include <string.h>

static void full_path(const struct fake_sysfs *sysfs, const char *path, char ret[PATH_MAX])
{
    const int length = snprintf(ret, PATH_MAX, "%s/%s", sysfs->root, path);
    assert_true(length > 0 && length < PATH_MAX);
}

static void make_folder_of(const char *path)
{
    char folder[PATH_MAX];
    struct dpt_err err;
    assert_int_equal(dpt_fs_folder(path, folder, &err), DPT_OK);
    assert_int_equal(dpt_fs_mkdirs(folder, &err), DPT_OK);
}

void fake_sysfs_make(struct fake_sysfs *sysfs)
{
    assert_true(test_make_dir(sysfs->root, sizeof sysfs->root, "doctor"));
}

void fake_sysfs_remove(struct fake_sysfs *sysfs)
{
    struct dpt_err err;
    if (sysfs->root[0] != '\0')
        assert_int_equal(dpt_fs_remove_tree(sysfs->root, &err), DPT_OK);
    sysfs->root[0] = '\0';
}

void fake_sysfs_write(const struct fake_sysfs *sysfs, const char *path, const char *text)
{
    char full[PATH_MAX];
    full_path(sysfs, path, full);
    make_folder_of(full);
    FILE *file = fopen(full, "we");
    assert_non_null(file);
    assert_true(fprintf(file, "%s\n", text) > 0);
    assert_int_equal(fclose(file), 0);
}

void fake_sysfs_link(const struct fake_sysfs *sysfs, const char *path, const char *target)
{
    char from[PATH_MAX], to[PATH_MAX];
    full_path(sysfs, path, from);
    full_path(sysfs, target, to);
    make_folder_of(from);
    assert_int_equal(symlink(to, from), 0);
}

void fake_sysfs_pci(const struct fake_sysfs *sysfs, const char *place, const char *vendor,
                    const char *class, const char *numa)
{
    char path[PATH_MAX], target[PATH_MAX];
    const char *slash = strrchr(place, '/');
    const char *bus = slash ? slash + 1 : place;
    const struct {
        const char *name, *text;
    } files[] = {{"vendor", vendor}, {"class", class}, {"numa_node", numa}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        (void)snprintf(path, sizeof path, "sys/devices/%s/%s", place, files[i].name);
        fake_sysfs_write(sysfs, path, files[i].text);
    }
    (void)snprintf(path, sizeof path, "sys/bus/pci/devices/%s", bus);
    (void)snprintf(target, sizeof target, "sys/devices/%s", place);
    fake_sysfs_link(sysfs, path, target);
}
