//! Files of proc and similar file systems, whose contents are generated when they are read.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::support::harness::{Site, both_ways};
use crate::support::namespace::Namespace;
use crate::support::tree::names;

both_ways!(
    files_of_any_length_arrive_with_their_contents,
    a_file_without_an_end_is_named_and_the_others_arrive,
);

/// A sysfs directory whose files all have the length of a page according to `stat`.
const SETTINGS: &str = "/sys/module/printk/parameters";

fn push(site: &Site, options: &[&str], sources: &[&Path]) -> crate::support::command::Outcome {
    let sources: Vec<_> = sources.iter().map(|path| path.as_os_str()).collect();
    site.push_command(options, &sources, "").outcome()
}

fn files_of_any_length_arrive_with_their_contents(site: &Site) {
    // The last file is longer than a group.
    let files = ["/proc/version", "/proc/filesystems", "/proc/kallsyms"].map(Path::new);
    let settings = Path::new(SETTINGS);
    let sources = [&files[..], &[settings]].concat();
    let copied = [
        ("version", files[0].to_owned()),
        ("filesystems", files[1].to_owned()),
        ("kallsyms", files[2].to_owned()),
        (
            "parameters/console_suspend",
            settings.join("console_suspend"),
        ),
        ("parameters/time", settings.join("time")),
    ];
    let read_sources = || {
        let contents = copied.iter().map(|(_, source)| std::fs::read(source));
        contents.map(Result::unwrap).collect::<Vec<_>>()
    };
    for options in [&[][..], &["--checksum"]] {
        // Another case may load a kernel module during the push. That changes these files.
        let mut expected = read_sources();
        loop {
            push(site, options, &sources).done();
            let before = std::mem::replace(&mut expected, read_sources());
            if before == expected {
                break;
            }
        }
        for ((name, _), expected) in copied.iter().zip(&expected) {
            assert!(!expected.is_empty(), "{name}");
            let received = std::fs::read(site.target().join(name)).unwrap();
            assert!(received == *expected, "{name}");
        }
    }
    let compared = site
        .zmove(&[
            "verify",
            SETTINGS,
            "/proc/kallsyms",
            site.address("").to_str().unwrap(),
        ])
        .outcome();
    // The kernel set the timestamps when it created the inodes.
    assert!(
        [Some(0), Some(6)].contains(&compared.code),
        "{}",
        compared.stderr
    );
    for difference in ["size", "contents"] {
        assert!(!compared.stdout.contains(difference), "{}", compared.stdout);
    }
}

fn own(name: &str) -> PathBuf {
    Path::new("/proc")
        .join(std::process::id().to_string())
        .join(name)
}

fn a_file_without_an_end_is_named_and_the_others_arrive(site: &Site) {
    let endless = own("pagemap");
    let outcome = push(site, &[], &[&endless, Path::new("/proc/version")]).expect(23);
    let line = format!(
        "zmove: sender: read '{}': it is longer than",
        endless.display()
    );
    outcome.says(&[&line]).lines(1);
    assert_eq!(names(&site.target()), ["version"]);
}

/// A site whose source contains a file that blocks each read.
fn with_traces() -> Option<Site> {
    Site::within(|target| Namespace::with_traces(&target.with_file_name("source")))
}

#[test]
fn a_file_that_blocks_is_named_and_the_others_arrive_locally() {
    if let Some(site) = with_traces() {
        a_file_that_blocks_is_named_and_the_others_arrive(&site);
    }
}

#[test]
fn a_file_that_blocks_is_named_and_the_others_arrive_at_a_daemon() {
    if let Some(mut site) = with_traces() {
        site.start_daemon();
        a_file_that_blocks_is_named_and_the_others_arrive(&site);
    }
}

fn a_file_that_blocks_is_named_and_the_others_arrive(site: &Site) {
    // Linux allows only one process at a time to open the pipe.
    static ONE_READER: Mutex<()> = Mutex::new(());
    let _one_reader = ONE_READER.lock().unwrap_or_else(PoisonError::into_inner);
    let blocks = site.source().join("trace_pipe");
    let outcome = push(site, &[], &[&blocks, Path::new("/proc/version")]).expect(23);
    let line = format!(
        "zmove: sender: read '{}': reading it blocks",
        blocks.display()
    );
    outcome.says(&[&line]).lines(1);
    assert_eq!(names(&site.target()), ["version"]);
}
