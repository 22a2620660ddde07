//! Files with holes: holes are neither read nor sent nor allocated, and the target has the same holes as the source,
//! whichever way the file is transferred.

#![expect(
    clippy::single_range_in_vec_init,
    reason = "lists of one range are meant"
)]

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::{Value, json};
use zmove_disk::find_data;
use zmove_types::GROUP_BYTES;

use crate::connections::resume::{break_off_after, journals_of};
use crate::support::harness::{Site, every_way, has_program, skip};
use crate::support::namespace::{Image, Namespace};
use crate::support::tree::{names, painted, set_mtime};

every_way!(
    holes_of_all_kinds_are_kept,
    data_becomes_holes_and_holes_become_data,
    runs_of_zeros_become_holes,
    a_sparse_file_is_updated_in_place,
    equal_data_of_a_sparse_file_is_not_sent,
);

const GROUP: u64 = GROUP_BYTES;
const TIB: u64 = 1 << 40;

/// Creates a file with data in these ranges and a timestamp that is unique to its version.
fn make(path: &Path, bytes: u64, ranges: &[Range<u64>], version: u64) {
    let file = File::create(path).unwrap();
    file.set_len(bytes).unwrap();
    for range in ranges {
        file.write_all_at(
            &painted(range.end - range.start, range.start % 97 + 5 * version),
            range.start,
        )
        .unwrap();
    }
    set_mtime(path, UNIX_EPOCH + Duration::new(1_700_000_000 + version, 5));
}

fn ranges_of(path: &Path) -> Vec<Range<u64>> {
    let file = File::open(path).unwrap();
    let bytes = file.metadata().unwrap().len();
    let (data, lost) = find_data(&file, bytes).unwrap();
    assert_eq!(lost, 0);
    data.map_or_else(|| vec![0..bytes], |data| data.ranges().to_vec())
}

/// Asserts that the files of both directories have the same lengths, holes and data. Returns the number of data bytes.
#[track_caller]
fn assert_same_holes(site: &Site) -> u64 {
    assert_same_holes_in([&site.source(), &site.target()])
}

#[track_caller]
fn assert_same_holes_in(directories: [&Path; 2]) -> u64 {
    assert_eq!(names(directories[0]), names(directories[1]));
    let mut data_bytes = 0;
    for name in names(directories[0]) {
        let [source, target] = directories.map(|directory| directory.join(&name));
        if source.is_dir() {
            data_bytes += assert_same_holes_in([&source, &target]);
            continue;
        }
        let look = |path: &Path| {
            path.metadata()
                .map(|stat| (stat.len(), stat.mtime(), stat.mode()))
                .unwrap()
        };
        assert_eq!(look(&source), look(&target), "{name}");
        let ranges = ranges_of(&source);
        assert_eq!(ranges, ranges_of(&target), "{name}");
        for range in ranges {
            let read = |path: &Path| {
                let mut room = vec![0; usize::try_from(range.end - range.start).unwrap()];
                File::open(path)
                    .unwrap()
                    .read_exact_at(&mut room, range.start)
                    .unwrap();
                room
            };
            assert!(read(&source) == read(&target), "{name} {range:?}");
            data_bytes += range.end - range.start;
        }
    }
    data_bytes
}

#[track_caller]
fn push(site: &Site, options: &[&str]) -> Value {
    let options = [&["--json"], options].concat();
    site.push(&options, site.contents(), "").done().summary()
}

fn number(summary: &Value, key: &str) -> u64 {
    summary[key].as_u64().unwrap()
}

/// Creates files with sizes and holes around the boundaries of pages, groups and direct writes.
fn grow(site: &Site) {
    let make = |name: &str, bytes, ranges: &[Range<u64>]| {
        make(&site.source().join(name), bytes, ranges, 0)
    };
    make(
        "borders",
        9 * GROUP + 5,
        &[
            0..4096,
            2 * GROUP - 8192..2 * GROUP + 4096,
            9 * GROUP..9 * GROUP + 5,
        ],
    );
    make("beginning", 5 * GROUP, &[0..GROUP + 4096]);
    make("end", 5 * GROUP + 7, &[4 * GROUP + 4096..5 * GROUP + 7]);
    make("nothing", 9 * GROUP, &[]);
    make("nothing large", 9 << 30, &[]);
    make(
        "large",
        TIB,
        &[
            3 * 4096..4 * 4096,
            TIB / 2..TIB / 2 + 2 * GROUP,
            TIB - 4096..TIB,
        ],
    );
    let pieces: Vec<_> = (0..500)
        .map(|at| at * 65_536..at * 65_536 + 4096 * (1 + at % 15))
        .collect();
    make("pieces", 40 << 20, &pieces);
    make("full", 2 * GROUP, &[0..2 * GROUP]);
    grow_small(&site.source(), "");
    // There are enough files for one new directory to be created as a whole.
    std::fs::create_dir(site.source().join("d")).unwrap();
    (0..3).for_each(|number| grow_small(&site.source().join("d"), &number.to_string()));
}

