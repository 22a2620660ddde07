//! Bad targets: files in the way, no permission, no space.

use std::ffi::OsStr;

use crate::support::command::NOBODY;
use crate::support::harness::{Site, both_ways, has_program, is_root, skip};
use crate::support::namespace::Namespace;
use crate::support::tree::{assert_part_of, assert_same, names, paint, painted, picture, set_mode};

both_ways!(
    a_target_that_is_a_file_is_refused,
    a_file_on_the_way_to_the_target_is_refused,
    a_dangling_link_on_the_way_to_the_target_is_refused,
    a_directory_that_only_allows_new_names_gets_new_directories,
);

/// New directories arrive with their contents. New files do not arrive, since they could not be renamed from their
/// hidden names. Existing files stay, and no hidden copy is left.
fn a_directory_that_only_allows_new_names_gets_new_directories(site: &Site) {
    let target = site.target().join("in");
    for name in ["small", "large"] {
        let bytes = if name == "large" { 17 << 20 } else { 10 };
        paint(site.source().join(name), bytes);
        std::fs::create_dir_all(&target).unwrap();
        std::fs::write(target.join(name), "old").unwrap();
    }
    paint(site.source().join("new"), 17 << 20);
    (0..20).for_each(|number| paint(site.source().join(format!("directory/{number}")), 10));
    std::os::unix::fs::symlink("new", site.source().join("link")).unwrap();
    std::os::unix::fs::symlink("old", target.join("link")).unwrap();
    let chattr = |how: &str| {
        let done = std::process::Command::new("chattr")
            .arg(how)
            .arg(&target)
            .output();
        done.is_ok_and(|done| done.status.success())
    };
    if !is_root() || !chattr("+a") {
        return skip(
            "only root can have a directory take new names alone, and not on every file system",
        );
    }
    let pushes = [(); 2].map(|()| site.push(&[], site.contents(), "in"));
    let left = names(&target);
    let within = names(&target.join("directory")).len();
    assert!(chattr("-a"));
    for outcome in pushes {
        let outcome = outcome.expect(23);
        ["small", "large", "new", "link"]
            .into_iter()
            .fold(outcome, |outcome, name| {
                outcome.says(&[
                    "zmove: receiver: ",
                    &format!("{name}'"),
                    "Operation not permitted",
                ])
            });
    }
    // In this directory a new file could not be renamed from its hidden name either.
    assert_eq!(left, ["directory", "large", "link", "small"]);
    assert_eq!(within, 20, "what is in a new directory comes");
    assert_eq!(std::fs::read(target.join("small")).unwrap(), b"old");
    site.push(&[], site.contents(), "in").done();
    assert_same(&site.source(), &target);
}

fn a_target_that_is_a_file_is_refused(site: &Site) {
    paint(site.source().join("a"), 10);
    paint(site.source().join("b"), 10);
    paint(site.target().join("f"), 7);
    let before = picture(&site.target());
    let (a, b) = (site.source().join("a"), site.source().join("b"));
    let both = [a.as_os_str(), b.as_os_str()];
    for outcome in [
        site.push(&[], site.contents(), "f"),
        site.push(&[], site.source(), "f"),
        site.push(&[], &a, "f/"),
        site.push_command(&[], &both, "f").outcome(),
    ] {
        outcome
            .expect(3)
            .says(&[
                "zmove: receiver: target",
                "f",
                "is a file and not a directory",
            ])
            .lines(1);
    }
    crate::support::tree::assert_pictures(&before, &picture(&site.target()));
}

fn a_file_on_the_way_to_the_target_is_refused(site: &Site) {
    paint(site.source().join("a"), 10);
    paint(site.target().join("f"), 7);
    for (outcome, target) in [
        (site.push(&[], site.contents(), "f/below"), "f/below': '"),
        (site.push(&[], site.contents(), "f/a/b/c"), "f/a/b/c': '"),
        (
            site.push(&[], site.source().join("a"), "f/below/a"),
            "f/below/a': '",
        ),
        (
            site.push(&["--dry-run"], site.source().join("a"), "f/below/a"),
            "f/below/a': '",
        ),
    ] {
        let parts = [
            "zmove: receiver: target '",
            target,
            "f' is a file and not a directory",
        ];
        outcome.expect(3).says(&parts).lines(1);
    }
    assert_eq!(
        std::fs::read(site.target().join("f")).unwrap(),
        painted(7, 0)
    );
}

