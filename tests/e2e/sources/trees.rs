//! Properties that a copy preserves: sizes, names, types, modes and times.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags, mkdirat, open, openat};

use crate::support::command::ZMOVE;
use crate::support::harness::{Site, every_way, is_root, write_program};
use crate::support::tree::{
    assert_pictures, assert_same, paint, paint_interesting_sizes, painted, picture, set_mode,
    set_own_mtime,
};

every_way!(
    files_of_interesting_sizes_arrive,
    an_empty_tree_and_empty_directories_arrive,
    names_are_bytes,
    names_like_those_of_hidden_entries_are_data,
    links_stay_links,
    modes_are_kept_and_setuid_is_not,
    a_new_target_is_as_open_as_the_source_or_as_usual,
    times_are_kept_to_the_nanosecond,
    many_directories_keep_modes_and_times,
    paths_beyond_the_kernel_limit_arrive,
    thousands_of_small_files_arrive,
    special_files_are_counted_and_not_copied,
);

fn files_of_interesting_sizes_arrive(site: &Site) {
    paint_interesting_sizes(&site.source());
    let summary = site.push_contents();
    assert_eq!(summary["files"], 17);
    assert_eq!(
        (&summary["skipped"], &summary["failed"], &summary["resent"]),
        (&0.into(), &0.into(), &0.into())
    );
    let bytes: u64 = crate::support::tree::INTERESTING_SIZES.iter().sum();
    assert_eq!(summary["bytes"], bytes);
    assert_same(&site.source(), &site.target());
}

fn an_empty_tree_and_empty_directories_arrive(site: &Site) {
    set_own_mtime(&site.source(), 1_111_111_111, 5);
    assert_eq!(site.push_contents()["files"], 0);
    assert_same(&site.source(), &site.target());
    std::fs::create_dir_all(site.source().join("a/b/c")).unwrap();
    std::fs::create_dir(site.source().join("d")).unwrap();
    set_own_mtime(&site.source().join("a/b"), 1_000, 7);
    set_mode(site.source().join("d"), 0o710);
    site.push_contents();
    assert_same(&site.source(), &site.target());
}

fn names_are_bytes(site: &Site) {
    let longest = "n".repeat(255);
    let names: [&[u8]; 9] = [
        b"caf\xe9",
        b"\xff\xfe",
        b"new\nline",
        b"back\\slash",
        b" space ",
        b"-rf",
        b"a:b",
        "größe".as_bytes(),
        longest.as_bytes(),
    ];
    for name in names {
        let directory = site
            .source()
            .join(OsStr::from_bytes(b"d\x80"))
            .join(OsStr::from_bytes(name));
        paint(directory.join(OsStr::from_bytes(name)), 11);
    }
    assert_eq!(site.push_contents()["files"], 9);
    assert_same(&site.source(), &site.target());
}

/// New directories are filled under hidden names with this pattern, and leftovers of a killed receiver are removed.
fn names_like_those_of_hidden_entries_are_data(site: &Site) {
    for directory in [
        "d",
        ".zmove-1.2.3-4-5-6-7-8-9",
        "d/.zmove-1.2.3-4-5-6-7-8-9",
    ] {
        for number in 0..20 {
            paint(
                site.source().join(directory).join(format!("f{number}")),
                100,
            );
        }
    }
    for moved in [60, 0, 0] {
        assert_eq!(site.push_contents()["files"], moved);
        assert_same(&site.source(), &site.target());
    }
}

fn links_stay_links(site: &Site) {
    let source = site.source();
    paint(source.join("d/f"), 3);
    for (target, name) in [
        ("nowhere", "dangling"),
        ("d", "to-dir"),
        ("/etc/passwd", "absolute"),
        ("../..", "up"),
    ] {
        symlink(target, source.join(name)).unwrap();
        set_own_mtime(&source.join(name), 1_234_567_890, 123_456_789);
    }
    symlink(OsStr::from_bytes(b"\xff\n"), source.join("bytes")).unwrap();
    assert_eq!(site.push_contents()["files"], 1);
    assert_same(&source, &site.target());
    site.push_contents();
    assert_same(&source, &site.target());
}