const FILES: u64 = 8 + 4 * 6;

/// Creates files that are sent in batches.
fn grow_small(directory: &Path, number: &str) {
    let make = |name: &str, bytes, ranges: &[Range<u64>]| {
        make(&directory.join(format!("{name}{number}")), bytes, ranges, 0);
    };
    make("small end", 4097, &[4096..4097]);
    make("small middle", 65_536, &[8192..12_288, 16_384..20_480]);
    make("small borders", GROUP, &[0..4096, GROUP - 4096..GROUP]);
    make("small nothing", 100_000, &[]);
    make(
        "small pieces",
        GROUP - 5,
        &[
            4096..8192,
            1 << 20..(1 << 20) + 300_000,
            GROUP - 8192..GROUP - 5,
        ],
    );
    make("small full", 200_000, &[0..200_000]);
}

fn holes_of_all_kinds_are_kept(site: &Site) {
    grow(site);
    let summary = push(site, &[]);
    let data_bytes = assert_same_holes(site);
    assert_eq!(
        (number(&summary, "bytes"), number(&summary, "files")),
        (data_bytes, FILES)
    );
    assert_eq!(summary["not_kept"], json!([]));
    let again = push(site, &[]);
    assert_eq!(
        (number(&again, "bytes"), number(&again, "skipped")),
        (0, FILES)
    );
}

fn runs_of_zeros_become_holes(site: &Site) {
    for (name, bytes) in [
        ("large", 3 * GROUP + 5),
        ("small", 200_005),
        ("in a block", 4000),
    ] {
        let path = site.source().join(name);
        make(&path, bytes, &[0..bytes], 0);
        // One byte of the second-to-last block is nonzero.
        let zeros = vec![0; usize::try_from(bytes / 2).unwrap()];
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .write_all_at(&zeros, bytes / 4 + 9)
            .unwrap();
        set_mtime(&path, UNIX_EPOCH + Duration::new(1_700_000_000, 5));
    }
    make(
        &site.source().join("holes"),
        3 * GROUP,
        &[0..4096, 2 * GROUP..2 * GROUP + 8192],
        0,
    );
    let summary = push(site, &["--sparse", "zeros"]);
    crate::support::tree::assert_same(&site.source(), &site.target());
    let data = |bytes: u64| {
        let hole =
            (bytes / 4 + 9).next_multiple_of(4096)..(bytes / 4 + 9 + bytes / 2) / 4096 * 4096;
        [0..hole.start, hole.end..bytes]
    };
    for (name, bytes) in [("large", 3 * GROUP + 5), ("small", 200_005)] {
        assert_eq!(ranges_of(&site.target().join(name)), data(bytes), "{name}");
    }
    assert_eq!(ranges_of(&site.target().join("in a block")), [0..4000]);
    assert_eq!(
        ranges_of(&site.target().join("holes")),
        ranges_of(&site.source().join("holes"))
    );
    let data_bytes = |bytes| {
        data(bytes)
            .into_iter()
            .map(|range| range.end - range.start)
            .sum::<u64>()
    };
    assert_eq!(
        number(&summary, "bytes"),
        data_bytes(3 * GROUP + 5) + data_bytes(200_005) + 4000 + 3 * 4096
    );
    assert_eq!(number(&push(site, &["--sparse", "zeros"]), "skipped"), 4);
}

/// Attributes count as allocated storage, so the file occupies no less than its length.
#[test]
fn a_hole_is_kept_even_if_attributes_occupy_as_much() {
    let site = Site::daemon();
    let path = site.source().join("f");
    make(&path, 3 * GROUP, &[0..GROUP, GROUP + 4096..3 * GROUP], 0);
    if rustix::fs::setxattr(&path, "user.a", &[7; 3000], rustix::fs::XattrFlags::empty()).is_err() {
        return skip("no extended attributes on this file system");
    }
    push(&site, &[]);
    assert_same_holes(&site);
}

/// Two versions, each with data where the other has a hole, inside groups and in whole groups.
const VERSIONS: [&[Range<u64>]; 2] = [
    &[
        0..GROUP,
        3 * GROUP..4 * GROUP + 8192,
        7 * GROUP + 4096..7 * GROUP + 8192,
    ],
    &[4096..8192, 2 * GROUP..3 * GROUP, 6 * GROUP..8 * GROUP],
];

fn data_becomes_holes_and_holes_become_data(site: &Site) {
    let path = site.source().join("f");
    for (version, options) in (0..).zip([
        &["--delta", "always"],
        &["--delta", "always"],
        &["--delta", "never"],
    ]) {
        make(
            &path,
            9 * GROUP + 5,
            VERSIONS[usize::try_from(version % 2).unwrap()],
            version,
        );
        push(site, options);
        assert_same_holes(site);
    }
}

