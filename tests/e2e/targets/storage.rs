//! The storage engines and the ways to bypass the page cache: each combination stores the same data.

use std::os::unix::fs::FileExt;

use zmove_types::GROUP_BYTES;

use crate::support::harness::{Site, both_ways, skip};
use crate::support::tree::{INTERESTING_SIZES, assert_same, paint};

both_ways!(
    every_engine_stores_the_same_data_with_and_without_the_page_cache,
    every_engine_replaces_a_large_file
);

/// Size of a file that is large enough for `--direct auto`, and not a multiple of the page size.
const LARGE: u64 = 5 * GROUP_BYTES + 4097;
const WAYS: [[&str; 2]; 6] = [
    ["threads", "off"],
    ["threads", "on"],
    ["threads", "auto"],
    ["uring", "off"],
    ["uring", "on"],
    ["uring", "auto"],
];

fn every_engine_stores_the_same_data_with_and_without_the_page_cache(site: &Site) {
    for bytes in INTERESTING_SIZES {
        if bytes <= GROUP_BYTES + 1 {
            paint(site.source().join(format!("{bytes:09}")), bytes);
        }
    }
    paint(site.source().join("large"), LARGE);
    for [engine, direct] in WAYS {
        if !pushed_by(site, engine, direct) {
            continue;
        }
        assert_same(&site.source(), &site.target());
        for entry in std::fs::read_dir(site.target()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

fn every_engine_replaces_a_large_file(site: &Site) {
    let source = site.source().join("large");
    paint(&source, LARGE);
    for ([engine, direct], shift) in WAYS.into_iter().zip(0..) {
        // Changes a byte on a different page each time, since an unchanged file would be skipped.
        let file = std::fs::File::options().write(true).open(&source).unwrap();
        file.write_all_at(b"x", shift * (1 << 20) + 7).unwrap();
        file.set_len(LARGE - shift).unwrap();
        if !pushed_by(site, engine, direct) {
            continue;
        }
        assert_same(&site.source(), &site.target());
    }
}

/// Pushes the whole source. Skips if the engine is refused, since the other engine covers the case.
#[track_caller]
fn pushed_by(site: &Site, engine: &str, direct: &str) -> bool {
    let outcome = site
        .push(
            &["--io-engine", engine, "--direct", direct],
            site.contents(),
            "",
        )
        .expect(0);
    let refused = outcome.stderr.contains("using threads instead");
    if refused {
        skip(outcome.stderr.trim_end());
    }
    outcome.lines(usize::from(refused));
    !refused
}

#[test]
fn a_daemon_takes_the_same_options() {
    for [engine, direct] in WAYS {
        let mut site = Site::local();
        site.start_daemon_with(&["--io-engine", engine, "--direct", direct]);
        paint(site.source().join("large"), LARGE);
        site.push_contents();
        assert_same(&site.source(), &site.target());
        if site.the_daemon().has_logged("using threads instead") {
            skip("io_uring cannot be used here");
        }
    }
}

#[test]
fn a_push_with_direct_writes_to_memory_succeeds() {
    let Some(site) = Site::within(|target| {
        crate::support::namespace::Namespace::with_small_disk(target, 64 << 20)
    }) else {
        return;
    };
    paint(site.source().join("large"), LARGE);
    for engine in ["threads", "uring"] {
        if !pushed_by(&site, engine, "on") {
            continue;
        }
        assert_same(&site.source(), &site.target());
        std::fs::remove_file(site.target().join("large")).unwrap();
    }
}

#[test]
fn an_engine_that_does_not_exist_is_a_usage_error() {
    let site = Site::local();
    site.push(&["--io-engine", "floppy"], site.contents(), "")
        .expect(1)
        .says(&["floppy", "io-engine"]);
}
