//! Target paths: rsync's rules for a trailing slash on a source or target.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;

use crate::support::harness::{Site, both_ways};
use crate::support::tree::{assert_pictures, assert_same, names, paint, picture};

both_ways!(
    a_directory_arrives_under_its_name,
    a_trailing_slash_sends_the_contents_of_a_directory,
    repeated_runs_converge_and_never_nest,
    a_single_file_takes_the_name_of_the_target,
    a_single_file_goes_into_a_directory,
    a_trailing_slash_makes_the_target_a_directory,
    a_link_as_source_is_followed_only_with_a_trailing_slash,
    several_sources_arrive_side_by_side,
    two_sources_of_the_same_name_are_refused,
    missing_parents_of_the_target_are_created,
);

fn grow(site: &Site) {
    paint(site.source().join("a/f"), 100);
    paint(site.source().join("g"), zmove_types::GROUP_BYTES + 1);
    std::fs::create_dir(site.source().join("empty")).unwrap();
}

fn a_directory_arrives_under_its_name(site: &Site) {
    grow(site);
    for (target, at) in [("x", "x/source"), ("y/", "y/source"), ("", "source")] {
        site.push(&[], site.source(), target).done();
        assert_same(&site.source(), &site.target().join(at));
    }
    assert_eq!(names(&site.target()), ["source", "x", "y"]);
}

fn a_trailing_slash_sends_the_contents_of_a_directory(site: &Site) {
    grow(site);
    for (form, target) in [
        ("source/", "x"),
        ("source/.", "y"),
        ("source//", "z/"),
        ("./source/", "w/v/u"),
    ] {
        site.push(&[], form, target).done();
        assert_same(&site.source(), &site.target().join(target));
    }
}

fn repeated_runs_converge_and_never_nest(site: &Site) {
    grow(site);
    let mut first = None;
    for _ in 0..3 {
        site.push(&[], site.source(), "x").done();
        site.push(&[], site.contents(), "y").done();
        site.push(&[], site.source().join("g"), "z").done();
        let found = picture(&site.target());
        assert_pictures(first.get_or_insert_with(|| found.clone()), &found);
    }
    assert_eq!(names(&site.target()), ["x", "y", "z"]);
}

fn a_single_file_takes_the_name_of_the_target(site: &Site) {
    let manifest = site.path("manifest");
    let options = ["--manifest", manifest.to_str().unwrap(), "--json"];
    for bytes in [10, zmove_types::GROUP_BYTES + 1] {
        let source = site.source().join(format!("f{bytes}"));
        paint(&source, bytes);
        let name = format!("new{bytes}");
        assert_eq!(
            site.push(&options, &source, &name).done().summary()["files"],
            1
        );
        let mut expected = picture(&site.source());
        let copied = picture(&site.target()).remove(name.as_bytes()).unwrap();
        assert_eq!(
            expected.remove(format!("f{bytes}").as_bytes()),
            Some(copied)
        );
        let listed = std::fs::read_to_string(&manifest).unwrap();
        assert!(listed.ends_with(&format!("  {name}\n")), "{listed}");
        assert_eq!(
            site.push(&["--json"], &source, &name).done().summary()["skipped"],
            1
        );
    }
}

fn a_single_file_goes_into_a_directory(site: &Site) {
    paint(site.source().join("f"), 10);
    std::fs::create_dir(site.target().join("there")).unwrap();
    for target in ["", "there", "there/"] {
        site.push(&[], site.source().join("f"), target).done();
    }
    assert_eq!(names(&site.target()), ["f", "there"]);
    assert_eq!(names(&site.target().join("there")), ["f"]);
}

fn a_trailing_slash_makes_the_target_a_directory(site: &Site) {
    paint(site.source().join("f"), 10);
    site.push(&[], site.source().join("f"), "made/of/").done();
    assert_eq!(names(&site.target().join("made/of")), ["f"]);
}

fn a_link_as_source_is_followed_only_with_a_trailing_slash(site: &Site) {
    grow(site);
    let link = site.path("link");
    symlink("source", &link).unwrap();
    site.push(&[], &link, "x/").done();
    assert_eq!(
        std::fs::read_link(site.target().join("x/link"))
            .unwrap()
            .to_str(),
        Some("source")
    );
    site.push(&[], link.join(""), "y").done();
    assert_same(&site.source(), &site.target().join("y"));
}

fn several_sources_arrive_side_by_side(site: &Site) {
    grow(site);
    let (a, g) = (site.source().join("a"), site.source().join("g"));
    let empty = site.source().join("empty");
    let sources = [a.as_os_str(), g.as_os_str(), empty.as_os_str()];
    site.push_command(&[], &sources, "all").outcome().done();
    let mut expected = picture(&site.source());
    let mut found = picture(&site.target().join("all"));
    // The parent directory is not a source.
    expected.remove(&b""[..]);
    found.remove(&b""[..]);
    assert_pictures(&expected, &found);
}

fn two_sources_of_the_same_name_are_refused(site: &Site) {
    paint(site.source().join("a/same"), 1);
    paint(site.source().join("b/same"), 2);
    let sources = ["source/a/same", "source/b/same"].map(OsStr::new);
    let outcome = site.push_command(&[], &sources, "x").outcome().expect(1);
    outcome.says(&["would both become", "'same'"]).lines(1);
    assert!(names(&site.target()).is_empty());
}

fn missing_parents_of_the_target_are_created(site: &Site) {
    grow(site);
    site.push(&[], site.contents(), "a/b/c/d").done();
    assert_same(&site.source(), &site.target().join("a/b/c/d"));
    site.push(&[], site.source().join("g"), "k/l/m").done();
    assert!(site.target().join("k/l/m").is_file());
}

#[test]
fn a_target_inside_the_source_is_refused() {
    let site = Site::local();
    grow(&site);
    for target in ["source", "source/a", "source/new/deep", "source/a/../empty"] {
        let before = picture(&site.source());
        for source in ["source", "source/"] {
            let outcome = site.zmove(&["push", source, target]).outcome().expect(1);
            outcome
                .says(&["the target lies inside the source", source])
                .lines(1);
        }
        assert_pictures(&before, &picture(&site.source()));
    }
    // The parent directory is a valid target.
    site.zmove(&["push", "source", "."]).outcome().done();
}

/// A push neither reads nor mirrors an excluded directory, so its target may lie there.
#[test]
fn a_target_in_an_excluded_directory_of_the_source_is_accepted() {
    let site = Site::local();
    grow(&site);
    let sent = names(&site.source());
    for (rule, target) in [("/kept/", "kept"), ("kept", "kept/new/deep")] {
        let push = |options: &[&str]| {
            let mut push = site.zmove(&["push"]);
            push.0.args(options).arg("source/");
            push.0.arg(format!("source/{target}"));
            push.outcome()
        };
        push(&["--exclude", rule]).done();
        let target = site.source().join(target);
        assert_eq!(names(&target), sent);
        paint(target.join("extra"), 10);
        push(&["--exclude", rule, "--delete"]).done();
        assert_eq!(names(&target), sent);
        for others in ["*.o", "kept/*/*/*"] {
            push(&["--exclude", others])
                .expect(1)
                .says(&["the target lies inside the source 'source"])
                .lines(1);
        }
        std::fs::remove_dir_all(site.source().join("kept")).unwrap();
    }
}