fn a_sparse_file_is_updated_in_place(site: &Site) {
    let path = site.source().join("f");
    make(&path, 9 * GROUP, &[0..9 * GROUP], 0);
    push(site, &[]);
    let inode = || site.target().join("f").metadata().unwrap().ino();
    let before = inode();
    for version in 1..4 {
        make(
            &path,
            9 * GROUP + 5 * version,
            VERSIONS[usize::try_from(version % 2).unwrap()],
            version,
        );
        push(site, &["--inplace"]);
        assert_same_holes(site);
    }
    make(&path, 9 * GROUP, &[], 5);
    push(site, &["--inplace"]);
    assert_same_holes(site);
    // A small file, and one that becomes sparse.
    for (version, ranges) in (6..).zip([&[4096..8192][..], &[0..40_000], &[8192..16_384], &[]]) {
        make(&path, 40_000 + version, ranges, version);
        push(site, &["--inplace"]);
        assert_same_holes(site);
    }
    assert_eq!(inode(), before);
}

fn equal_data_of_a_sparse_file_is_not_sent(site: &Site) {
    let path = site.source().join("f");
    make(
        &path,
        TIB,
        &[TIB / 2..TIB / 2 + 4 * GROUP, TIB - 5 * 4096..TIB],
        0,
    );
    push(site, &[]);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .write_all_at(b"changed", TIB / 2 + 2 * GROUP + 9)
        .unwrap();
    set_mtime(&path, UNIX_EPOCH + Duration::new(1_800_000_000, 5));
    let summary = push(site, &["--delta", "always"]);
    assert_eq!(number(&summary, "bytes"), GROUP);
    assert_eq!(number(&summary, "bytes_matched"), 3 * GROUP + 5 * 4096);
    assert_same_holes(site);
    // Holes are not read to compare contents either. For two TiB that would take minutes.
    let began = Instant::now();
    let again = push(site, &["--checksum"]);
    assert_eq!((number(&again, "bytes"), number(&again, "skipped")), (0, 1));
    site.push(&["--checksum", "--dry-run"], site.contents(), "")
        .done();
    assert!(
        began.elapsed() < Duration::from_secs(90),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn other_file_systems_keep_holes_too() {
    let image = |make, options| {
        Site::within_image(&Image {
            bytes: 400 << 20,
            make,
            options,
        })
    };
    let sites = [
        image("mkfs.xfs -q -f -m reflink=1", "loop"),
        image("mkfs.btrfs -q -f", "loop"),
        Site::within(|target| Namespace::with_small_disk(target, 400 << 20)),
    ];
    for site in sites {
        let Some(mut site) = site else { continue };
        site.start_daemon();
        grow(&site);
        push(&site, &[]);
        assert_same_holes(&site);
        // On these file systems, a copy shares the blocks of the previous version.
        let path = site.source().join("f");
        for version in 0..3 {
            make(&path, 9 * GROUP + 5, VERSIONS[version % 2], version as u64);
            push(&site, &["--delta", "always"]);
            assert_same_holes(&site);
        }
    }
}

#[test]
fn a_resumed_sparse_file_sends_only_the_rest() {
    let site = Site::daemon();
    // The two holes have many groups, and half of each group with data is a hole.
    let halves = (0..24)
        .map(|number| TIB / 4 + number * GROUP)
        .map(|at| at..at + GROUP / 2);
    let ranges: Vec<_> = halves.chain([TIB - GROUP / 2..TIB]).collect();
    make(&site.source().join("large"), TIB, &ranges, 0);
    break_off_after(8 * GROUP, &site, |relay| site.push_by(relay, &["--json"]));
    let summary = push(&site, &[]);
    let data_bytes = assert_same_holes(&site);
    assert_eq!(journals_of(&site), [], "no unfinished transfers");
    let [moved, resumed] = ["bytes", "bytes_resumed"].map(|key| number(&summary, key));
    assert!(
        resumed >= GROUP && moved + resumed == data_bytes,
        "{summary}"
    );
}

/// The hash of a file with holes is the hash of all of its bytes.
#[test]
fn the_hashes_of_sparse_files_are_those_of_b3sum() {
    if !has_program("b3sum") {
        return skip("b3sum is missing");
    }
    let site = Site::daemon();
    make(&site.source().join("holes"), 9 * GROUP + 5, VERSIONS[0], 0);
    make(&site.source().join("nothing"), 9 * GROUP, &[], 0);
    make(&site.source().join("small"), 65_536, &[8192..12_288], 0);
    let manifest = site.path("manifest");
    push(&site, &["--manifest", manifest.to_str().unwrap()]);
    assert_same_holes(&site);
    let mut check = Command::new("b3sum");
    let checked = check
        .arg("--check")
        .arg(&manifest)
        .current_dir(site.target())
        .output()
        .unwrap();
    assert!(checked.status.success(), "{checked:?}");
    assert_eq!(
        std::fs::read_to_string(manifest).unwrap().lines().count(),
        3
    );
}
