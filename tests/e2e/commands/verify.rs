//! `zmove verify` compares the stored contents of both ends.

mod directions;
mod manifest;

use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use zmove_types::{GROUP_BYTES, RelPath};
use zmove_wire::limits::HASHED_GROUPS_MAX;
use zmove_wire::{
    Answer, Extraneous, FileGroups, Intent, NameRange, Open, Question, Reply, Request, ToReceiver,
    ToSender, encode_message,
};

use crate::commands::dry_run::snapshot;
use crate::security::intruder::{Deed, Intruded, Intruder};
use crate::support::command::Outcome;
use crate::support::harness::{Site, both_ways};
use crate::support::namespace::Image;
use crate::support::tree::{paint, set_mode, set_old};

both_ways!(
    equal_trees_are_found_equal_and_not_changed,
    each_difference_is_named_and_of_large_files_its_bytes,
    a_single_file_is_compared_under_its_new_name,
    entries_of_other_types_differ,
);

const LARGE: u64 = 5 * GROUP_BYTES + 7;

#[test]
fn hashes_are_bounded_and_need_a_verification() {
    let hash = |count| {
        let path = RelPath::from_bytes(b"f").unwrap();
        ask(Question::Hash(FileGroups {
            path,
            first: 0,
            count,
        }))
    };
    let most = u32::try_from(HASHED_GROUPS_MAX).unwrap();
    for (verify, groups, is_refused) in [
        (true, most, false),
        (true, most + 1, true),
        (false, 1, true),
    ] {
        let site = Site::local();
        paint(site.target().join("f"), LARGE);
        let mut intruder = Intruder::new(&site.target());
        intruder.open = Open {
            intent: Intent::Inspect,
            verify,
            ..Open::new(Vec::new(), [1; 16])
        };
        let Intruded { ended, answers } = intruder.does(vec![hash(groups)]);
        assert_eq!(ended.is_err(), is_refused, "{verify} {groups}: {ended:?}");
        let hashed = answers.iter().find_map(|answer| match answer {
            ToSender::Reply(Reply {
                answer: Answer::Hashes(hashes),
                ..
            }) => Some(hashes.values.len()),
            _ => None,
        });
        assert_eq!(hashed, (!is_refused).then_some(6), "{verify} {groups}");
    }
}

fn ask(question: Question) -> Deed {
    let request = Request {
        number: 1,
        question,
    };
    Deed::Message(encode_message(&ToReceiver::Request(request)))
}

/// Otherwise a dry run would tell a sending host which other entries its client has.
#[test]
fn an_inspection_lists_names_only_where_it_may_remove() {
    let range = NameRange {
        directory: RelPath::root(),
        after: None,
        names: Vec::new(),
        open: true,
    };
    for (extraneous, listed) in [(Extraneous::Stays, None), (Extraneous::Goes, Some(1))] {
        let site = Site::local();
        std::fs::write(site.target().join("private"), "").unwrap();
        let mut intruder = Intruder::new(&site.target());
        intruder.open = Open {
            intent: Intent::Inspect,
            extraneous,
            ..Open::new(Vec::new(), [1; 16])
        };
        let question = Question::Extraneous(vec![range.clone()]);
        let Intruded { answers, .. } = intruder.does(vec![ask(question)]);
        let names = answers.iter().find_map(|answer| match answer {
            ToSender::Reply(Reply {
                answer: Answer::Extraneous(extra),
                ..
            }) => Some(extra.names.len()),
            _ => None,
        });
        assert_eq!(names, listed, "{extraneous:?}");
    }
}

fn verify(site: &Site, options: &[&str]) -> Outcome {
    let mut zmove = site.zmove(&["verify"]);
    zmove
        .0
        .args(options)
        .arg(site.contents())
        .arg(site.address(""));
    zmove.outcome()
}

impl Outcome {
    /// Asserts that the summary begins with `words`.
    fn sums_up(self, words: &str) -> Self {
        assert!(
            self.stdout.lines().any(|line| line.starts_with(words)),
            "{words} in:\n{}",
            self.stdout
        );
        self
    }
}

/// Lines of the list, sorted.
fn list(outcome: &Outcome) -> Vec<&str> {
    let is_line = |line: &&str| ["+ ", "~ ", "- "].iter().any(|sign| line.starts_with(sign));
    let mut lines: Vec<_> = outcome.stdout.lines().filter(is_line).collect();
    lines.sort_unstable();
    lines
}

fn grow(site: &Site) {
    grow_by(site, LARGE);
}