fn modes_are_kept_and_setuid_is_not(site: &Site) {
    let source = site.source();
    for mode in [0o400, 0o444, 0o600, 0o644, 0o666, 0o755, 0o777] {
        paint(source.join(format!("f{mode:o}")), 10);
        set_mode(source.join(format!("f{mode:o}")), mode);
        std::fs::create_dir(source.join(format!("d{mode:o}"))).unwrap();
        set_mode(source.join(format!("d{mode:o}")), mode | 0o500);
    }
    std::fs::create_dir(source.join("sticky")).unwrap();
    set_mode(source.join("sticky"), 0o1777);
    site.push_contents();
    assert_same(&source, &site.target());
    let large = 2 * zmove_types::GROUP_BYTES;
    for (name, mode, bytes) in [
        ("setuid", 0o4755, 10),
        ("setgid", 0o2755, 10),
        ("both", 0o6755, large),
    ] {
        paint(source.join(name), bytes);
        set_mode(source.join(name), mode);
    }
    // The owner is not transferred, so these bits would grant another user's privileges.
    let mut expected = picture(&source);
    expected.values_mut().for_each(|node| node.mode &= !0o6000);
    for _ in 0..2 {
        site.push_contents();
        assert_pictures(&expected, &picture(&site.target()));
    }
}

fn times_are_kept_to_the_nanosecond(site: &Site) {
    let source = site.source();
    let large = 2 * zmove_types::GROUP_BYTES;
    let times = [
        (-1, 999_999_999),
        (-1_000_000_000, 1),
        (0, 0),
        (1, 123_456_789),
        (4_000_000_000, 5),
    ];
    for (number, (seconds, nanos)) in times.into_iter().enumerate() {
        for (kind, bytes) in [("small", 10), ("large", large)] {
            let path = source.join(format!("{kind}{number}"));
            paint(&path, bytes);
            set_own_mtime(&path, seconds, nanos);
        }
        std::fs::create_dir(source.join(format!("d{number}"))).unwrap();
        paint(source.join(format!("d{number}/inner")), 1);
        set_own_mtime(&source.join(format!("d{number}")), seconds, nanos);
    }
    set_own_mtime(&source, -3, 300);
    site.push_contents();
    assert_same(&source, &site.target());
    assert_eq!(site.push_contents()["files"], 0);
    assert_same(&source, &site.target());
}

/// The parent directories of the target get no mode from the source. Neither does the target if only the contents of
/// the source are sent.
fn a_new_target_is_as_open_as_the_source_or_as_usual(site: &Site) {
    paint(site.source().join("f"), 10);
    set_mode(site.source(), 0o710);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    std::fs::create_dir(site.path("usual")).unwrap();
    std::fs::write(site.path("list"), "f\n").unwrap();
    site.push(&[], site.contents(), "above/new").done();
    site.push(
        &["--files-from", site.path("list").to_str().unwrap()],
        site.source(),
        "listed",
    )
    .done();
    site.push(&[], site.source().join("f"), "single/").done();
    assert_eq!(mode(&site.target().join("above/new")), 0o710);
    for name in ["above", "listed", "single"] {
        assert_eq!(
            mode(&site.target().join(name)),
            mode(&site.path("usual")),
            "{name}"
        );
    }
}

/// There are enough directories of one depth for several threads to finish them.
fn many_directories_keep_modes_and_times(site: &Site) {
    let source = site.source();
    for (number, mode) in (0..600).zip([0o755, 0o700, 0o711, 0o750].into_iter().cycle()) {
        let outer = source.join(format!("d{number}"));
        std::fs::create_dir_all(outer.join("inner")).unwrap();
        for directory in [outer.join("inner"), outer] {
            set_mode(&directory, mode);
            set_own_mtime(&directory, 1_000_000_000 + number, 5);
        }
    }
    site.push_contents();
    assert_same(&source, &site.target());
}