fn a_dangling_link_on_the_way_to_the_target_is_refused(site: &Site) {
    paint(site.source().join("a"), 10);
    std::os::unix::fs::symlink("nowhere/at/all", site.target().join("link")).unwrap();
    let outcome = site.push(&[], site.contents(), "link/x").expect(3);
    let what = if site.is_remote() {
        "link' is a symbolic link, which is not followed"
    } else {
        "link' is a broken symbolic link"
    };
    outcome.says(&["zmove: receiver: target '", what]).lines(1);
    assert_eq!(names(&site.target()), ["link"]);
}

/// The target belongs to another user.
fn no_permission(site: &Site) {
    let target = site.target();
    paint(site.source().join("small"), 10);
    paint(site.source().join("large"), zmove_types::GROUP_BYTES + 1);
    std::fs::create_dir(target.join("closed")).unwrap();
    std::fs::create_dir(target.join("open")).unwrap();
    site.give_away();
    if is_root() {
        std::os::unix::fs::chown(target.join("closed"), Some(0), Some(0)).unwrap();
        set_mode(target.join("closed"), 0o755);
        // The error is reported before any data is sent, and once for all files.
        for source in [
            site.contents(),
            site.source().join("small").into(),
            site.source().join("large").into(),
        ] {
            let outcome = site.push(&[], source, "closed").expect(3);
            outcome
                .says(&[
                    "zmove: receiver: write into directory",
                    "closed",
                    "Permission denied",
                ])
                .lines(1);
        }
        let outcome = site.push(&[], site.contents(), "closed/new").expect(3);
        outcome
            .says(&[
                "zmove: receiver: make directory",
                "closed/new",
                "Permission denied",
            ])
            .lines(1);
        assert!(names(&target.join("closed")).is_empty());
    }
    set_mode(target.join("open"), 0);
    let outcome = site.push(&[], site.source(), "open").expect(3);
    set_mode(target.join("open"), 0o700);
    outcome
        .says(&["zmove: receiver: ", "open", "Permission denied"])
        .lines(1);
    assert!(names(&target.join("open")).is_empty());
}

#[test]
fn missing_permissions_are_reported_locally() {
    if let Some(site) = Site::unprivileged() {
        no_permission(&site);
    }
}

#[test]
fn missing_permissions_are_reported_at_a_daemon() {
    if let Some(mut site) = Site::unprivileged() {
        site.start_daemon();
        no_permission(&site);
    }
}

/// The directory belongs to another user and can be traversed but not listed. It exists, so nothing tries to create it.
/// A push, its preview and a verification report it once for all files in it.
fn a_directory_that_is_closed(site: &Site) {
    if !is_root() {
        return skip("only root can make directories of another user");
    }
    for name in ["f0", "f1", "f2"] {
        paint(site.source().join("sub").join(name), 10);
    }
    paint(site.source().join("sub/large"), 17 << 20);
    let closed = site.target().join("sub");
    std::fs::create_dir(&closed).unwrap();
    site.give_away();
    std::os::unix::fs::chown(&closed, Some(0), Some(0)).unwrap();
    set_mode(&closed, 0o711);
    let opens = "zmove: receiver: open directory 'sub': Permission denied (os error 13)";
    // A verification also lists entries that exist only at the target.
    let lists = "zmove: receiver: list directory 'sub': Permission denied (os error 13)";
    let commands: [(&[&str], &[&str]); 3] = [
        (&["push", "-n"], &[opens]),
        (&["verify"], &[opens, lists]),
        (&["push"], &[opens]),
    ];
    for (words, told) in commands {
        let mut zmove = site.zmove(words);
        zmove.0.arg(site.contents()).arg(site.address(""));
        let outcome = zmove.outcome().expect(23);
        let lines: Vec<_> = outcome.stderr.lines().collect();
        let (advice, failures) = lines.split_last().unwrap();
        assert_eq!(failures, told, "{words:?}");
        assert!(
            advice.starts_with("zmove: receiver: Permission denied. "),
            "{advice}"
        );
        assert!(outcome.stdout.contains(" FAILED"), "{}", outcome.stdout);
        let is_listed = ["sub/f", "sub/large"]
            .iter()
            .any(|name| outcome.stdout.contains(name));
        assert!(!is_listed, "{words:?}: {}", outcome.stdout);
        if words == ["push"] {
            assert!(
                outcome.stdout.starts_with("no file was moved"),
                "{}",
                outcome.stdout
            );
        }
    }
    let outcome = site.push(&[], site.contents(), "sub/").expect(3);
    outcome
        .says(&[
            "zmove: receiver: open directory '",
            "sub/': Permission denied",
        ])
        .lines(1);
    assert!(names(&closed).is_empty());
}

#[test]
fn a_closed_directory_is_reported_once_locally() {
    if let Some(site) = Site::unprivileged() {
        a_directory_that_is_closed(&site);
    }
}

