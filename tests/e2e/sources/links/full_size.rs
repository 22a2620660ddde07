//! 100,000 names of 10,000 files and a file of 1 TiB with 1 GiB of data, interrupted and resumed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Output;

use super::{hard_link, numbers};
use crate::connections::resume::break_off_after;
use crate::support::harness::Site;
use crate::support::tree::{name_groups, paint, painted};

const TIB: u64 = 1 << 40;
const MIB: u64 = 1 << 20;

/// Creates files with ten names each in a hundred directories.
fn tie(site: &Site, files: u64) {
    let at = |number: u64| site.source().join(format!("d{}", number % 100));
    (0..100).for_each(|number| std::fs::create_dir(at(number)).unwrap());
    for number in 0..files {
        let first = at(number).join(format!("f{number}"));
        paint(&first, 1 + number * 7 % 5000);
        for other in 1..10 {
            hard_link(
                &first,
                at(number * 7 + other * 13).join(format!("f{number}.{other}")),
            )
            .unwrap();
        }
    }
}

/// Creates a file of 1 TiB with pieces of 1 MiB.
fn make_sparse(site: &Site, pieces: u64) {
    let file = File::create(site.source().join("sparse")).unwrap();
    file.set_len(TIB).unwrap();
    for number in 0..pieces {
        file.write_all_at(&painted(MIB, number), number * (TIB / pieces))
            .unwrap();
    }
}

/// Pushes without a timeout.
fn push(site: &Site) -> serde_json::Value {
    let mut command = site.push_command(
        &["-a", "--no-preserve", "owner", "--json"],
        &[&site.contents()],
        "",
    );
    let Output {
        status,
        stdout,
        stderr,
    } = command.0.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(
        stdout
            .split(|byte| *byte == b'\n')
            .rfind(|line| !line.is_empty())
            .unwrap(),
    )
    .unwrap()
}

#[track_caller]
fn assert_same_groups(site: &Site) {
    let [source, target] = [site.source(), site.target()].map(|root| name_groups(&root));
    assert!(source.keys().eq(target.keys()), "other groups of names");
}

/// Interrupts a push after `bytes` bytes have arrived, and resumes it.
fn goes_on(files: u64, pieces: u64, bytes: u64) {
    let site = Site::daemon();
    tie(&site, files);
    make_sparse(&site, pieces);
    break_off_after(bytes, &site, |relay| {
        site.push_by(relay, &["-a", "--no-preserve", "owner", "--json"])
    });
    let summary = push(&site);
    assert_eq!(
        (
            &summary["failed"],
            summary["not_kept"].as_array().unwrap().len()
        ),
        (&0.into(), 0),
        "{summary}"
    );
    assert!(summary["bytes_resumed"].as_u64() > Some(0), "{summary}");
    assert_same_groups(&site);
    let [source, target] =
        [site.source(), site.target()].map(|root| File::open(root.join("sparse")).unwrap());
    let data = |file: &File| zmove_disk::find_data(file, TIB).unwrap().0.unwrap();
    assert_eq!(data(&source), data(&target));
    for range in data(&source).ranges() {
        let read = |file: &File| {
            let mut room = vec![0; usize::try_from(range.end - range.start).unwrap()];
            file.read_exact_at(&mut room, range.start).unwrap();
            room
        };
        assert!(read(&source) == read(&target), "{range:?}");
    }
    let again = push(&site);
    assert_eq!(
        numbers(&again, ["files", "skipped", "bytes"]),
        [0, 10 * files + 1, 0]
    );
    assert_same_groups(&site);
}

#[test]
fn a_killed_push_of_hard_links_and_a_sparse_file_resumes() {
    goes_on(200, 32, 20 * MIB);
}

#[test]
#[ignore = "takes minutes, 3 GB and 40,000 inodes"]
fn a_killed_push_of_full_size_resumes() {
    goes_on(10_000, 1024, 300 * MIB);
}
