//! Verifications of a daemon's entries against a local copy: the daemon is the sender.

use zmove_types::GROUP_BYTES;

use super::{EXT4, LARGE, grow, list, spoil, strike};
use crate::commands::dry_run::snapshot;
use crate::support::command::Outcome;
use crate::support::harness::Site;
use crate::support::tree::{names, paint, set_mode};

fn verify(site: &Site, options: &[&str], sources: &[&str], path: &str) -> Outcome {
    let mut zmove = site.zmove(&["verify"]);
    zmove
        .0
        .args(options)
        .args(sources.iter().map(|source| site.address(source)));
    zmove.0.arg(site.path("target").join(path));
    zmove.outcome()
}

fn site() -> Site {
    let site = Site::reading(&[], &[]);
    grow(&site);
    site.pull(&[], &[""], "").done();
    site
}

#[test]
fn a_pulled_tree_is_found_equal_and_not_changed() {
    let site = site();
    let before = (snapshot(&site.source()), snapshot(&site.target()));
    let outcome = verify(&site, &[], &[""], "")
        .done()
        .sums_up("all the same: 8 files compared by hash");
    assert!(list(&outcome).is_empty());
    let summary = verify(&site, &["--json", "--transport", "tcp"], &[""], "")
        .done()
        .summary();
    assert_eq!(
        (&summary["verify"], &summary["skipped"]),
        (&true.into(), &8.into())
    );
    assert_eq!((snapshot(&site.source()), snapshot(&site.target())), before);
}

#[test]
fn each_difference_is_named_and_of_large_files_its_bytes() {
    let site = site();
    let target = site.target();
    spoil(&target.join("d/c"), 500);
    spoil(&site.source().join("large"), 3 * GROUP_BYTES + 1);
    std::fs::remove_file(target.join("b")).unwrap();
    set_mode(target.join("nothing"), 0o600);
    std::fs::create_dir(target.join("more")).unwrap();
    let time = site.source().metadata().unwrap().modified().unwrap();
    std::fs::File::open(&target)
        .unwrap()
        .set_modified(time)
        .unwrap();
    let outcome = verify(&site, &[], &[""], "").expect(6);
    let outcome = outcome.sums_up("3 differ, 1 only at the source, 1 only at the target");
    let bytes = format!(
        "(contents of bytes {}-{})",
        3 * GROUP_BYTES,
        4 * GROUP_BYTES - 1
    );
    let shown = list(&outcome);
    let large = shown.iter().find(|line| line.contains("large")).unwrap();
    assert!(large.ends_with(&bytes), "{large}");
    let others: Vec<_> = shown
        .iter()
        .filter(|line| !line.contains("large"))
        .collect();
    assert_eq!(
        others,
        [&"+ b", &"- more/", &"~ d/c (contents)", &"~ nothing (mode)"]
    );
    let one_way = verify(&site, &["--one-way", "--exclude", "large"], &[""], "").expect(6);
    assert_eq!(
        list(&one_way),
        ["+ b", "~ d/c (contents)", "~ nothing (mode)"]
    );
    let json = verify(&site, &["--json", "--exclude", "large"], &[""], "").expect(6);
    assert!(json.stdout.contains(r#""event":"removed""#) && json.summary()["verify"] == false);
}

#[test]
fn one_file_and_several_sources_are_compared_under_their_new_names() {
    let site = Site::reading(&[], &[]);
    for (name, bytes) in [("one", LARGE), ("d/a", 1000), ("d/b", 1001)] {
        paint(site.source().join(name), bytes);
    }
    site.pull(&[], &["one"], "renamed").done();
    verify(&site, &[], &["one"], "renamed")
        .done()
        .sums_up("all the same: 1 file ");
    site.pull(&[], &["one", "d/*"], "all/").done();
    verify(&site, &[], &["one", "d/*"], "all/")
        .done()
        .sums_up("all the same: 3 files ");
    spoil(&site.target().join("renamed"), LARGE - 1);
    let outcome = verify(&site, &[], &["one"], "renamed").expect(6);
    assert!(
        list(&outcome)[0].starts_with("~ renamed (contents of bytes 20971520-"),
        "{:?}",
        list(&outcome)
    );
}

#[test]
fn a_key_that_may_not_read_gets_the_command_that_allows_it() {
    let site = Site::daemon();
    paint(site.target().join("f"), 10);
    let mut zmove = site.zmove(&["verify"]);
    zmove.0.arg(site.address("f")).arg(site.path("source"));
    let said = [
        "this key may not read here",
        "zmove allow SHA256:",
        "--read-root",
    ];
    zmove.outcome().expect(3).says(&said).lines(1);
    assert!(names(&site.source()).is_empty());
}

/// A bit of the source has changed on the daemon's disk since it was written. The page cache does not hold the data.
#[test]
fn a_bit_that_has_changed_on_the_daemon_s_disk_is_found_past_the_page_cache() {
    let Some(mut site) = Site::within_image(&EXT4) else {
        return;
    };
    let mark = b"a small file whose contents are found nowhere else in the image";
    std::fs::write(site.source().join("small"), mark).unwrap();
    site.push_contents();
    site.let_read("target");
    site.start_daemon();
    strike(&site, mark);
    let mut zmove = site.zmove(&["verify"]);
    zmove
        .0
        .arg(site.address(&format!("{}/", site.path("target").display())))
        .arg(site.source());
    let outcome = zmove.outcome().expect(6);
    assert!(
        list(&outcome).contains(&"~ small (contents)"),
        "{:?}",
        list(&outcome)
    );
}