/// Creates entries of each kind. The large files have this size.
fn grow_by(site: &Site, large_bytes: u64) {
    let source = site.source();
    for name in ["a", "empty/../b", "d/c"] {
        std::fs::create_dir_all(source.join("empty")).unwrap();
        paint(source.join(name), 1000);
    }
    std::fs::write(source.join("nothing"), "").unwrap();
    paint(source.join("large"), large_bytes);
    let sparse = std::fs::File::create(source.join("sparse")).unwrap();
    sparse.write_all_at(b"data", large_bytes / 2).unwrap();
    sparse.set_len(large_bytes).unwrap();
    std::fs::hard_link(source.join("a"), source.join("d/link")).unwrap();
    std::fs::hard_link(source.join("large"), source.join("d/large")).unwrap();
    symlink("a", source.join("symlink")).unwrap();
}

fn equal_trees_are_found_equal_and_not_changed(site: &Site) {
    grow(site);
    site.push_contents();
    // Holes and zeros are equal contents.
    std::fs::remove_file(site.target().join("sparse")).unwrap();
    let mut zeros = vec![0; usize::try_from(LARGE).unwrap()];
    zeros[usize::try_from(LARGE / 2).unwrap()..][..4].copy_from_slice(b"data");
    std::fs::write(site.target().join("sparse"), zeros).unwrap();
    for path in [site.source(), site.target()] {
        set_old(path.join("sparse"));
        set_old(path);
    }
    let before = snapshot(&site.target());
    let outcome = verify(site, &[])
        .done()
        .sums_up("all the same: 8 files compared by hash");
    assert!(list(&outcome).is_empty());
    assert_eq!(snapshot(&site.target()), before);
    let summary = verify(site, &["--json"]).done().summary();
    assert_eq!(
        (&summary["verify"], &summary["skipped"]),
        (&true.into(), &8.into())
    );
}

/// Changes bytes of a file but keeps its size and timestamps.
pub(crate) fn spoil(path: &Path, offset: u64) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"\xff", offset).unwrap();
    file.set_modified(modified).unwrap();
}

#[test]
fn a_verification_is_not_logged_as_received() {
    let site = Site::daemon();
    paint(site.source().join("f"), 1000);
    site.push_contents();
    site.push(&["-n"], site.contents(), "").done();
    verify(&site, &[]).done();
    let daemon = site.the_daemon();
    let kinds = ["received from", "previewed by", "verified by"];
    for kind in kinds {
        daemon.wait_for_log(kind);
    }
    let logged = kinds.map(|kind| daemon.count_logged(kind));
    assert_eq!(logged, [1, 1, 1]);
}

fn each_difference_is_named_and_of_large_files_its_bytes(site: &Site) {
    grow(site);
    site.push_contents();
    let target = site.target();
    spoil(&target.join("d/c"), 500);
    for offset in [GROUP_BYTES + 3, 2 * GROUP_BYTES, LARGE - 1] {
        spoil(&target.join("large"), offset);
    }
    std::fs::remove_file(target.join("b")).unwrap();
    set_mode(target.join("nothing"), 0o600);
    std::fs::create_dir(target.join("more")).unwrap();
    std::fs::File::open(&target)
        .unwrap()
        .set_modified(site.source().metadata().unwrap().modified().unwrap())
        .unwrap();
    let first = format!("{GROUP_BYTES}-{}", 3 * GROUP_BYTES - 1);
    let last = format!("{}-{}", 5 * GROUP_BYTES, LARGE - 1);
    let outcome = verify(site, &[])
        .expect(6)
        .sums_up("3 differ, 1 only at the source, 1 only at the target");
    let shown = list(&outcome);
    let large = shown.iter().find(|line| line.contains("large")).unwrap();
    assert!(
        large.ends_with(&format!("large (contents of bytes {first} {last})")),
        "{large}"
    );
    let others: Vec<_> = shown
        .iter()
        .filter(|line| !line.contains("large"))
        .collect();
    assert_eq!(
        others,
        [&"+ b", &"- more/", &"~ d/c (contents)", &"~ nothing (mode)"]
    );
    let one_way = verify(site, &["--one-way", "--exclude", "large"]).expect(6);
    assert_eq!(
        list(&one_way),
        ["+ b", "~ d/c (contents)", "~ nothing (mode)"]
    );
}

fn a_single_file_is_compared_under_its_new_name(site: &Site) {
    paint(site.path("large"), LARGE);
    site.push(&[], site.path("large"), "renamed").done();
    let verify = || {
        let mut zmove = site.zmove(&["verify"]);
        zmove.0.arg(site.path("large")).arg(site.address("renamed"));
        zmove.outcome()
    };
    verify().done().sums_up("all the same: 1 file ");
    spoil(&site.target().join("renamed"), LARGE - 1);
    let outcome = verify().expect(6);
    assert!(
        list(&outcome)[0].starts_with("~ renamed (contents of bytes 20971520-"),
        "{:?}",
        list(&outcome)
    );
}

