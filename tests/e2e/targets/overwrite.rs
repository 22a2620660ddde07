//! `--update` and `--ignore-existing`: existing files at the target stay, whatever their contents.

use std::os::unix::fs::symlink;
use std::path::Path;

use zmove_types::Stopwatch;
use zmove_wire::Overwrite;

use crate::support::harness::{Site, both_ways};
use crate::support::hooks::HookedSink;
use crate::support::inprocess::InProcess;
use crate::support::rsync::rsync;
use crate::support::tree::{
    assert_pictures, assert_same, names, paint, painted, picture, set_mode, set_own_mtime,
};

both_ways!(
    newer_files_at_the_target_stay,
    existing_entries_stay,
    a_link_or_file_in_the_way_of_a_directory_stays,
    contents_decide_only_about_older_files,
    many_files_stay,
    a_newer_large_file_also_stays_with_delta,
    rsync_agrees,
);

const LARGE: u64 = 2 * zmove_types::GROUP_BYTES + 1;
const NOW: i64 = 1_700_000_000;

/// Creates files with different contents at both ends. At the target they are older, of the same time, newer by a
/// nanosecond, or missing.
fn grow(site: &Site) {
    for (kind, bytes) in [("small", 20), ("large", LARGE)] {
        for (age, nanos) in [
            ("older", 499),
            ("same", 500),
            ("newer", 501),
            ("missing", 0),
        ] {
            let name = format!("{kind}-{age}");
            paint(site.source().join(&name), bytes);
            set_own_mtime(&site.source().join(&name), NOW, 500);
            if age != "missing" {
                std::fs::write(site.target().join(&name), painted(bytes, 1)).unwrap();
                set_own_mtime(&site.target().join(&name), NOW, nanos);
            }
        }
    }
}

fn is_new(site: &Site, name: &str) -> bool {
    let bytes = site.source().join(name).metadata().unwrap().len();
    std::fs::read(site.target().join(name)).unwrap() == painted(bytes, 0)
}

fn newer_files_at_the_target_stay(site: &Site) {
    grow(site);
    let summary = site
        .push(&["--json", "--update"], site.contents(), "")
        .done()
        .summary();
    assert_eq!(
        (&summary["files"], &summary["skipped"]),
        (&4.into(), &4.into())
    );
    for kind in ["small", "large"] {
        let new =
            ["older", "same", "newer", "missing"].map(|age| is_new(site, &format!("{kind}-{age}")));
        assert_eq!(new, [true, false, false, true], "{kind}");
    }
    let text = site.push(&["-u"], site.contents(), "").done().stdout;
    assert!(text.starts_with("no files to move: 8 stay in "), "{text}");
}

fn existing_entries_stay(site: &Site) {
    grow(site);
    symlink("new", site.source().join("link")).unwrap();
    symlink("old", site.target().join("link")).unwrap();
    symlink("new", site.source().join("other-link")).unwrap();
    let before = picture(&site.target());
    let summary = site
        .push(&["--json", "--ignore-existing"], site.contents(), "")
        .done()
        .summary();
    assert_eq!(
        (&summary["files"], &summary["skipped"]),
        (&2.into(), &6.into())
    );
    let mut after = picture(&site.target());
    let mut source = picture(&site.source());
    for name in [&b"small-missing"[..], b"large-missing", b"other-link", b""] {
        assert_eq!(after.remove(name), source.remove(name));
    }
    assert_pictures(
        &before
            .into_iter()
            .filter(|(path, _)| !path.is_empty())
            .collect(),
        &after,
    );
}

fn a_link_or_file_in_the_way_of_a_directory_stays(site: &Site) {
    let outside = site.path("outside");
    std::fs::create_dir(&outside).unwrap();
    for name in ["file", "link"] {
        (0..20).for_each(|number| paint(site.source().join(name).join(format!("d/{number}")), 5));
    }
    paint(site.target().join("file"), 3);
    symlink(&outside, site.target().join("link")).unwrap();
    paint(site.source().join("other"), 5);
    let summary = site
        .push(&["--json", "--ignore-existing"], site.contents(), "")
        .expect(23)
        .summary();
    assert_eq!(summary["files"], 1);
    assert_eq!(
        std::fs::read(site.target().join("file")).unwrap(),
        painted(3, 0)
    );
    assert!(site.target().join("link").is_symlink());
    assert!(names(&outside).is_empty());
}

fn contents_decide_only_about_older_files(site: &Site) {
    grow(site);
    let summary = site
        .push(&["--json", "-u", "-c"], site.contents(), "")
        .done()
        .summary();
    assert_eq!(
        (&summary["files"], &summary["skipped"]),
        (&6.into(), &2.into())
    );
    assert!(is_new(site, "small-same") && is_new(site, "large-same"));
    assert!(!is_new(site, "small-newer") && !is_new(site, "large-newer"));
}