fn paths_beyond_the_kernel_limit_arrive(site: &Site) {
    let name = "d".repeat(200);
    let mut directory = open(site.source(), OFlags::RDONLY, Mode::empty()).unwrap();
    for _ in 0..30 {
        mkdirat(&directory, name.as_str(), Mode::RWXU).unwrap();
        directory = openat(&directory, name.as_str(), OFlags::RDONLY, Mode::empty()).unwrap();
        let fd = openat(
            &directory,
            "small",
            OFlags::WRONLY | OFlags::CREATE,
            Mode::RUSR,
        )
        .unwrap();
        rustix::io::write(&fd, &painted(100, 0)).unwrap();
    }
    let fd = openat(
        &directory,
        "large",
        OFlags::WRONLY | OFlags::CREATE,
        Mode::RUSR,
    )
    .unwrap();
    rustix::fs::ftruncate(&fd, zmove_types::GROUP_BYTES + 1).unwrap();
    for round in [31, 0] {
        assert_eq!(site.push_contents()["files"], round);
        assert_same(&site.source(), &site.target());
    }
}

/// There are more files than fit into a batch.
fn thousands_of_small_files_arrive(site: &Site) {
    const FILES: u64 = 2_500;
    for number in 0..FILES {
        paint(
            site.source()
                .join(format!("{}/{}/{number}", number % 10, number % 97)),
            number % 700,
        );
    }
    assert_eq!(site.push_contents()["files"], FILES);
    assert_same(&site.source(), &site.target());
    let again = site.push_contents();
    assert_eq!(
        (&again["files"], &again["skipped"]),
        (&0.into(), &FILES.into())
    );
}