fn unreadable_entries_are_failures_and_the_rest_is_compared(site: &Site) {
    grow_by(site, 1000);
    paint(site.source().join("closed/within"), 1000);
    site.give_away();
    site.push_contents();
    std::fs::write(site.target().join("extra"), "").unwrap();
    std::fs::remove_file(site.source().join("d/c")).unwrap();
    symlink("nowhere", site.source().join("d/c")).unwrap();
    site.give_away();
    set_mode(site.source().join("a"), 0);
    set_mode(site.source().join("closed"), 0);
    set_mode(site.target().join("b"), 0);
    let outcome = verify(site, &[])
        .expect(23)
        .says(&["source/a'", "Permission denied"])
        .says(&["source/closed'", "Permission denied"])
        .says(&["receiver: read 'b'", "Permission denied"]);
    let shown = list(&outcome);
    assert!(
        shown.contains(&"- extra") && shown.contains(&"~ d/c -> nowhere (type)"),
        "{shown:?}"
    );
}

#[test]
fn unreadable_entries_are_failures_and_the_rest_is_compared_locally() {
    if let Some(site) = Site::unprivileged() {
        unreadable_entries_are_failures_and_the_rest_is_compared(&site);
    }
}

#[test]
fn unreadable_entries_are_failures_and_the_rest_is_compared_at_a_daemon() {
    if let Some(mut site) = Site::unprivileged() {
        site.start_daemon();
        unreadable_entries_are_failures_and_the_rest_is_compared(&site);
    }
}

/// A file system on a disk on which a bit is flipped.
const EXT4: Image = Image {
    bytes: 64 << 20,
    make: "mkfs.ext4 -q -F",
    options: "loop",
};

/// Flips a bit on the disk, below the page cache, at the last occurrence of `mark`.
fn strike(site: &Site, mark: &[u8]) {
    let image = std::fs::read(site.namespace().image()).unwrap();
    let at = image
        .windows(mark.len())
        .rposition(|bytes| bytes == mark)
        .unwrap() as u64;
    let disk = std::fs::File::options()
        .write(true)
        .open(site.namespace().image())
        .unwrap();
    disk.write_all_at(&[mark[0] ^ 1], at).unwrap();
}

/// The target's page cache holds the data of the push. A bit of it has changed on the disk since.
#[test]
fn a_bit_that_has_changed_on_the_disk_is_found_past_the_page_cache() {
    let Some(site) = Site::within_image(&EXT4) else {
        return;
    };
    let small = b"a small file whose contents are found nowhere else in the image";
    std::fs::write(site.source().join("small"), small).unwrap();
    paint(site.source().join("large"), LARGE);
    let mark = b"a mark in a large file that is found nowhere else in the image";
    let large = std::fs::File::options()
        .write(true)
        .open(site.source().join("large"))
        .unwrap();
    large.write_all_at(mark, 3 * GROUP_BYTES + 5).unwrap();
    site.push_contents();
    for mark in [&small[..], mark] {
        strike(&site, mark);
    }
    let cached = std::fs::read(site.target().join("small")).unwrap();
    assert_eq!(cached, small, "the page cache has what was written");
    let outcome = verify(&site, &["--one-way"]).expect(6);
    let second = format!("{}-{}", 3 * GROUP_BYTES, 4 * GROUP_BYTES - 1);
    assert_eq!(
        list(&outcome),
        [
            &format!("~ large (contents of bytes {second})"),
            "~ small (contents)"
        ]
    );
}

/// A file at one end and a directory of the same name at the other.
fn entries_of_other_types_differ(site: &Site) {
    for (name, bytes) in [("small", 5), ("large", LARGE)] {
        paint(site.source().join(name), bytes);
        paint(site.target().join(name).join("inside"), 5);
    }
    paint(site.source().join("directory/inside"), 5);
    paint(site.target().join("directory"), 5);
    symlink("small", site.source().join("link")).unwrap();
    std::fs::create_dir(site.target().join("link")).unwrap();
    [site.source(), site.target()].iter().for_each(set_old);
    let outcome = verify(site, &["--one-way"]).expect(6);
    let expected = [
        "+ directory/inside",
        "~ directory/ (type)",
        "~ large (type)",
        "~ link -> small (type)",
        "~ small (type)",
    ];
    assert_eq!(list(&outcome), expected);
}