/// All but one byte of each file is equal.
fn a_newer_large_file_also_stays_with_delta(site: &Site) {
    let mut there = painted(LARGE, 0);
    there[7] ^= 1;
    for (name, seconds) in [("older", NOW - 9), ("newer", NOW + 9)] {
        paint(site.source().join(name), LARGE);
        set_own_mtime(&site.source().join(name), NOW, 0);
        std::fs::write(site.target().join(name), &there).unwrap();
        set_own_mtime(&site.target().join(name), seconds, 0);
    }
    let delta = ["--json", "--delta", "always"];
    let kept = site
        .push(
            &[&delta, &["--ignore-existing"][..]].concat(),
            site.contents(),
            "",
        )
        .done()
        .summary();
    assert_eq!(
        (&kept["skipped"], &kept["bytes_matched"]),
        (&2.into(), &0.into())
    );
    assert_eq!(std::fs::read(site.target().join("older")).unwrap(), there);
    let newer = site
        .push(&[&delta, &["--update"][..]].concat(), site.contents(), "")
        .done()
        .summary();
    let matched = LARGE - zmove_types::GROUP_BYTES;
    assert_eq!(
        (&newer["skipped"], &newer["bytes_matched"]),
        (&1.into(), &matched.into())
    );
    assert_eq!(std::fs::read(site.target().join("newer")).unwrap(), there);
    assert!(is_new(site, "older"));
}

/// There are more files than the sender sends speculatively.
fn many_files_stay(site: &Site) {
    for number in 0..2_000 {
        let name = format!("d{}/f{number}", number % 10);
        paint(site.source().join(&name), 20);
        set_own_mtime(&site.source().join(&name), NOW, 0);
        std::fs::create_dir_all(site.target().join(&name).parent().unwrap()).unwrap();
        std::fs::write(site.target().join(&name), "kept").unwrap();
    }
    let newer = site
        .push(&["--json", "--update"], site.contents(), "")
        .done()
        .summary();
    assert_eq!(
        (&newer["files"], &newer["skipped"]),
        (&0.into(), &2_000.into())
    );
    (0..2_000).for_each(|number| {
        set_own_mtime(
            &site.target().join(format!("d{}/f{number}", number % 10)),
            1,
            0,
        );
    });
    let existing = site
        .push(&["--json", "--ignore-existing"], site.contents(), "")
        .done()
        .summary();
    assert_eq!(
        (&existing["files"], &existing["skipped"]),
        (&0.into(), &2_000.into())
    );
    assert_eq!(std::fs::read(site.target().join("d7/f7")).unwrap(), b"kept");
    site.push(&["--update"], site.contents(), "").done();
    assert_same(&site.source(), &site.target());
}

fn rsync_agrees(site: &Site) {
    let other = site.path("other");
    let make = |root: &Path, seconds: i64, text: &str| {
        for name in ["d/kept", "d/gone", "e/f"] {
            paint(root.join(name), 10);
            std::fs::write(root.join(name), format!("{text} {name}")).unwrap();
            set_own_mtime(
                &root.join(name),
                if name == "d/gone" { 5 } else { seconds },
                0,
            );
        }
        symlink(text, root.join("link")).unwrap();
        set_own_mtime(&root.join("link"), seconds, 0);
    };
    make(&site.source(), 1_000, "source");
    paint(site.source().join("new/file"), 3);
    symlink("x", site.source().join("file-there")).unwrap();
    set_mode(site.source().join("d"), 0o750);
    // rsync treats times within one second as equal.
    for name in ["file-there", "new/file", "new", "d", "e", ""] {
        set_own_mtime(&site.source().join(name), 1_500, 0);
    }
    for option in ["--update", "--ignore-existing"] {
        for target in [&site.target(), &other] {
            if target.exists() {
                std::fs::remove_dir_all(target).unwrap();
            }
            make(target, 2_000, "target");
            paint(target.join("file-there"), 4);
            set_own_mtime(&target.join("file-there"), 3_000, 0);
        }
        if !rsync(&[option], &site.source(), &other) {
            return;
        }
        site.push(&[option], site.contents(), "").done();
        assert_pictures(&picture(&other), &picture(&site.target()));
    }
}

/// The file was missing when the receiver was asked, and is created before the first byte arrives.
#[test]
fn a_file_that_is_created_at_the_target_meanwhile_stays() {
    for overwrite in [Overwrite::Nothing, Overwrite::Older] {
        for inplace in [false, true] {
            let site = Site::local();
            paint(site.source().join("f"), LARGE);
            set_own_mtime(&site.source().join("f"), NOW, 0);
            paint(site.target().join("other"), 5);
            let precious = site.target().join("f");
            let wrap = move |inner| {
                let precious = precious.clone();
                let before_data = move |_: &mut Stopwatch<'_>| {
                    if !precious.exists() {
                        std::fs::write(&precious, "precious").unwrap();
                    }
                };
                Box::new(HookedSink { inner, before_data }) as _
            };
            let push = InProcess {
                overwrite,
                inplace,
                lanes: 1,
                wrap: Box::new(wrap),
                ..InProcess::default()
            };
            let pushed = push.push(&site.source(), &site.target());
            assert_eq!(
                std::fs::read(site.target().join("f")).unwrap(),
                b"precious",
                "{:?}",
                pushed.failed()
            );
        }
    }
}