#[test]
fn a_closed_directory_is_reported_once_at_a_daemon() {
    if let Some(mut site) = Site::unprivileged() {
        site.start_daemon();
        a_directory_that_is_closed(&site);
    }
}

/// A drop box: the target and a directory in it belong to another user, and this user may create entries in them but
/// not list them. All files arrive, and later pushes look up each name. `path` is the address of the drop box.
fn a_drop_box(site: &Site, path: &str) {
    if !is_root() {
        return skip("only root can make directories of another user");
    }
    let source = site.source();
    let drop_box = site.target().join("box");
    std::fs::create_dir_all(drop_box.join("sub")).unwrap();
    for (name, bytes) in [("large", 17 << 20), ("small", 10), ("sub/f", 10)] {
        paint(source.join(name), bytes);
    }
    (0..70).for_each(|number| paint(source.join(format!("d/{number}")), 10));
    std::os::unix::fs::symlink("small", source.join("link")).unwrap();
    std::fs::hard_link(source.join("small"), source.join("also")).unwrap();
    site.give_away();
    for closed in [drop_box.clone(), drop_box.join("sub")] {
        std::os::unix::fs::chown(&closed, Some(0), Some(0)).unwrap();
        set_mode(&closed, 0o333);
    }
    let push = |options: &[&str]| site.push(options, site.contents(), path);
    let assert_arrived = || {
        assert_eq!(
            names(&drop_box),
            ["also", "d", "large", "link", "small", "sub"]
        );
        for name in ["also", "d/69", "large", "link", "small", "sub/f"] {
            let [here, there] = [&source, &drop_box].map(|at| std::fs::read(at.join(name)));
            assert_eq!(here.unwrap(), there.unwrap(), "{name}");
        }
    };
    push(&[]).done();
    assert_arrived();
    let told = push(&[]).done().stdout;
    assert!(told.contains("no files to move"), "{told}");
    set_mode(&drop_box, 0o1733);
    paint(source.join("small"), 11);
    paint(source.join("large"), (17 << 20) + 1);
    std::fs::remove_dir_all(drop_box.join("d")).unwrap();
    push(&["--durability", "file"]).done();
    assert_arrived();
    let lists = [
        "zmove: receiver: list directory '",
        "': Permission denied (os error 13)",
        "(a push with --delete",
    ];
    push(&["--delete"]).expect(3).says(&lists).lines(1);
    // Only the directory below the drop box must be listed.
    std::fs::write(drop_box.join("d/extra"), "x").unwrap();
    site.push(&["--delete"], source.join("d"), path).done();
    assert_arrived();
    assert_eq!(names(&drop_box.join("d")).len(), 70);
}

#[test]
fn a_drop_box_locally() {
    if let Some(site) = Site::unprivileged() {
        a_drop_box(&site, "box");
    }
}

#[test]
fn a_drop_box_in_the_root_of_a_daemon() {
    if let Some(mut site) = Site::unprivileged() {
        site.start_daemon();
        a_drop_box(&site, "box");
    }
}

#[test]
fn a_drop_box_that_is_the_root_of_a_confined_daemon() {
    if let Some(mut site) = Site::unprivileged() {
        std::fs::create_dir(site.target().join("box")).unwrap();
        site.start_daemon_for("target/box", &["--confine", "auto"]);
        a_drop_box(&site, "");
    }
}

/// Files of another user can be replaced if the directory allows it, but their mode cannot be set.
#[test]
fn a_file_whose_mode_cannot_be_set_is_sent_again() {
    let Some(site) = Site::unprivileged() else {
        return;
    };
    if !is_root() {
        return skip("only root can make files of another user");
    }
    paint(site.source().join("f"), 10);
    site.give_away();
    site.push_contents();
    std::os::unix::fs::chown(site.target().join("f"), Some(0), Some(0)).unwrap();
    set_mode(site.source().join("f"), 0o604);
    site.push_contents();
    assert_same(&site.source(), &site.target());
    let owner = std::os::unix::fs::MetadataExt::uid(&site.target().join("f").metadata().unwrap());
    assert_eq!(owner, NOBODY);
}