fn special_files_are_counted_and_not_copied(site: &Site) {
    paint(site.source().join("f"), 5);
    make_fifo(&site.source().join("fifo"));
    let summary = site.push_contents();
    assert_eq!(
        (&summary["files"], &summary["specials"]),
        (&1.into(), &1.into())
    );
    assert_eq!(crate::support::tree::names(&site.target()), ["f"]);
    let text = site.push(&[], site.contents(), "").done().stdout;
    assert!(text.contains("1 special file not copied"), "{text}");
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// The mode of a directory is set after its last entry, and does not prevent a second push.
fn read_only_directories(site: &Site) {
    let source = site.source();
    paint(source.join("a/b/f"), 10);
    paint(source.join("a/g"), zmove_types::GROUP_BYTES + 1);
    site.give_away();
    let set_all = |mode| {
        ["a/b", "a"]
            .iter()
            .for_each(|name| set_mode(source.join(name), mode))
    };
    for round in 0..2_u64 {
        set_all(0o755);
        paint(source.join("a/b/new").with_extension(round.to_string()), 10);
        std::fs::rename(
            source.join("a/b").join(format!("new.{round}")),
            source.join("a/b/f"),
        )
        .unwrap();
        site.give_away();
        set_all(0o555);
        site.push_contents();
        assert_same(&source, &site.target());
    }
    // The user who runs the case must be able to remove these directories.
    set_all(0o755);
    ["a/b", "a"]
        .iter()
        .for_each(|name| set_mode(site.target().join(name), 0o755));
}

/// Makes changes at the source and transfers them to the target root and a directory in it: a file is added, one is
/// replaced, and one is removed. The modes then equal the modes of the source.
fn read_only_top_and_below(site: &Site, transfer: impl Fn(&Site, &[&str])) {
    let [source, target] = [site.source(), site.path("target/top")];
    for directory in ["", "sub"] {
        for name in ["one", "two", "three"] {
            paint(source.join(directory).join(name), 10);
        }
    }
    // The target is writable by its owner when the source is not, and vice versa.
    std::fs::create_dir_all(target.join("sub")).unwrap();
    let set_all = |mode| {
        for top in [&source, &target] {
            ["sub", ""]
                .iter()
                .for_each(|name| set_mode(top.join(name), mode));
        }
    };
    let changes: [&dyn Fn(&Path); 4] = [
        &|_nothing| {},
        &|directory| paint(directory.join("new"), 20),
        &|directory| paint(directory.join("two"), 30),
        &|directory| std::fs::remove_file(directory.join("three")).unwrap(),
    ];
    for (source_mode, target_mode) in [(0o555, 0o755), (0o555, 0o555), (0o755, 0o555)] {
        for change in changes {
            set_all(0o755);
            for directory in ["", "sub"] {
                paint(source.join(directory).join("three"), 40);
                paint(target.join(directory).join("alone"), 10);
                change(&source.join(directory));
            }
            site.give_away();
            for name in ["sub", ""] {
                set_mode(source.join(name), source_mode);
                set_mode(target.join(name), target_mode);
            }
            transfer(site, &["--delete"]);
            assert_same(&source, &target);
            transfer(site, &[]);
            assert_same(&source, &target);
        }
    }
    set_all(0o755);
}

#[test]
fn a_read_only_target_takes_files_again_locally() {
    if let Some(site) = Site::unprivileged() {
        read_only_top_and_below(&site, |site, options| {
            site.push(options, site.contents(), "top").done();
        });
    }
}

/// The root of the daemon's key is the target itself.
#[test]
fn a_read_only_target_takes_files_again_at_a_daemon() {
    let Some(mut site) = Site::unprivileged() else {
        return;
    };
    std::fs::create_dir(site.path("target/top")).unwrap();
    site.start_daemon_for("target/top", &[]);
    read_only_top_and_below(&site, |site, options| {
        site.push(options, site.contents(), "").done();
    });
}

/// The user's shell replaces ssh.
#[test]
fn a_read_only_target_takes_files_again_over_ssh() {
    let Some(site) = Site::unprivileged() else {
        return;
    };
    let ssh = site.path("ssh");
    let text = "#!/bin/sh\nwhile [ $# -gt 1 ]; do shift; done\nexec sh -c \"$1\"\n";
    write_program(&ssh, text);
    read_only_top_and_below(&site, |site, options| {
        let zmove = site.runner.program.clone().unwrap_or_else(|| ZMOVE.into());
        let target = format!("user@localhost:{}", site.path("target/top").display());
        let ssh = format!("'{}'", ssh.display());
        let mut push = crate::commands::ssh::push_by(site, &ssh, &zmove, options, &target);
        push.0.env("ZMOVE_HOME", site.path("client"));
        push.outcome().done();
    });
}

#[test]
fn a_read_only_target_takes_files_again_by_a_pull() {
    let Some(mut site) = Site::unprivileged() else {
        return;
    };
    site.let_read("source");
    site.start_daemon();
    read_only_top_and_below(&site, |site, options| {
        let source = site.contents().into_string().unwrap();
        site.pull(options, &[&source], "top").done();
    });
}

/// A list of files sets no mode on the target.
#[test]
fn a_read_only_target_of_listed_files_keeps_its_mode() {
    let Some(site) = Site::unprivileged() else {
        return;
    };
    paint(site.source().join("sub/f"), 10);
    paint(site.source().join("f"), 10);
    std::fs::write(site.path("list"), "f\nsub/f\n").unwrap();
    site.give_away();
    set_mode(site.target(), 0o555);
    let list = site.path("list");
    let outcome = site.push(
        &["--files-from", list.to_str().unwrap()],
        site.contents(),
        "",
    );
    let mode = std::fs::metadata(site.target())
        .unwrap()
        .permissions()
        .mode();
    set_mode(site.target(), 0o755);
    outcome.done();
    assert_eq!(mode & 0o7777, 0o555);
    assert_same(&site.source().join("sub"), &site.target().join("sub"));
    assert_eq!(
        std::fs::read(site.source().join("f")).unwrap(),
        std::fs::read(site.target().join("f")).unwrap()
    );
}

#[test]
fn read_only_directories_take_files_again_locally() {
    if let Some(site) = Site::unprivileged() {
        read_only_directories(&site);
    }
}

#[test]
fn read_only_directories_take_files_again_at_a_daemon() {
    if let Some(mut site) = Site::unprivileged() {
        site.start_daemon();
        read_only_directories(&site);
    }
}

#[test]
fn a_file_without_any_permission_is_carried_by_root() {
    if !is_root() {
        return crate::support::harness::skip("only root reads a file of mode 0000");
    }
    for site in [Site::local(), Site::daemon()] {
        paint(site.source().join("f"), 10);
        paint(site.source().join("g"), zmove_types::GROUP_BYTES + 1);
        set_mode(site.source().join("f"), 0);
        set_mode(site.source().join("g"), 0);
        site.push_contents();
        assert_same(&site.source(), &site.target());
    }
}