/// Only the owner of a directory may set its mode and time. A user with write permission can store all files in it.
#[test]
fn a_directory_of_another_user_keeps_its_mode_and_time() {
    let Some(site) = Site::unprivileged() else {
        return;
    };
    if !is_root() {
        return skip("only root can make directories of another user");
    }
    std::fs::create_dir(site.source().join("d")).unwrap();
    std::fs::create_dir(site.target().join("d")).unwrap();
    paint(site.source().join("d/f"), 10);
    paint(site.source().join("large"), 5 << 20);
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    crate::support::tree::set_mtime(site.source().join("d"), old);
    site.give_away();
    for directory in [site.target(), site.target().join("d")] {
        std::os::unix::fs::chown(&directory, Some(0), Some(0)).unwrap();
        set_mode(&directory, 0o777);
    }
    let push = |options: &[&str]| site.push(options, site.contents(), "");
    for moved in ["2 files", "no files to move"] {
        let told = push(&[]).done().stdout;
        let warned = "2 directories at the target belong to other users: their modes and times stay as they are";
        assert_eq!(told.matches(warned).count(), 1, "{told}");
        let lacks = "not kept: mode of 2 (not permitted to the receiver's user), times of 2 (not permitted to the \
            receiver's user)";
        assert!(told.contains(lacks) && told.contains(moved), "{told}");
        for name in ["d/f", "large"] {
            let [here, there] = [site.source(), site.target()].map(|at| at.join(name));
            assert_eq!(std::fs::read(here).unwrap(), std::fs::read(there).unwrap());
        }
    }
    push(&["--strict-metadata"]).expect(23);
    push(&["--strict-metadata", "-O"]).expect(23);
    push(&["--strict-metadata", "-O", "--no-p"]).done();
}

/// Some files fit and some do not. Files with final names are complete, and the others are reported.
fn no_space(site: &Site) {
    for number in 0..40 {
        paint(site.source().join(format!("small/{number}")), 50_000);
    }
    for number in 0..3 {
        paint(
            site.source().join(format!("large{number}")),
            2 * zmove_types::GROUP_BYTES + 5,
        );
    }
    let outcome = site.push(&["--json"], site.contents(), "").expect(23);
    let summary = outcome.summary();
    let failed = summary["failed"].as_u64().unwrap();
    assert!(failed > 0);
    assert_eq!(summary["files"].as_u64().unwrap() + failed, 43);
    let told =
        |line: &str| line.contains("zmove: receiver: ") && line.contains("No space left on device");
    assert_eq!(
        outcome.stderr.lines().filter(|line| told(line)).count() as u64,
        failed,
        "{}",
        outcome.stderr
    );
    let warned = |line: &str| line.contains("free, less than the push needs");
    assert_eq!(
        outcome.stderr.lines().filter(|line| warned(line)).count(),
        1,
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.stderr.lines().count() as u64, failed + 1);
    assert_part_of(&site.source(), &site.target());
    assert!(
        picture(&site.target())
            .keys()
            .all(|path| !path.starts_with(b".zmove"))
    );
    // The files at the target are enough for a second run to continue from.
    for number in 0..3 {
        std::fs::remove_file(site.source().join(format!("large{number}"))).unwrap();
        drop(std::fs::remove_file(
            site.target().join(format!("large{number}")),
        ));
    }
    site.push_contents();
    assert_same(&site.source(), &site.target());
}

const SMALL_DISK_BYTES: u64 = 14 << 20;

#[test]
fn files_without_space_are_reported_locally() {
    if let Some(site) = Site::within(|target| Namespace::with_small_disk(target, SMALL_DISK_BYTES))
    {
        no_space(&site);
    }
}

#[test]
fn files_without_space_are_reported_at_a_daemon() {
    if let Some(mut site) =
        Site::within(|target| Namespace::with_small_disk(target, SMALL_DISK_BYTES))
    {
        site.start_daemon();
        no_space(&site);
    }
}

#[test]
fn a_manifest_that_cannot_be_created_is_reported() {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    let options = ["--manifest", "nowhere/manifest"];
    let outcome = site.push(&options, OsStr::new("source"), "x").expect(11);
    outcome
        .says(&[
            "zmove: sender: create 'nowhere/manifest'",
            "No such file or directory",
        ])
        .lines(1);
    assert!(names(&site.target()).is_empty());
}

/// The kernel kills a process that writes beyond the file size limit, unless the process handles the signal.
#[test]
fn a_file_beyond_the_limit_for_files_fails_alone() {
    if !has_program("prlimit") {
        return skip("prlimit is missing");
    }
    let site = Site::local();
    paint(site.source().join("small"), 10);
    paint(site.source().join("beyond"), 300_000);
    paint(site.source().join("large"), 2 * zmove_types::GROUP_BYTES);
    let push = site.push_command(&[], &[&site.contents()], "");
    let mut limited = std::process::Command::new("prlimit");
    limited
        .arg("--fsize=200000")
        .arg(push.0.get_program())
        .args(push.0.get_args());
    limited.env("ZMOVE_HOME", site.path("client"));
    let outcome = crate::support::command::Zmove(limited).outcome().expect(23);
    for name in ["beyond", "large"] {
        assert!(
            outcome.stderr.contains(&format!("{name}': File too large")),
            "{}",
            outcome.stderr
        );
    }
    assert_eq!(names(&site.target()), ["small"]);
}
